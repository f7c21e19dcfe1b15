"""The coordinator's commits: in order, refused once another broker has the group, and of one topic id only."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from klamm.core.broker.coordinator import group_service, key_sequencer
from klamm.core.broker.coordinator.group_service import GroupService, OffsetCommitter
from klamm.core.broker.session.session_contact import SessionContact
from klamm.core.broker.workers import Workers
from klamm.core.cluster.image import NO_LEADER, BrokerNode, ClusterImage, PartitionImage, TopicImage
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import BrokerIdNode, TopicNode
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.errors import ErrorCode
from klamm.core.groups.coordinator.requests import JoinRequest, SyncRequest
from klamm.core.interfaces.coordination import Check, Coordination, SessionEvent
from klamm.core.interfaces.offsets import CommittedOffset, GroupStore, OffsetStore
from klamm.core.plugins import plugin_host
from klamm.core.records.partition import TopicPartition
from klamm.plugins.coordination.embedded import EmbeddedConfig, EmbeddedCoordination
from klamm.plugins.offsets.coordination import CoordinationOffsetStore
from klamm.plugins.offsets.topic import TopicOffsetStore
from klammtest.brokers.inprocess import broker_thread
from klammtest.clients.members import delete_topic, write_topic
from klammtest.guarantees import guarantee
from klammtest.waiting import PATIENCE_S, eventually

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
BOTH = pytest.mark.parametrize("plugin", ["coordination", "topic"])
PATIENT = {"offsets.topic.num.partitions": 1, "offsets.commit.timeout.ms": 60_000}


class Cluster:
    """A tree with two topics, and for the store that keeps offsets in a topic a broker that leads it."""

    def __init__(self, tree: Path, plugin: str) -> None:
        self.tree = tree
        self.plugin = plugin
        self._opened: list[EmbeddedCoordination] = []
        self._stores: list[OffsetStore] = []
        self.own = self.open()
        for topic in ("t", "u"):
            write_topic(self.own, topic, 1)

    def open(self) -> Coordination:
        self._opened.append(EmbeddedCoordination(EmbeddedConfig(path=self.tree)))
        self._opened[-1].start()
        return self._opened[-1]

    def store(self, coordination: Coordination) -> OffsetStore:
        keys = PATIENT if self.plugin == "topic" else {}
        self._stores.append(plugin_host().offset_stores.create(self.plugin, keys, coordination))
        return self._stores[-1]

    def id_of(self, topic: str) -> UUID:
        return TopicNode.decode(paths.topic(topic), self.own.get(paths.topic(topic))[0]).topic_id

    def offset(self, partition: TopicPartition, offset: int) -> dict[TopicPartition, CommittedOffset]:
        return {partition: CommittedOffset(offset, topic_id=self.id_of(partition.topic))}

    def end_session(self, session_id: int) -> None:
        """As another process does once its heartbeats are late."""
        tree = self._opened[0]._tree
        assert tree is not None
        with tree.write(self.own.session_id) as transaction:
            transaction.end_session(session_id)

    def close(self) -> None:
        for store in self._stores:
            store.close()
        for coordination in self._opened:
            coordination.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    callspec = getattr(request.node, "callspec", None)
    plugin = callspec.params.get("plugin", "coordination") if callspec else "coordination"
    tree = tmp_path / "tree.db"
    if plugin == "coordination":
        made = Cluster(tree, plugin)
        yield made
        made.close()
        return
    with broker_thread(tmp_path / "broker", {"plugin": "embedded", "path": str(tree)}) as running:
        made = Cluster(tree, plugin)
        store = made.store(made.own)
        store.commit("first", {T0: CommittedOffset(0)})  # the offsets' topic is made while there is one broker
        assert running.advertised
        yield made
        made.close()


@asynccontextmanager
async def coordinator(
    cluster: Cluster,
    broker_id: int,
    wrap: Callable[[OffsetStore], OffsetStore] = lambda store: store,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[GroupService]:
    """A broker's groups; in its image it is alone, so every group is its own."""
    coordination = cluster.open()
    node = BrokerIdNode(host="127.0.0.1", port=1, endpoints=("PLAINTEXT://127.0.0.1:1",), timestamp=0)
    coordination.create(paths.broker(broker_id), node.encode(), ephemeral=True, make_parents=True)
    image = ClusterImage("c", broker_id, {broker_id: BrokerNode(broker_id, "127.0.0.1", 1, 0)}, {})
    config = BrokerConfig(broker_id=broker_id, group_initial_rebalance_delay_ms=0)
    workers, store = Workers(1), wrap(cluster.store(coordination))
    service = GroupService(config, coordination, store, workers, lambda: image, clock)
    service.start()
    while service.not_mine("g") is not None:
        await asyncio.sleep(0.01)
    try:
        yield service
    finally:
        await service.stop()
        workers.close()


