"""The contract of `klamm.plugin.OffsetStore`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from klamm.core.cluster.tree import paths
from klamm.core.errors import CoordinationError
from klamm.core.interfaces.coordination import BadVersionError, Check, Coordination, NoNodeError
from klamm.core.interfaces.offsets import CommittedOffset, OffsetStore
from klamm.core.plugins import plugin_host
from klamm.core.records.partition import TopicPartition

__all__ = ["A0", "A1", "B0", "FULL", "MakeStore", "OffsetStoreContract", "OpenCoordination"]

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
FULL = CommittedOffset(7, leader_epoch=3, metadata='größe {"x": 1}', commit_timestamp_ms=1_700_000_000_000)
"""An offset with a value in each field."""

MakeStore = Callable[[Coordination], OffsetStore]
OpenCoordination = Callable[[], Coordination]


class OffsetStoreContract:
    """The suite of an offset store. Define `make_store`, a fixture that returns a function from a coordination to an
    empty store on it. Within one test all coordinations are sessions on one tree, and all stores have the same
    content."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `make_store`: from a coordination to a store")

    @pytest.fixture
    def open_coordination(self, tmp_path: Path) -> Iterator[OpenCoordination]:
        """Opens sessions on one tree: on a file, unless it is overridden."""
        opened: list[Coordination] = []

        def open_one() -> Coordination:
            opened.append(plugin_host().coordinations.create("embedded", {"path": str(tmp_path / "tree.db")}))
            opened[-1].start()
            return opened[-1]

        yield open_one
        for coordination in opened:
            coordination.close()

    @pytest.fixture
    def coordination(self, open_coordination: OpenCoordination) -> Coordination:
        return open_coordination()

    @pytest.fixture
    def store(self, make_store: MakeStore, coordination: Coordination) -> OffsetStore:
        return make_store(coordination)

    def test_nothing_is_stored_at_first(self, store: OffsetStore) -> None:
        assert store.fetch("g") == {}
        assert store.fetch("g", [A0]) == {}
        assert store.groups() == []

    def test_commit_and_fetch_keep_every_field(self, store: OffsetStore) -> None:
        committed = {A0: FULL, A1: CommittedOffset(0), B0: CommittedOffset(2**63 - 1)}
        store.commit("g", committed)
        assert store.fetch("g") == committed
        assert store.fetch("g", [A0, TopicPartition("none", 0)]) == {A0: FULL}
        assert store.fetch("other") == {}

    def test_the_last_commit_wins(self, store: OffsetStore) -> None:
        for offset in (5, 9, 2):
            store.commit("g", {A0: CommittedOffset(offset)})
        assert store.fetch("g", [A0]) == {A0: CommittedOffset(2)}

    def test_partitions_may_come_one_after_the_other(self, store: OffsetStore) -> None:
        store.commit("g", {A0: CommittedOffset(1)})
        store.commit("g", {A0: CommittedOffset(2), A1: CommittedOffset(3)})
        store.commit("g", {B0: CommittedOffset(4)})
        assert store.fetch("g") == {A0: CommittedOffset(2), A1: CommittedOffset(3), B0: CommittedOffset(4)}

    def test_an_empty_commit_is_none(self, store: OffsetStore) -> None:
        store.commit("g", {})
        assert store.groups() == []

    def test_an_offset_of_more_than_64_bits_is_refused(self, store: OffsetStore) -> None:
        with pytest.raises(CoordinationError, match="a-0"):
            store.commit("g", {A1: CommittedOffset(1), A0: CommittedOffset(2**63)})
        assert store.fetch("g") == {}

    def test_negative_offsets_are_stored_as_kafka_does(self, store: OffsetStore) -> None:
        store.commit("g", {A0: CommittedOffset(-1), A1: CommittedOffset(-2)})
        assert store.fetch("g") == {A0: CommittedOffset(-1), A1: CommittedOffset(-2)}

    @pytest.mark.parametrize("group", ["", "%", "plain", "with/slash", "..", ".", "größe", "100%", "a b\n"])
    def test_groups_of_any_name(self, store: OffsetStore, group: str) -> None:
        store.commit(group, {A0: FULL})
        assert store.fetch(group) == {A0: FULL}
        assert store.groups() == [group]
        store.delete(group)
        assert store.groups() == []

    def test_groups_are_sorted(self, store: OffsetStore) -> None:
        for group in ("b", "a", "c"):
            store.commit(group, {A0: FULL})
        assert store.groups() == ["a", "b", "c"]

    def test_delete_some_and_all(self, store: OffsetStore) -> None:
        store.commit("g", {A0: FULL, A1: FULL, B0: FULL})
        store.delete("g", [A0, TopicPartition("none", 4)])
        assert set(store.fetch("g")) == {A1, B0}
        store.delete("g")
        assert store.fetch("g") == {}
        assert store.groups() == []
        store.delete("g")
        store.delete("never-there")
        store.commit("g", {A0: CommittedOffset(1)})
        assert store.fetch("g") == {A0: CommittedOffset(1)}

    def test_a_deletion_with_a_guard_that_fails_deletes_nothing(
        self, store: OffsetStore, coordination: Coordination
    ) -> None:
        owner = paths.partition_owner("g", "a", 0)
        coordination.create(owner, b"me", make_parents=True)
        store.commit("g", {A0: FULL, A1: FULL, B0: FULL})
        store.delete("g", [A1], [Check(owner, 0)])
        coordination.set(owner, b"somebody else")
        with pytest.raises(BadVersionError, match=owner):
            store.delete("g", [A0], [Check(owner, 0)])
        coordination.delete(owner)
        with pytest.raises(NoNodeError, match=owner):
            store.delete("g", None, [Check(owner)])
        assert set(store.fetch("g")) == {A0, B0}

    def test_a_deletion_of_what_was_seen_leaves_what_was_committed_since(self, store: OffsetStore) -> None:
        store.commit("g", {A0: FULL, A1: FULL, B0: FULL})
        seen = store.fetch("g", [A0, A1])
        newer = replace(FULL, topic_id=uuid4())
        store.commit("g", {A0: newer})
        store.delete("g", [A0], seen=seen)
        assert store.fetch("g") == {A0: newer, A1: FULL, B0: FULL}
        store.delete("g", seen=seen)
        assert store.fetch("g") == {A0: newer, B0: FULL}
        store.delete("g", seen=store.fetch("g"))
        assert store.groups() == []

    def test_another_process_may_have_deleted_what_this_one_remembers(
        self, open_coordination: OpenCoordination, make_store: MakeStore
    ) -> None:
        one, other = (make_store(open_coordination()) for _ in range(2))
        one.commit("g", {A0: FULL, A1: FULL})
        other.delete("g")
        one.commit("g", {A0: CommittedOffset(1), B0: CommittedOffset(2)})
        assert other.fetch("g") == {A0: CommittedOffset(1), B0: CommittedOffset(2)}

    def test_guards_that_hold(self, store: OffsetStore, coordination: Coordination) -> None:
        owner = paths.partition_owner("g", "a", 0)
        coordination.create(owner, b"me", ephemeral=True, make_parents=True)
        store.commit("g", {A0: FULL}, [Check(owner, 0)])
        store.commit("g", {A0: CommittedOffset(8)}, [Check(owner)])
        assert store.fetch("g") == {A0: CommittedOffset(8)}

    def test_a_guard_that_is_gone_refuses_everything(self, store: OffsetStore, coordination: Coordination) -> None:
        owner = paths.partition_owner("g", "a", 0)
        coordination.create(paths.group_owners("g"), make_parents=True)
        with pytest.raises(NoNodeError, match=owner):
            store.commit("g", {A0: FULL}, [Check(owner)])
        assert store.fetch("g") == {}
        assert store.groups() == []
        store.commit("g", {A0: CommittedOffset(1)})
        with pytest.raises(NoNodeError, match=owner):
            store.commit("g", {A0: FULL, A1: FULL}, [Check(owner)])
        assert store.fetch("g") == {A0: CommittedOffset(1)}

    def test_a_guard_at_another_version_refuses_everything(
        self, store: OffsetStore, coordination: Coordination
    ) -> None:
        owner = paths.partition_owner("g", "a", 0)
        coordination.create(owner, b"me", make_parents=True)
        store.commit("g", {A0: CommittedOffset(1)}, [Check(owner, 0)])
        coordination.set(owner, b"somebody else")
        with pytest.raises(BadVersionError, match=owner):
            store.commit("g", {A0: FULL, B0: FULL}, [Check(owner, 0)])
        assert store.fetch("g") == {A0: CommittedOffset(1)}

    def test_commits_of_many_threads(self, open_coordination: OpenCoordination, make_store: MakeStore) -> None:
        """First commits of one group from several processes at once make its paths together."""
        stores = [make_store(open_coordination()) for _ in range(2)]
        errors: list[Exception] = []

        def commit(number: int) -> None:
            try:
                for offset in range(5):
                    stores[number % 2].commit(
                        "g", {TopicPartition("t", p): CommittedOffset(offset) for p in (number, 99)}
                    )
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=commit, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert set(stores[0].fetch("g")) == {TopicPartition("t", p) for p in (*range(6), 99)}
