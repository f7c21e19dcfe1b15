"""The contract of `klamm.core.interfaces.offsets`, on every offset store that ships and every coordination."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from klamm.core.cluster.tree import paths
from klamm.core.errors import BrokerError, CoordinationError, ErrorCode
from klamm.core.interfaces.coordination import BadVersionError, Check, Coordination, NoNodeError
from klamm.core.interfaces.offsets import CommittedOffset, OffsetStore, PartitionedStore, StoredGroup, StoredMember
from klamm.core.plugins import plugin_host
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.inprocess import broker_thread
from klammtest.brokers.led import LedOffsets
from klammtest.zookeeper import CoordinationCase

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
FULL = CommittedOffset(7, leader_epoch=3, metadata='größe {"x": 1}', commit_timestamp_ms=1_700_000_000_000)


MakeStore = Callable[[Coordination], OffsetStore]


@pytest.fixture(params=["coordination", "topic", "topic at the leader"])
def make_store(
    request: pytest.FixtureRequest, coordination_case: CoordinationCase, tmp_path: Path
) -> Iterator[MakeStore]:
    """Each store, as the plugin host makes it. The one that keeps offsets in a topic has a broker on the same tree; a
    coordinator's part of it has the log of the partition that its broker leads."""
    made: list[OffsetStore] = []
    plugin = request.param.partition(" ")[0]
    keys = {"offsets.commit.timeout.ms": 60_000} if plugin == "topic" else {}
    led = LedOffsets(tmp_path) if plugin != request.param else None

    def make(coordination: Coordination) -> OffsetStore:
        made.append(plugin_host().offset_stores.create(plugin, keys, coordination))
        if led is not None:
            of_topic = made[-1]
            assert isinstance(of_topic, PartitionedStore)
            made.append(of_topic.at_leader(led.log()))
        return made[-1]

    with broker_thread(tmp_path, coordination_case.section()) if keys and led is None else nullcontext():
        yield make
        for store in made:
            store.close()
    if led is not None:
        led.close()


@pytest.fixture
def store(make_store: MakeStore, coordination: Coordination) -> OffsetStore:
    return make_store(coordination)


def test_nothing_is_stored_at_first(store: OffsetStore) -> None:
    assert store.fetch("g") == {}
    assert store.fetch("g", [A0]) == {}
    assert store.groups() == []


def test_commit_and_fetch_keep_every_field(store: OffsetStore) -> None:
    committed = {A0: FULL, A1: CommittedOffset(0), B0: CommittedOffset(2**63 - 1)}
    store.commit("g", committed)
    assert store.fetch("g") == committed
    assert store.fetch("g", [A0, TopicPartition("none", 0)]) == {A0: FULL}
    assert store.fetch("other") == {}


def test_the_last_commit_wins(store: OffsetStore) -> None:
    for offset in (5, 9, 2):
        store.commit("g", {A0: CommittedOffset(offset)})
    assert store.fetch("g", [A0]) == {A0: CommittedOffset(2)}


def test_partitions_may_come_one_after_the_other(store: OffsetStore) -> None:
    store.commit("g", {A0: CommittedOffset(1)})
    store.commit("g", {A0: CommittedOffset(2), A1: CommittedOffset(3)})
    store.commit("g", {B0: CommittedOffset(4)})
    assert store.fetch("g") == {A0: CommittedOffset(2), A1: CommittedOffset(3), B0: CommittedOffset(4)}


def test_an_empty_commit_is_none(store: OffsetStore) -> None:
    store.commit("g", {})
    assert store.groups() == []


def test_an_offset_of_more_than_64_bits_is_refused(store: OffsetStore) -> None:
    with pytest.raises(CoordinationError, match="a-0"):
        store.commit("g", {A1: CommittedOffset(1), A0: CommittedOffset(2**63)})
    assert store.fetch("g") == {}


def test_negative_offsets_are_stored_as_kafka_does(store: OffsetStore) -> None:
    store.commit("g", {A0: CommittedOffset(-1), A1: CommittedOffset(-2)})
    assert store.fetch("g") == {A0: CommittedOffset(-1), A1: CommittedOffset(-2)}


@pytest.mark.parametrize("group", ["", "%", "plain", "with/slash", "..", ".", "größe", "100%", "a b\n"])
def test_groups_of_any_name(store: OffsetStore, group: str) -> None:
    store.commit(group, {A0: FULL})
    assert store.fetch(group) == {A0: FULL}
    assert store.groups() == [group]
    store.delete(group)
    assert store.groups() == []


def test_groups_are_sorted(store: OffsetStore) -> None:
    for group in ("b", "a", "c"):
        store.commit(group, {A0: FULL})
    assert store.groups() == ["a", "b", "c"]


def test_delete_some_and_all(store: OffsetStore) -> None:
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


def test_a_deletion_with_a_guard_that_fails_deletes_nothing(store: OffsetStore, coordination: Coordination) -> None:
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