async def stable_member(service: GroupService) -> OffsetCommitter:
    """Joins a group as its only member, and returns the sender of its commits."""
    protocols = (("range", b""),)
    request = JoinRequest("g", "", "consumer", protocols, 60_000, 60_000, member_id_required=False)
    joined = await service.join(request)
    assert joined.error is ErrorCode.none
    synced = await service.sync(SyncRequest("g", joined.member_id, joined.generation))
    assert synced.error is ErrorCode.none
    return OffsetCommitter(joined.member_id, joined.generation)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S * 2))


def without_guards(patch: pytest.MonkeyPatch) -> None:
    """As it was: the store is told nothing of who coordinates the group."""

    def store(
        service: GroupService, group: str, offsets: Mapping[TopicPartition, CommittedOffset], _: list[Check]
    ) -> set[TopicPartition]:
        service._offsets.commit(group, offsets)
        return set()

    patch.setattr(GroupService, "_store", store)


@guarantee("B8", "a coordinator that was paused stores nothing over its successor's", plant=without_guards)
@BOTH
def test_a_paused_coordinator_stores_nothing_over_its_successors_commit(cluster: Cluster, plugin: str) -> None:
    async def test() -> None:
        async with coordinator(cluster, 5) as paused, coordinator(cluster, 6) as successor:
            mine = await stable_member(paused)
            assert set((await paused.commit("g", mine, cluster.offset(T0, 100))).values()) == {ErrorCode.none}
            # The first broker sleeps: its image is old, its groups are as they were.
            other = await stable_member(successor)
            assert set((await successor.commit("g", other, cluster.offset(T0, 150))).values()) == {ErrorCode.none}
            late = await paused.commit("g", mine, cluster.offset(T0, 120))
            assert (await successor.fetch("g", [T0]))[T0].offset == 150
            assert late == {T0: ErrorCode.not_coordinator}
            assert paused.coordinator.heartbeat("g", *mine[:2]) is ErrorCode.unknown_member_id
            assert successor.coordinator.heartbeat("g", *other[:2]) is ErrorCode.none

    run(test())


@guarantee("B8", "a coordinator without a registration stores nothing", plant=without_guards)
@BOTH
def test_a_commit_of_nobodys_member_is_refused_once_the_registration_is_gone(cluster: Cluster, plugin: str) -> None:
    async def test() -> None:
        async with coordinator(cluster, 5) as paused:
            assert set((await paused.commit("g", OffsetCommitter(), cluster.offset(T0, 1))).values()) == {
                ErrorCode.none
            }
            cluster.own.delete(paths.broker(5))
            late = await paused.commit("g", OffsetCommitter(), cluster.offset(T0, 2))
            assert (await paused.fetch("g", [T0]))[T0].offset == 1
            assert late == {T0: ErrorCode.not_coordinator}

    run(test())


def expired_is_away(patch: pytest.MonkeyPatch) -> None:
    """As it was: a coordinator whose session is over goes on as one whose coordination does not answer."""
    patch.setattr(SessionContact, "expired", property(lambda _: False))
    patch.setattr(SessionContact, "away", property(lambda contact: contact._event is not SessionEvent.CONNECTED))
    patch.setattr(SessionContact, "certain", property(lambda _: True))


@guarantee("B8", "a coordinator that knows its session to be over stores nothing", plant=expired_is_away)
@BOTH
def test_a_coordinator_whose_session_is_over_stores_nothing(cluster: Cluster, plugin: str) -> None:
    async def test() -> None:
        async with coordinator(cluster, 5) as paused, coordinator(cluster, 6) as successor:
            mine = await stable_member(paused)
            assert await paused.commit("g", mine, cluster.offset(T0, 100)) == {T0: ErrorCode.none}
            cluster.end_session(paused._coordination.session_id)
            other = await stable_member(successor)
            assert await successor.commit("g", other, cluster.offset(T0, 150)) == {T0: ErrorCode.none}
            ended = lambda: paused._session._event is SessionEvent.EXPIRED  # noqa: E731
            await asyncio.to_thread(eventually, ended, "the coordinator is told that its session is over")
            late = await paused.commit("g", mine, cluster.offset(T0, 120))
            assert (await successor.fetch("g", [T0]))[T0].offset == 150
            assert late == {T0: ErrorCode.not_coordinator}
            # A new session does not bring the group back.
            await asyncio.to_thread(paused._coordination.restart)
            assert await paused.commit("g", mine, cluster.offset(T0, 121)) == {T0: ErrorCode.not_coordinator}
            assert (await successor.fetch("g", [T0]))[T0].offset == 150

    run(test())


