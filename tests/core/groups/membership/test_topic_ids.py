"""Offsets of a deleted topic: refused where its name is in use again, and never taken for the new topic's."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import TopicNode
from klamm.core.errors import ErrorCode, KlammError
from klamm.core.groups.membership import registry, topic_ids
from klamm.core.groups.membership.member import LostOwnershipError, Owned
from klamm.core.groups.membership.registry import RegistryMember, RegistrySettings
from klamm.core.groups.membership.topic_ids import TopicIds, commit_current
from klamm.core.interfaces.coordination import BadVersionError, Check, Coordination
from klamm.core.interfaces.offsets import CommittedOffset, OffsetStore
from klamm.core.records.partition import TopicPartition
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klammtest.clients.members import delete_topic, offset_store, write_topic
from klammtest.guarantees import guarantee
from klammtest.waiting import PATIENCE_S, eventually

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Coordination]:
    made = EmbeddedCoordination(EmbeddedConfig(path=tmp_path / "tree.db"))
    made.start()
    write_topic(made, "t", 1)
    write_topic(made, "u", 1)
    yield made
    made.close()


def id_of(tree: Coordination, topic: str) -> UUID:
    return TopicNode.decode(paths.topic(topic), tree.get(paths.topic(topic))[0]).topic_id


def create_again(tree: Coordination, topic: str) -> UUID:
    delete_topic(tree, topic)
    write_topic(tree, topic, 1)
    return id_of(tree, topic)


class Reader:
    """A member whose application commits what it has read when a partition is revoked, and may take long for it."""

    def __init__(self, tree: Coordination, store: OffsetStore, reads: Mapping[str, int]) -> None:
        self.busy = threading.Event()
        self.finish = threading.Event()
        self.finish.set()
        self.read = 1500
        self.refused: list[ErrorCode] = []
        self.assigned: list[dict[TopicPartition, UUID | None]] = []
        self.member = RegistryMember(tree, store, RegistrySettings("g", reads), self)
        self.member.start()

    def on_assigned(self, owned: Collection[Owned]) -> None:
        self.assigned.append({o.partition: o.topic_id for o in owned})

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.busy.set()
        self.finish.wait(PATIENCE_S)
        try:
            self.member.commit({p: CommittedOffset(self.read) for p in partitions})
        except LostOwnershipError as error:
            self.refused.append(error.code)

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Its commits are refused anyway."""

    def on_error(self, error: KlammError) -> None:
        raise AssertionError(str(error))


def commit_whatever_the_topic_is(patch: pytest.MonkeyPatch) -> None:
    """As it was: no topic id in what is stored, and nothing about the topic in the transaction."""

    def commit(
        store: OffsetStore,
        _: TopicIds,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        guards: Sequence[Check] = (),
    ) -> set[TopicPartition]:
        store.commit(group, {p: replace(o, topic_id=None) for p, o in offsets.items()}, guards)
        return set()

    patch.setattr(registry, "commit_current", commit)


@guarantee("A2", "a commit after its topic's deletion is refused", plant=commit_whatever_the_topic_is)
def test_the_commit_of_a_revocation_that_a_deletion_caused(tree: Coordination) -> None:
    store = offset_store(tree)
    reader = Reader(tree, store, {"t": 1, "u": 1})
    eventually(lambda: set(reader.member.owned()) == {T0, U0}, "it owns both")
    old = id_of(tree, "t")
    reader.finish.clear()
    delete_topic(tree, "t")
    assert reader.busy.wait(PATIENCE_S), "the deletion revokes"
    write_topic(tree, "t", 1)
    new = id_of(tree, "t")
    reader.finish.set()
    eventually(lambda: {T0: new} in reader.assigned, "the new topic is assigned")
    assert {T0: old, U0: id_of(tree, "u")} in reader.assigned
    assert reader.member.committed([T0]) == {}, "the group begins where auto.offset.reset says"
    assert reader.refused == [ErrorCode.unknown_topic_or_partition]
    reader.member.close()