def test_a_deletion_of_what_was_seen_leaves_what_was_committed_since(store: OffsetStore) -> None:
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
    coordination_case: CoordinationCase, make_store: MakeStore
) -> None:
    one, other = (make_store(coordination_case.open()) for _ in range(2))
    one.commit("g", {A0: FULL, A1: FULL})
    other.delete("g")
    one.commit("g", {A0: CommittedOffset(1), B0: CommittedOffset(2)})
    assert other.fetch("g") == {A0: CommittedOffset(1), B0: CommittedOffset(2)}


def test_guards_that_hold(store: OffsetStore, coordination: Coordination) -> None:
    owner = paths.partition_owner("g", "a", 0)
    coordination.create(owner, b"me", ephemeral=True, make_parents=True)
    store.commit("g", {A0: FULL}, [Check(owner, 0)])
    store.commit("g", {A0: CommittedOffset(8)}, [Check(owner)])
    assert store.fetch("g") == {A0: CommittedOffset(8)}


def test_a_guard_that_is_gone_refuses_everything(store: OffsetStore, coordination: Coordination) -> None:
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


def test_a_guard_at_another_version_refuses_everything(store: OffsetStore, coordination: Coordination) -> None:
    owner = paths.partition_owner("g", "a", 0)
    coordination.create(owner, b"me", make_parents=True)
    store.commit("g", {A0: CommittedOffset(1)}, [Check(owner, 0)])
    coordination.set(owner, b"somebody else")
    with pytest.raises(BadVersionError, match=owner):
        store.commit("g", {A0: FULL, B0: FULL}, [Check(owner, 0)])
    assert store.fetch("g") == {A0: CommittedOffset(1)}


def test_commits_of_many_threads(coordination_case: CoordinationCase, make_store: MakeStore) -> None:
    """First commits of one group from several processes at once make its paths together."""
    stores = [make_store(coordination_case.open()) for _ in range(2)]
    errors: list[Exception] = []

    def commit(number: int) -> None:
        try:
            for offset in range(5):
                stores[number % 2].commit("g", {TopicPartition("t", p): CommittedOffset(offset) for p in (number, 99)})
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert set(stores[0].fetch("g")) == {TopicPartition("t", p) for p in (*range(6), 99)}


def test_groups_members_are_kept_in_the_partition_of_the_group(
    coordination_case: CoordinationCase, tmp_path: Path
) -> None:
    coordination = coordination_case.open()
    of_topic = plugin_host().offset_stores.create("topic", {}, coordination)
    assert isinstance(of_topic, PartitionedStore)
    assert not isinstance(plugin_host().offset_stores.create("coordination", {}, coordination), PartitionedStore)
    led = LedOffsets(tmp_path)
    one, other = of_topic.at_leader(led.log()), of_topic.at_leader(led.log())
    assert one.load_groups() == {}
    member = StoredMember("m-1", None, "m", "/127.0.0.1", 60_000, 10_000, b"topics", b"share")
    states = {name: StoredGroup("consumer", 4, "range", "m-1", 5, (member,)) for name in ("g", "größe")}
    for name, state in states.items():
        one.save_group(name, StoredGroup("consumer", 3, None, None))
        one.save_group(name, state)
    assert other.load_groups() == states
    assert one.groups() == []
    one.commit("g", {A0: FULL})
    one.delete("g", [A0])
    assert set(other.load_groups()) == {"g", "größe"}
    one.commit("g", {A0: FULL})
    one.delete("g", seen={})
    assert set(other.load_groups()) == {"g", "größe"}
    one.delete("g")
    assert other.load_groups() == {"größe": states["größe"]}
    led.close()


def test_a_deposed_leader_stores_and_reads_nothing(coordination_case: CoordinationCase, tmp_path: Path) -> None:
    coordination = coordination_case.open()
    of_topic = plugin_host().offset_stores.create("topic", {}, coordination)
    assert isinstance(of_topic, PartitionedStore)
    led = LedOffsets(tmp_path)
    deposed = of_topic.at_leader(led.log())
    deposed.commit("g", {A0: CommittedOffset(1)})
    led.next_epoch()
    successor = of_topic.at_leader(led.log())
    for call in (lambda: deposed.commit("g", {A0: CommittedOffset(2)}), lambda: deposed.fetch("g")):
        with pytest.raises(BrokerError) as raised:
            call()
        assert raised.value.code is ErrorCode.not_leader_or_follower
    assert successor.fetch("g") == {A0: CommittedOffset(1)}
    led.lose()
    with pytest.raises(BrokerError, match="does not lead"):
        successor.commit("g", {A0: CommittedOffset(3)})
    led.close()


def test_what_the_coordination_store_writes(coordination: Coordination) -> None:
    def make_store(coordination: Coordination) -> OffsetStore:
        return plugin_host().offset_stores.create("coordination", {}, coordination)

    make_store(coordination).commit("g", {A0: FULL})
    data, _ = coordination.get("/consumers/g/offsets/a/0")
    assert json.loads(data) == {
        "version": 1,
        "offset": 7,
        "leaderEpoch": 3,
        "metadata": 'größe {"x": 1}',
        "commitTimestamp": 1_700_000_000_000,
    }
    coordination.set("/consumers/g/offsets/a/0", b"42?")
    with pytest.raises(CoordinationError, match="/consumers/g/offsets/a/0"):
        make_store(coordination).fetch("g")