def away_for_any_time(patch: pytest.MonkeyPatch) -> None:
    """As it was: commits are taken without guards until the coordination answers."""
    patch.setattr(SessionContact, "certain", property(lambda _: True))


@guarantee("B8", "without the coordination commits are taken for a session time-out at most", plant=away_for_any_time)
@pytest.mark.parametrize("plugin", ["topic"])
def test_commits_without_the_coordination_are_bounded(cluster: Cluster, plugin: str) -> None:
    now = [1000.0]

    async def test() -> None:
        async with coordinator(cluster, 5, clock=lambda: now[0]) as cut_off, coordinator(cluster, 6) as successor:
            mine = await stable_member(cut_off)
            assert await cut_off.commit("g", mine, cluster.offset(T0, 100)) == {T0: ErrorCode.none}
            cut_off._session.event(SessionEvent.SUSPENDED)
            assert await cut_off.commit("g", mine, cluster.offset(T0, 110)) == {T0: ErrorCode.none}
            now[0] += cut_off._coordination.session_timeout_s + 1.0
            other = await stable_member(successor)
            assert await successor.commit("g", other, cluster.offset(T0, 150)) == {T0: ErrorCode.none}
            late = await cut_off.commit("g", mine, cluster.offset(T0, 120))
            assert (await successor.fetch("g", [T0]))[T0].offset == 150
            assert late == {T0: ErrorCode.coordinator_not_available}

    run(test())


def test_a_group_that_comes_back_is_entered_again(cluster: Cluster) -> None:
    """Its coordinator was another broker for a while; the members join again, and commit."""

    async def test() -> None:
        async with coordinator(cluster, 5) as first, coordinator(cluster, 6) as second:
            old = await stable_member(first)
            await stable_member(second)
            assert await first.commit("g", old, cluster.offset(T0, 1)) == {T0: ErrorCode.not_coordinator}
            again = await stable_member(first)
            assert await first.commit("g", again, cluster.offset(T0, 2)) == {T0: ErrorCode.none}

    run(test())