@guarantee("A2", "a late commit of the old topic replaces none of the new one", plant=commit_whatever_the_topic_is)
def test_a_late_commit_of_the_old_topic_replaces_none_of_the_new_one(tree: Coordination) -> None:
    store = offset_store(tree)
    reader = Reader(tree, store, {"t": 1, "u": 1})
    eventually(lambda: set(reader.member.owned()) == {T0, U0}, "it owns both")
    reader.finish.clear()
    new = create_again(tree, "t")
    assert reader.busy.wait(PATIENCE_S), "the other topic of that name revokes"
    store.commit("g", {T0: CommittedOffset(10, topic_id=new)})
    reader.finish.set()
    eventually(lambda: {T0: new} in reader.assigned, "the new topic is assigned")
    assert store.fetch("g", [T0]) == {T0: CommittedOffset(10, topic_id=new)}
    reader.member.commit({T0: CommittedOffset(11), U0: CommittedOffset(12)})
    assert {p: o.offset for p, o in reader.member.committed([T0, U0]).items()} == {T0: 11, U0: 12}
    reader.member.close()


def take_any_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registry, "is_of", lambda *_: True)


@guarantee("A2", "a registry member passes over offsets of the deleted topic", plant=take_any_offset)
def test_offsets_of_the_deleted_topic_are_passed_over(tree: Coordination) -> None:
    store = offset_store(tree)
    store.commit("g", {T0: CommittedOffset(1500, topic_id=uuid4()), U0: CommittedOffset(3)})
    reader = Reader(tree, store, {"t": 1})
    eventually(lambda: set(reader.member.owned()) == {T0}, "it owns the partition")
    assert set(reader.member.committed([T0, U0])) == {U0}, "one without an id is taken"
    reader.member.close()


def test_the_other_topics_of_a_commit_are_stored(tree: Coordination) -> None:
    store, ids = offset_store(tree), TopicIds(tree)
    offsets = {p: CommittedOffset(5, topic_id=id_of(tree, p.topic)) for p in (T0, U0)}
    assert commit_current(store, ids, "g", offsets) == set()
    create_again(tree, "t")
    offsets = {p: replace(o, offset=6) for p, o in offsets.items()}
    assert commit_current(store, ids, "g", offsets) == {T0}
    assert {p: o.offset for p, o in store.fetch("g").items()} == {T0: 5, U0: 6}


def test_a_change_of_another_topic_between_check_and_commit_only_costs_a_second_try(
    tree: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids = offset_store(tree), TopicIds(tree)
    tries: list[int] = []

    def guard(topics: Collection[str], *, fresh: bool = False) -> tuple[dict[str, UUID], Check]:
        found = kept(topics, fresh=fresh)
        tries.append(1)
        if len(tries) == 1:
            write_topic(tree, "other", 1)
        return found

    kept = ids.guard
    monkeypatch.setattr(ids, "guard", guard)
    assert commit_current(store, ids, "g", {T0: CommittedOffset(5, topic_id=id_of(tree, "t"))}) == set()
    assert len(tries) == 2


def test_a_guard_of_the_caller_that_fails_is_the_callers(tree: Coordination) -> None:
    tree.create("/owner", b"me")
    offsets = {T0: CommittedOffset(5, topic_id=id_of(tree, "t"))}
    with pytest.raises(BadVersionError, match="/owner"):
        commit_current(offset_store(tree), TopicIds(tree), "g", offsets, [Check("/owner", 7)])


def test_the_ids_are_read_once_until_a_topic_changes(tree: Coordination, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    kept = tree.get
    monkeypatch.setattr(tree, "get", lambda path: (reads.append(path), kept(path))[1])
    ids = TopicIds(tree)
    first = ids.guard(["t"])
    assert ids.guard(["t"]) == first
    assert reads == [paths.METADATA_VERSION, paths.topic("t")]
    assert "none" not in topic_ids.TopicIds(tree).now(["none", "t"])