class SlowStore:
    """The store, whose first commit waits for `go_on`."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        self.needs_coordination = store.needs_coordination
        self.in_first, self.go_on, self.stored_first = threading.Event(), threading.Event(), threading.Event()

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Check] = ()
    ) -> None:
        first = not self.in_first.is_set()
        if first:
            self.in_first.set()
            assert self.go_on.wait(PATIENCE_S)
        self._store.commit(group, offsets, guards)
        if first:
            self.stored_first.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def without_turns(patch: pytest.MonkeyPatch) -> None:
    async def after(_: object, call: Coroutine[Any, Any, Any]) -> Any:
        return await call

    patch.setattr(key_sequencer, "_after", after)


@guarantee("B7", "a slow commit is not stored after a newer one of its group", plant=without_turns)
def test_a_slow_commit_of_a_client_that_has_gone_is_not_stored_after_a_newer_one(cluster: Cluster) -> None:
    stores: list[SlowStore] = []

    def slow(store: OffsetStore) -> OffsetStore:
        stores.append(SlowStore(store))
        return stores[0]

    async def test() -> None:
        async with coordinator(cluster, 5, slow) as service:
            old = asyncio.create_task(service.commit("g", OffsetCommitter(), cluster.offset(T0, 950)))
            while not stores[0].in_first.is_set():
                await asyncio.sleep(0.01)
            old.cancel()  # the client's connection ends; it comes again by another one
            new = asyncio.create_task(service.commit("g", OffsetCommitter(), cluster.offset(T0, 960)))
            assert await service.commit("h", OffsetCommitter(), cluster.offset(U0, 1)) == {U0: ErrorCode.none}
            await asyncio.wait([new], timeout=3.0)  # it only ends here where it has overtaken the first
            stores[0].go_on.set()
            assert await new == {T0: ErrorCode.none}
            while not stores[0].stored_first.is_set():
                await asyncio.sleep(0.01)
            assert (await service.fetch("g", [T0]))[T0].offset == 960

    run(test())


class SlowlyReadStore:
    """The store, one of whose fetches of group "g", the first unless others are passed, is returned when `go_on` is
    set."""

    def __init__(self, store: OffsetStore, passed: int = 0) -> None:
        self._store = store
        self._passed = passed
        self.was_read, self.go_on = threading.Event(), threading.Event()

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        found = self._store.fetch(group, partitions)
        if group != "g":
            return found
        self._passed -= 1
        if self._passed < 0 and not self.was_read.is_set():
            self.was_read.set()
            assert self.go_on.wait(PATIENCE_S)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def expired_at_any_time(patch: pytest.MonkeyPatch) -> None:
    """As it was: offsets expire beside the commits of their group, whatever was committed since they were read."""
    deletes_whatever_is_there(patch)
    begin = key_sequencer.KeySequencer.begin

    def beside(self: Any, key: str, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        if "_expire" in call.__name__:
            return asyncio.get_running_loop().create_task(call)
        return begin(self, key, call)

    patch.setattr(key_sequencer.KeySequencer, "begin", beside)


@guarantee("B7", "offsets that expire do not take a newer commit with them", plant=expired_at_any_time)
@BOTH
def test_a_commit_during_the_expiry_of_its_group_stays(cluster: Cluster, plugin: str) -> None:
    stores: list[SlowlyReadStore] = []

    def slow(store: OffsetStore) -> OffsetStore:
        stores.append(SlowlyReadStore(store, passed=1))
        return stores[0]

    async def test() -> None:
        async with coordinator(cluster, 5, slow) as service:
            assert await service.commit("g", OffsetCommitter(), cluster.offset(T0, 1)) == {T0: ErrorCode.none}
            expiry = asyncio.create_task(service.expire_offsets(2**53))
            while not stores[0].was_read.is_set():
                await asyncio.sleep(0.01)
            new = asyncio.create_task(service.commit("g", OffsetCommitter(), cluster.offset(T0, 2)))
            for number in range(30):  # time enough for the commit to overtake the expiry, where it can
                assert await service.commit("h", OffsetCommitter(), cluster.offset(U0, number)) == {U0: ErrorCode.none}
            stores[0].go_on.set()
            await expiry
            assert await new == {T0: ErrorCode.none}
            assert (await service.fetch("g", [T0]))[T0].offset == 2

    run(test())


def deletes_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    """As it was: a deletion has no condition."""
    for store in (CoordinationOffsetStore, TopicOffsetStore):

        def delete(
            self: Any, group: str, partitions: Any = None, *_: Any, delete: Any = store.delete, **__: object
        ) -> None:
            delete(self, group, partitions)

        patch.setattr(store, "delete", delete)


@guarantee("A3", "a deletion leaves what the new topic has by then", plant=deletes_whatever_is_there)
@BOTH
def test_a_registry_commit_during_a_deletions_second_step_stays(cluster: Cluster, plugin: str) -> None:
    stores: list[SlowlyReadStore] = []

    def slow(store: OffsetStore) -> Any:
        stores.append(SlowlyReadStore(store))
        return stores[0]

    async def test() -> None:
        members = cluster.store(cluster.own)
        old_id = cluster.id_of("t")
        members.commit("g", {**cluster.offset(T0, 1500), **cluster.offset(U0, 7)})
        delete_topic(cluster.own, "t")
        write_topic(cluster.own, "t", 1)
        async with coordinator(cluster, 5, slow) as service:
            forgetting = asyncio.create_task(service.forget_topics({old_id: "t"}))
            await asyncio.to_thread(eventually, stores[0].was_read.is_set, "the deletion has read the offsets")
            await asyncio.to_thread(members.commit, "g", cluster.offset(T0, 2))
            stores[0].go_on.set()
            await forgetting
            assert {name: found.offset for name, found in members.fetch("g").items()} == {T0: 2, U0: 7}

    run(test())


@guarantee("B8", "a paused coordinator expires nothing of its successor's groups", plant=deletes_whatever_is_there)
@pytest.mark.parametrize("commits", [True, False])
@BOTH
def test_a_paused_coordinator_expires_nothing(cluster: Cluster, plugin: str, commits: bool) -> None:
    stores: list[SlowlyReadStore] = []

    def slow(store: OffsetStore) -> Any:
        stores.append(SlowlyReadStore(store, passed=1))
        return stores[0]

    async def test() -> None:
        async with coordinator(cluster, 5, slow) as paused, coordinator(cluster, 6) as successor:
            assert await paused.commit("g", OffsetCommitter(), cluster.offset(T0, 100)) == {T0: ErrorCode.none}
            expiry = asyncio.create_task(paused.expire_offsets(2**53))
            await asyncio.to_thread(eventually, stores[0].was_read.is_set, "the expiry has read the offsets")
            other = await stable_member(successor)
            if commits:
                assert await successor.commit("g", other, cluster.offset(T0, 150)) == {T0: ErrorCode.none}
            stores[0].go_on.set()
            await expiry
            assert (await successor.fetch("g", [T0]))[T0].offset == (150 if commits else 100)

    run(test())


@BOTH
def test_offsets_of_deserted_groups_expire(cluster: Cluster, plugin: str) -> None:
    """Not those of a group with a member, nor of one that committed since."""

    async def test() -> None:
        async with coordinator(cluster, 5) as service:
            mine = await stable_member(service)
            assert await service.commit("g", mine, cluster.offset(T0, 1)) == {T0: ErrorCode.none}
            for group, when in (("old", 1_000), ("new", 2**52)):
                offsets = {p: replace(o, commit_timestamp_ms=when) for p, o in cluster.offset(T0, 1).items()}
                assert await service.commit(group, OffsetCommitter(), offsets) == {T0: ErrorCode.none}
            await service.expire_offsets(2**52)
            assert {"g", "new"} <= set(await service.with_offsets())
            assert "old" not in await service.with_offsets()

    run(test())


@guarantee("A2", "a broker stores no offset of a topic that was deleted", plant=without_guards)
@BOTH
def test_a_commit_of_a_deleted_topic_is_refused(cluster: Cluster, plugin: str) -> None:
    async def test() -> None:
        async with coordinator(cluster, 5) as service:
            old = {**cluster.offset(T0, 1500), **cluster.offset(U0, 7)}
            assert set((await service.commit("g", OffsetCommitter(), cluster.offset(T0, 1400))).values()) == {
                ErrorCode.none
            }
            delete_topic(cluster.own, "t")
            write_topic(cluster.own, "t", 1)
            codes = await service.commit("g", OffsetCommitter(), old)
            assert {p: o.offset for p, o in (await service.fetch("g", None)).items()} == {U0: 7}
            assert codes == {T0: ErrorCode.unknown_topic_or_partition, U0: ErrorCode.none}

    run(test())


def take_any_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_service, "is_of", lambda *_: True)


@guarantee("A2", "OffsetFetch passes over offsets of the deleted topic", plant=take_any_offset)
@BOTH
def test_a_fetch_passes_over_offsets_of_the_deleted_topic(cluster: Cluster, plugin: str) -> None:
    store = cluster.store(cluster.own)
    store.commit("g", {T0: CommittedOffset(1500, topic_id=uuid4()), U0: CommittedOffset(3)})

    async def test() -> None:
        async with coordinator(cluster, 5) as service:
            assert set(await service.fetch("g", [T0, U0])) == {U0}
            store.commit("g", cluster.offset(T0, 4))
            assert (await service.fetch("g", [T0]))[T0].offset == 4, "of a topic that the image does not know yet"

    run(test())


class PlacedStore:
    """A store in a topic that keeps a group in the partition whose number is in its name."""

    topic = "__consumer_offsets"
    needs_coordination = False

    def partition_of(self, group: str, partitions: int) -> int:
        return int(group.removeprefix("g")) % partitions


class Listening:
    def on_session(self, _: object) -> None:
        """Nobody tells anything."""


def chosen_by_name(patch: pytest.MonkeyPatch) -> None:
    """As it was: whoever the name chose of the live brokers, and another one once that was paused."""
    patch.setattr(group_service, "PartitionedStore", GroupStore)


@guarantee("B8", "the leader of a group's partition coordinates it, nobody else", plant=chosen_by_name)
def test_the_leader_of_a_groups_partition_coordinates_it() -> None:
    brokers = {number: BrokerNode(number, "127.0.0.1", 1, 0) for number in (0, 1)}
    leaders = {number: PartitionImage(number % 3, 0, (number % 3,), (number % 3,)) for number in range(6)}
    offsets = TopicImage("__consumer_offsets", uuid4(), leaders)
    image = ClusterImage("c", 0, brokers, {offsets.name: offsets})
    store: Any = PlacedStore()
    listening: Any = Listening()
    workers = Workers(1)
    try:
        service = GroupService(BrokerConfig(broker_id=0), listening, store, workers, lambda: image)
        found = {number: service.coordinator_of(f"g{number}") for number in range(12)}
        assert found == {number: (0, 1, NO_LEADER)[number % 3] for number in range(12)}
        refused = [service.not_mine(f"g{number}") for number in range(3)]
        assert refused == [None, ErrorCode.not_coordinator, ErrorCode.not_coordinator]
        nothing = ClusterImage("c", 0, brokers, {})
        before = GroupService(BrokerConfig(broker_id=0), listening, store, workers, lambda: nothing)
        assert {before.coordinator_of(f"g{number}") for number in range(12)} == {0, 1}
    finally:
        workers.close()
