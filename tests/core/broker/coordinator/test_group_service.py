"""The coordinator's commits: in order, refused once another broker has the group, and of one topic id only."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from klamm.core.broker.coordinator import coordinated_offsets, key_sequencer
from klamm.core.broker.coordinator.coordinator_topic import CoordinatorTopic
from klamm.core.broker.coordinator.group_locks import GroupLocks
from klamm.core.broker.coordinator.group_service import GroupService
from klamm.core.broker.coordinator.guarded_commits import GuardedCommits
from klamm.core.broker.coordinator.leader_fence import LeaderFence
from klamm.core.broker.coordinator.offset_commits import OffsetCommitter
from klamm.core.broker.coordinator.runtime import CoordinatorRuntime
from klamm.core.broker.coordinator.shard_log import ShardLog
from klamm.core.broker.coordinator.stored_groups import StoredGroups
from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.broker.replication.replica import Replica
from klamm.core.broker.session.session_contact import SessionContact
from klamm.core.broker.workers import Workers
from klamm.core.cluster.changes import incarnation_path
from klamm.core.cluster.image import ClusterImage, PartitionImage, TopicImage
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import TopicNode
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import BrokerError, ErrorCode, LogEndMovedError
from klamm.core.groups.coordinator.requests import GroupState, JoinRequest, MemberIdentity, SyncRequest
from klamm.core.groups.group_protocol_lock import GroupProtocol, acquire, active_protocol
from klamm.core.groups.offsets_topic import OFFSETS_TOPIC
from klamm.core.groups.records.stored_group import StoredGroup
from klamm.core.interfaces.coordination import Check, Coordination, SessionEvent
from klamm.core.interfaces.offsets import (
    CommittedOffset,
    OffsetsTopicSettings,
    OffsetStore,
)
from klamm.core.log.partition_log import LogRead, PartitionLog, ReadIsolation
from klamm.core.plugins import plugin_host
from klamm.core.records.codecs import CodecTable
from klamm.core.records.offset_and_epoch import OffsetAndEpoch
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.partition_state import NO_LEADER
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klamm.plugins.offsets.coordination import CoordinationOffsetStore
from klammtest.brokers.led import lead, leading, stored_groups
from klammtest.clients.grouping import NOT_YET
from klammtest.clients.members import delete_topic, write_topic
from klammtest.clusters.images import broker_node, partition_image
from klammtest.guarantees import guarantee
from klammtest.waiting import PATIENCE_S, eventually

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
BOTH = pytest.mark.parametrize("plugin", ["coordination", "topic"])
STATE = paths.partition_state(OFFSETS_TOPIC, 0)


class Cluster:
    """A tree with two topics, and `__consumer_offsets` with one partition on disk, which each coordinator takes for its
    own: `elect` makes it the leader."""

    def __init__(self, folder: Path, plugin: str) -> None:
        self.tree = folder / "tree.db"
        self.plugin = plugin
        self.epoch = 0
        self.views: dict[int, View] = {}
        self._opened: list[EmbeddedCoordination] = []
        self.own = self.open()
        for topic in ("t", "u", OFFSETS_TOPIC):
            write_topic(self.own, topic, 1)
        self.own.create(STATE, b"", make_parents=True)
        tp = TopicPartition(OFFSETS_TOPIC, 0)
        self.log = PartitionLog.open(
            folder / "log", tp, self.id_of(OFFSETS_TOPIC), TopicConfig(cleanup_policy="compact"), codecs=CodecTable()
        )

    def open(self) -> Coordination:
        self._opened.append(EmbeddedCoordination(EmbeddedConfig(path=self.tree)))
        self._opened[-1].start()
        return self._opened[-1]

    def store(self, coordination: Coordination) -> OffsetStore:
        return plugin_host().offset_stores.create(self.plugin, {}, coordination)

    def members(self) -> OffsetStore:
        """The store of members that commit without the coordinator, as registry members do: with the store `topic`
        their records are in the same log."""
        made = self.store(self.own)
        return stored_groups(ProducingLog(self.log, self), self.own) if made.in_offsets_topic else made

    def lead(self, broker_id: int) -> None:
        """Elects the broker, which learns of it."""
        self.views[broker_id].learn(self.elect(broker_id))

    def depose(self, broker_id: int) -> None:
        """Elects nobody that is here; the broker learns of it."""
        self.views[broker_id].learn(self.elect(99))

    def elect(self, broker_id: int) -> PartitionImage:
        """Makes the broker the leader, in the coordination and in the log: in the next leader epoch."""
        self.epoch += 1
        image = partition_image(broker_id, self.epoch, (broker_id,))
        self.own.set(STATE, image.state.encode())
        self.log.lead(self.epoch)
        return image

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
        for coordination in self._opened:
            coordination.close()
        self.log.close()


class View:
    """What a broker knows: the image, and the partition that it serves."""

    def __init__(self, broker_id: int, cluster: Cluster, partitions: Partitions) -> None:
        self._node = broker_node(broker_id)
        self._cluster = cluster
        self._partitions = partitions
        self._replica: Replica | None = None
        self._image = ClusterImage("c", broker_id, {broker_id: self._node}, {})

    def image(self) -> ClusterImage:
        return self._image

    def see(self, other: int) -> None:
        """The broker learns that another one has joined."""
        self._image = replace(self._image, brokers={**self._image.brokers, other: broker_node(other)})

    def learn(self, state: PartitionImage) -> None:
        topic = TopicImage(OFFSETS_TOPIC, self._cluster.log.topic_id, {0: state})
        self._image = replace(self._image, topics={OFFSETS_TOPIC: topic}, version=state.leader_epoch)
        if state.leader != self._node.id:
            self._partitions.remove([self._cluster.log.tp])
        elif self._replica is None:
            self._replica = leading(self._cluster.log, state)
            self._partitions.put(self._replica)
        else:
            lead(self._replica, state)
            self._partitions.put(self._replica)


class ProducingLog:
    """`LedLog` for records that come by Produce: in whichever epoch the log is."""

    codecs = CodecTable()

    def __init__(self, log: PartitionLog, cluster: Cluster) -> None:
        self.partition = log.tp
        self._log = log
        self._cluster = cluster

    def append(self, batch: bytearray) -> int:
        return self._log.append_as_leader(batch, self._cluster.epoch, commit=True).last_offset + 1

    def append_at(self, offset: int, batch: bytearray) -> int | None:
        try:
            result = self._log.append_as_leader(batch, self._cluster.epoch, commit=True, after=OffsetAndEpoch(offset))
        except LogEndMovedError:
            return None
        return result.last_offset + 1

    def read(self, offset: int, max_bytes: int, isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK) -> LogRead:
        return self._log.read(offset, max_bytes, isolation=isolation)


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    callspec = getattr(request.node, "callspec", None)
    made = Cluster(tmp_path, callspec.params.get("plugin", "coordination") if callspec else "coordination")
    yield made
    made.close()


def incarnation_of(broker_id: int, coordination: Coordination) -> str:
    return f"{broker_id}-{coordination.session_id:x}" if coordination.session_id else ""


async def no_topic(*_: object) -> None:
    raise AssertionError("the topic exists")


@asynccontextmanager
async def coordinator(
    cluster: Cluster,
    broker_id: int,
    wrap: Callable[[OffsetStore], Any] = lambda store: store,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[GroupService]:
    """A broker that is elected as the leader of the groups' partition, and stays it in its own image, whoever is
    elected after it. `wrap` is called for what keeps the offsets."""
    coordination = cluster.open()
    registered = incarnation_path(incarnation_of(broker_id, coordination))
    coordination.create(registered, ephemeral=True, make_parents=True)
    partitions = Partitions(BrokerMetrics())
    cluster.views[broker_id] = view = View(broker_id, cluster, partitions)
    cluster.lead(broker_id)
    topic = CoordinatorTopic(
        OFFSETS_TOPIC, "offsets.topic", broker_id, view.image, partitions, OffsetsTopicSettings(), no_topic,
        lambda: incarnation_of(broker_id, coordination),
    )  # fmt: skip
    config = BrokerConfig(broker_id=broker_id, group_initial_rebalance_delay_ms=0)
    workers, store = Workers(1), cluster.store(coordination)
    if not store.in_offsets_topic:
        store, wrap = wrap(store), lambda stored: stored

    def stored(log: ShardLog, coordination: Coordination) -> Any:
        return wrap(StoredGroups(log, coordination))

    service = GroupService(config, coordination, store, workers, view.image, topic, CodecTable(), clock, stored)
    service.start()
    await once_coordinated(service)
    try:
        yield service
    finally:
        await service.stop()
        workers.close()


async def once_coordinated(service: GroupService) -> None:
    while service.not_mine("g") is not None:
        await asyncio.sleep(0.01)


def join_request(group: str = "g") -> JoinRequest:
    return JoinRequest(group, "", "consumer", (("range", b""),), 60_000, 60_000, member_id_required=False)


async def stable_member(service: GroupService, group: str = "g") -> OffsetCommitter:
    """Joins a group as its only member, and returns the sender of its commits."""
    joined = await service.members.join(join_request(group))
    assert joined.error is ErrorCode.none
    synced = await service.members.sync(SyncRequest(group, joined.member_id, joined.generation))
    assert synced.error is ErrorCode.none
    return OffsetCommitter(joined.member_id, joined.generation)


async def member_at(successor: GroupService, former: OffsetCommitter) -> OffsetCommitter:
    """Returns a member at the successor: the former one, if it was loaded."""
    known = successor.coordinator.heartbeat("g", former.member_id, former.generation)
    return former if known is ErrorCode.none else await stable_member(successor)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S * 2))


def without_guards(patch: pytest.MonkeyPatch) -> None:
    """As it was: the store is told nothing of who coordinates the group."""

    def store(
        _: GuardedCommits, store: Any, group: str, offsets: Mapping[TopicPartition, CommittedOffset], __: list[Check]
    ) -> set[TopicPartition]:
        store.commit(group, offsets)
        return set()

    patch.setattr(GuardedCommits, "commit", store)
    patch.setattr(PartitionLog, "_check_may_lead", lambda *_: None)


@guarantee("B8", "a coordinator that was paused stores nothing over its successor's", plant=without_guards)
@BOTH
def test_a_paused_coordinator_stores_nothing_over_its_successors_commit(cluster: Cluster, plugin: str) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            paused = await stack.enter_async_context(coordinator(cluster, 5))
            mine = await stable_member(paused)
            assert set((await paused.commits.commit("g", mine, cluster.offset(T0, 100))).values()) == {ErrorCode.none}
            # The first broker sleeps: its image is old, its groups are as they were.
            successor = await stack.enter_async_context(coordinator(cluster, 6))
            other = await member_at(successor, mine)
            assert set((await successor.commits.commit("g", other, cluster.offset(T0, 150))).values()) == {
                ErrorCode.none
            }
            late = await paused.commits.commit("g", mine, cluster.offset(T0, 120))
            assert (await successor.offsets.fetch("g", [T0]))[T0].offset == 150
            assert late == {T0: ErrorCode.not_coordinator}
            if plugin == "coordination":
                assert paused.coordinator.heartbeat("g", *mine[:2]) is ErrorCode.unknown_member_id
            assert successor.coordinator.heartbeat("g", *other[:2]) is ErrorCode.none

    run(test())


@guarantee("B8", "a coordinator without a registration stores nothing", plant=without_guards)
@BOTH
def test_a_commit_of_nobodys_member_is_refused_once_the_registration_is_gone(cluster: Cluster, plugin: str) -> None:
    async def test() -> None:
        async with coordinator(cluster, 5) as paused:
            assert set((await paused.commits.commit("g", OffsetCommitter(), cluster.offset(T0, 1))).values()) == {
                ErrorCode.none
            }
            cluster.own.delete(incarnation_path(incarnation_of(5, paused._coordination)))
            late = await paused.commits.commit("g", OffsetCommitter(), cluster.offset(T0, 2))
            assert (await paused.offsets.fetch("g", [T0]))[T0].offset == 1
            assert late == {T0: ErrorCode.not_coordinator}

    run(test())


def expired_is_unavailable(patch: pytest.MonkeyPatch) -> None:
    """As it was: a coordinator whose session is over goes on as one whose coordination does not answer."""
    patch.setattr(SessionContact, "expired", property(lambda _: False))
    patch.setattr(SessionContact, "unavailable", property(lambda contact: contact._event is not SessionEvent.CONNECTED))
    patch.setattr(SessionContact, "certain", property(lambda _: True))
    patch.setattr(PartitionLog, "_check_may_lead", lambda *_: None)
    patch.setitem(globals(), "incarnation_of", lambda broker_id, _: str(broker_id))  # it counts as registered


@guarantee("B8", "a coordinator that knows its session to be over stores nothing", plant=expired_is_unavailable)
@BOTH
def test_a_coordinator_whose_session_is_over_stores_nothing(cluster: Cluster, plugin: str) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            paused = await stack.enter_async_context(coordinator(cluster, 5))
            mine = await stable_member(paused)
            assert await paused.commits.commit("g", mine, cluster.offset(T0, 100)) == {T0: ErrorCode.none}
            cluster.end_session(paused._coordination.session_id)
            successor = await stack.enter_async_context(coordinator(cluster, 6))
            other = await member_at(successor, mine)
            assert await successor.commits.commit("g", other, cluster.offset(T0, 150)) == {T0: ErrorCode.none}
            ended = lambda: paused._session._event is SessionEvent.EXPIRED  # noqa: E731
            await asyncio.to_thread(eventually, ended, "the coordinator is told that its session is over")
            late = await paused.commits.commit("g", mine, cluster.offset(T0, 120))
            assert (await successor.offsets.fetch("g", [T0]))[T0].offset == 150
            assert late == {T0: ErrorCode.not_coordinator}
            # A new session does not bring the group back.
            await asyncio.to_thread(paused._coordination.restart)
            assert set((await paused.commits.commit("g", mine, cluster.offset(T0, 121))).values()) <= NOT_YET
            assert (await successor.offsets.fetch("g", [T0]))[T0].offset == 150

    run(test())


def away_for_any_time(patch: pytest.MonkeyPatch) -> None:
    """As it was: commits are taken without guards until the coordination answers."""
    patch.setattr(SessionContact, "certain", property(lambda _: True))


@guarantee("B8", "without the coordination commits are taken for a session time-out at most", plant=away_for_any_time)
@pytest.mark.parametrize("plugin", ["topic"])
def test_commits_without_the_coordination_are_bounded(cluster: Cluster, plugin: str) -> None:
    now = [1000.0]

    async def test() -> None:
        async with AsyncExitStack() as stack:
            cut_off = await stack.enter_async_context(coordinator(cluster, 5, clock=lambda: now[0]))
            mine = await stable_member(cut_off)
            assert await cut_off.commits.commit("g", mine, cluster.offset(T0, 100)) == {T0: ErrorCode.none}
            cut_off._session.event(SessionEvent.SUSPENDED)
            assert await cut_off.commits.commit("g", mine, cluster.offset(T0, 110)) == {T0: ErrorCode.none}
            assert await cut_off.find_coordinator("g") == 5
            now[0] += cut_off._coordination.session_timeout_s + 1.0
            assert await cut_off.find_coordinator("g") == 5, "nobody else could coordinate the group"
            cluster.views[5].see(6)
            assert await cut_off.find_coordinator("g") == NO_LEADER, "a member that waits here asks the others"
            successor = await stack.enter_async_context(coordinator(cluster, 6))
            other = await member_at(successor, mine)
            assert await successor.commits.commit("g", other, cluster.offset(T0, 150)) == {T0: ErrorCode.none}
            late = await cut_off.commits.commit("g", mine, cluster.offset(T0, 120))
            assert (await successor.offsets.fetch("g", [T0]))[T0].offset == 150
            assert late == {T0: ErrorCode.coordinator_not_available}

    run(test())


def test_a_group_that_comes_back_is_entered_again(cluster: Cluster) -> None:
    """Its coordinator was another broker for a while; its members stay members, and commit."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(coordinator(cluster, 5))
            old = await stable_member(first)
            second = await stack.enter_async_context(coordinator(cluster, 6))
            assert second.coordinator.heartbeat("g", *old[:2]) is ErrorCode.none
            assert await first.commits.commit("g", old, cluster.offset(T0, 1)) == {T0: ErrorCode.not_coordinator}
            cluster.lead(5)
            await once_coordinated(first)
            assert await first.commits.commit("g", old, cluster.offset(T0, 2)) == {T0: ErrorCode.none}

    run(test())


@BOTH
def test_groups_are_dropped_with_their_partition_and_loaded_when_it_comes_back(cluster: Cluster, plugin: str) -> None:
    """A join that waits is answered, and the members are members afterwards, with either store."""

    async def test() -> None:
        async with coordinator(cluster, 5) as service:
            mine = await stable_member(service)
            assert await service.commits.commit("g", mine, cluster.offset(T0, 7)) == {T0: ErrorCode.none}
            waiting = asyncio.create_task(service.members.join(join_request()))
            while service.coordinator.describe("g").state is not GroupState.PREPARING_REBALANCE:
                await asyncio.sleep(0.01)
            cluster.depose(5)
            assert (await waiting).error is ErrorCode.not_coordinator
            assert service.not_mine("g") is ErrorCode.not_coordinator
            assert await service.commits.commit("g", mine, cluster.offset(T0, 8)) == {T0: ErrorCode.not_coordinator}
            assert await service.offsets.groups() == []
            assert service.coordinator.group_count == 0
            cluster.lead(5)
            await once_coordinated(service)
            assert (await service.offsets.fetch("g", [T0]))[T0].offset == 7
            assert service.coordinator.heartbeat("g", mine.member_id, mine.generation) is ErrorCode.none

    run(test())


def test_the_load_of_an_epoch_that_is_over_has_no_effect(cluster: Cluster) -> None:
    """It has read the groups; before they are restored the partition goes, and comes back."""
    loads: list[SlowlyLoadedStore] = []

    async def test() -> None:
        cluster.plugin = "topic"
        async with coordinator(cluster, 5, second_load_is_slow(loads)) as service:
            mine = await stable_member(service)
            cluster.lead(5)
            assert service.not_mine("g") is ErrorCode.coordinator_load_in_progress
            await asyncio.to_thread(eventually, loads[1].was_read.is_set, "the second load has read the groups")
            assert service.not_mine("g") is ErrorCode.coordinator_load_in_progress
            cluster.depose(5)
            assert service.not_mine("g") is ErrorCode.not_coordinator
            loads[1].go_on.set()
            await asyncio.sleep(0)
            assert service.coordinator.group_count == 0
            cluster.lead(5)
            await once_coordinated(service)
            assert service.coordinator.heartbeat("g", mine.member_id, mine.generation) is ErrorCode.none
            assert len(loads) == 3

    run(test())


@pytest.mark.parametrize("then", ["loaded", "deposed", "stopped", "too slow"])
def test_a_join_waits_while_its_partition_is_loaded(
    cluster: Cluster, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else librdkafka would ask 3 s later again: a first group would begin late, and so would one after a fail-over."""
    loads: list[SlowlyLoadedStore] = []
    longest_s = 0.05 if then == "too slow" else 10 * PATIENCE_S
    monkeypatch.setattr("klamm.core.broker.coordinator.group_members._LONGEST_LOAD_S", longest_s)

    async def test() -> None:
        cluster.plugin = "topic"
        async with coordinator(cluster, 5, second_load_is_slow(loads)) as service:
            cluster.lead(5)
            assert service.not_mine("g") is ErrorCode.coordinator_load_in_progress
            joining = asyncio.create_task(service.members.join(join_request()))
            await asyncio.to_thread(eventually, loads[1].was_read.is_set, "the second load has read the groups")
            if then == "loaded":
                assert not joining.done()
                loads[1].go_on.set()
            elif then == "deposed":
                cluster.depose(5)
            elif then == "stopped":
                await service.stop()
            assert (await joining).error is {
                "loaded": ErrorCode.none,
                "deposed": ErrorCode.not_coordinator,
                "stopped": ErrorCode.coordinator_not_available,
                "too slow": ErrorCode.coordinator_load_in_progress,
            }[then]
            loads[1].go_on.set()

    run(test())


def second_load_is_slow(loads: list[SlowlyLoadedStore]) -> Callable[[OffsetStore], Any]:
    """Returns a wrapper of stores that notes them in `loads`."""

    def wrapped(store: OffsetStore) -> Any:
        loads.append(SlowlyLoadedStore(store, slow=len(loads) == 1))
        return loads[-1]

    return wrapped


class SlowlyLoadedStore:
    """The store, whose `load_groups` returns when `go_on` is set, if it is slow."""

    def __init__(self, store: OffsetStore, *, slow: bool) -> None:
        self._store = store
        self._slow = slow
        self.was_read, self.go_on = threading.Event(), threading.Event()

    def load_groups(self) -> Any:
        found = self._store.load_groups()  # type: ignore[attr-defined]
        self.was_read.set()
        assert not self._slow or self.go_on.wait(PATIENCE_S)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("plugin", ["topic"])
def test_sessions_begin_when_the_load_has_ended(cluster: Cluster, plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No heartbeat is accepted during the load, which takes longer than the sessions here."""
    now, loaded = [1000.0], list[str]()
    acquire = GroupLocks.acquire

    async def slowly(locks: GroupLocks, group: str, fence: LeaderFence) -> ErrorCode | None:
        refused = await acquire(locks, group, fence)
        now[0] += 61.0
        locks._coordinator.tick()
        loaded.append(group)
        return refused

    async def test() -> None:
        async with coordinator(cluster, 5, clock=lambda: now[0]) as service:
            members = {group: await stable_member(service, group) for group in ("g", "h")}
            monkeypatch.setattr(GroupLocks, "acquire", slowly)
            cluster.depose(5)
            service._runtime.refresh()
            cluster.lead(5)
            await once_coordinated(service)
            assert sorted(loaded) == ["g", "h"]
            now[0] += 59.0
            service.coordinator.tick()
            for group, member in members.items():
                assert service.coordinator.heartbeat(group, *member[:2]) is ErrorCode.none
            now[0] += 61.0
            service.coordinator.tick()
            assert service.coordinator.heartbeat("g", *members["g"][:2]) is ErrorCode.unknown_member_id

    run(test())


def test_there_are_no_guards_while_a_group_is_loaded(cluster: Cluster) -> None:
    """A request that waited since the group was served here before would be written without a check of the state."""

    async def test() -> None:
        cluster.plugin = "coordination"
        async with coordinator(cluster, 5) as service:
            assert len(service.offsets.guards("g")) == 2
            (entry,) = service._runtime._led.values()
            entry.active = False
            with pytest.raises(BrokerError, match="group 'g' is not coordinated here now"):
                service.offsets.guards("g")

    run(test())


@pytest.mark.parametrize("plugin", ["topic"])
def test_sessions_end_after_a_tick_has_failed(
    cluster: Cluster, plugin: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, failures = [1000.0], [RuntimeError("planted"), RuntimeError("planted")]

    def failing(_: CoordinatorRuntime) -> None:
        if failures:
            raise failures.pop()

    async def test() -> None:
        async with coordinator(cluster, 5, clock=lambda: now[0]) as service:
            member = await stable_member(service)
            monkeypatch.setattr(CoordinatorRuntime, "refresh", failing)
            while failures:
                await asyncio.sleep(0.01)
            now[0] += 61.0
            while service.coordinator.heartbeat("g", *member[:2]) is ErrorCode.none:
                await asyncio.sleep(0.01)
                now[0] += 61.0  # a heartbeat begins the session anew

    run(test())
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 2
    assert all(line.startswith("checking the groups failed, retrying: RuntimeError: planted") for line in said)


def test_the_locks_of_a_load_that_is_over_are_released(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader epoch ends between the locks of two groups."""
    acquired = list[str]()
    acquire = GroupLocks.acquire

    async def first_only(locks: GroupLocks, group: str, fence: LeaderFence) -> ErrorCode | None:
        if acquired:
            await asyncio.sleep(PATIENCE_S)
        refused = await acquire(locks, group, fence)
        acquired.append(group)
        return refused

    async def test() -> None:
        cluster.plugin = "topic"
        async with coordinator(cluster, 5) as service:
            members = {group: await stable_member(service, group) for group in ("g", "h")}
            cluster.depose(5)
            service._runtime.refresh()
            with monkeypatch.context() as patch:
                patch.setattr(GroupLocks, "acquire", first_only)
                cluster.lead(5)
                service._runtime.refresh()
                while not acquired:
                    await asyncio.sleep(0.01)
                cluster.depose(5)
                service._runtime.refresh()
                released = lambda: active_protocol(cluster.own, acquired[0]) is None  # noqa: E731
                await asyncio.to_thread(eventually, released, "the lock is released")
            cluster.lead(5)
            await once_coordinated(service)
            for group, member in members.items():
                codes = await service.commits.commit(group, member, cluster.offset(T0, 1))
                assert codes == {T0: ErrorCode.none}

    run(test())


def test_a_change_of_the_in_sync_replicas_refuses_no_commit(cluster: Cluster) -> None:
    """The state of the partition has a newer version then, in the same leader epoch."""

    async def test() -> None:
        async with coordinator(cluster, 5) as service:
            mine = await stable_member(service)
            for committer, offset in ((OffsetCommitter(), 1), (mine, 2)):
                cluster.own.set(STATE, cluster.own.get(STATE)[0])
                codes = await service.commits.commit("g" if offset == 2 else "h", committer, cluster.offset(T0, offset))
                assert codes == {T0: ErrorCode.none}

    run(test())


@pytest.mark.parametrize(("partitions", "metadata"), [(4_100, ""), (240, "m" * 4_096)], ids=["operations", "bytes"])
def test_a_commit_that_is_too_large_for_a_transaction_is_not_retried(
    cluster: Cluster, partitions: int, metadata: str
) -> None:
    async def test() -> None:
        async with coordinator(cluster, 5) as service:
            offset = CommittedOffset(7, metadata=metadata, topic_id=cluster.id_of("t"))
            large = {TopicPartition("t", number): offset for number in range(partitions)}
            codes = await service.commits.commit("g", OffsetCommitter(), large)
            assert set(codes.values()) == {ErrorCode.invalid_commit_offset_size}
            assert await service.commits.commit("g", OffsetCommitter(), cluster.offset(T0, 1)) == {T0: ErrorCode.none}

    run(test())


def test_a_commit_from_outside_the_group_is_refused_at_a_deposed_coordinator(cluster: Cluster) -> None:
    """Nobody holds the group's lock: the state of its partition decides."""

    async def test() -> None:
        async with coordinator(cluster, 5) as paused:
            assert await paused.commits.commit("g", OffsetCommitter(), cluster.offset(T0, 1)) == {T0: ErrorCode.none}
            cluster.elect(6)
            late = await paused.commits.commit("g", OffsetCommitter(), cluster.offset(T0, 2))
            assert late == {T0: ErrorCode.not_coordinator}
            assert (await paused.offsets.stored("g", [T0]))[T0].offset == 1

    run(test())


def test_a_deposed_coordinator_takes_no_lock_from_its_successor(cluster: Cluster) -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            paused = await stack.enter_async_context(coordinator(cluster, 5))
            successor = await stack.enter_async_context(coordinator(cluster, 6))
            mine = await stable_member(successor)
            assert (await paused.members.join(join_request())).error is ErrorCode.not_coordinator
            assert await successor.commits.commit("g", mine, cluster.offset(T0, 1)) == {T0: ErrorCode.none}

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
            old = asyncio.create_task(service.commits.commit("g", OffsetCommitter(), cluster.offset(T0, 950)))
            while not stores[0].in_first.is_set():
                await asyncio.sleep(0.01)
            old.cancel()  # the client's connection ends; it comes again by another one
            new = asyncio.create_task(service.commits.commit("g", OffsetCommitter(), cluster.offset(T0, 960)))
            assert await service.commits.commit("h", OffsetCommitter(), cluster.offset(U0, 1)) == {U0: ErrorCode.none}
            await asyncio.wait([new], timeout=3.0)  # it only ends here where it has overtaken the first
            stores[0].go_on.set()
            assert await new == {T0: ErrorCode.none}
            while not stores[0].stored_first.is_set():
                await asyncio.sleep(0.01)
            assert (await service.offsets.fetch("g", [T0]))[T0].offset == 960

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
            assert await service.commits.commit("g", OffsetCommitter(), cluster.offset(T0, 1)) == {T0: ErrorCode.none}
            expiry = asyncio.create_task(service.cleanup.expire_offsets(2**53))
            while not stores[0].was_read.is_set():
                await asyncio.sleep(0.01)
            new = asyncio.create_task(service.commits.commit("g", OffsetCommitter(), cluster.offset(T0, 2)))
            for number in range(30):  # time enough for the commit to overtake the expiry, where it can
                assert await service.commits.commit("h", OffsetCommitter(), cluster.offset(U0, number)) == {
                    U0: ErrorCode.none
                }
            stores[0].go_on.set()
            await expiry
            assert await new == {T0: ErrorCode.none}
            assert (await service.offsets.fetch("g", [T0]))[T0].offset == 2

    run(test())


def deletes_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    """As it was: a deletion has no condition."""
    for store in (CoordinationOffsetStore, StoredGroups):

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
        stores.append(SlowlyReadStore(store, passed=plugin == "topic"))  # its load reads the offsets too
        return stores[0]

    async def test() -> None:
        members = cluster.members()
        old_id = cluster.id_of("t")
        members.commit("g", {**cluster.offset(T0, 1500), **cluster.offset(U0, 7)})
        delete_topic(cluster.own, "t")
        write_topic(cluster.own, "t", 1)
        async with coordinator(cluster, 5, slow) as service:
            forgetting = asyncio.create_task(service.cleanup.forget_topics({old_id: "t"}))
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
        async with AsyncExitStack() as stack:
            paused = await stack.enter_async_context(coordinator(cluster, 5, slow))
            mine = OffsetCommitter()
            assert await paused.commits.commit("g", mine, cluster.offset(T0, 100)) == {T0: ErrorCode.none}
            expiry = asyncio.create_task(paused.cleanup.expire_offsets(2**53))
            await asyncio.to_thread(eventually, stores[0].was_read.is_set, "the expiry has read the offsets")
            successor = await stack.enter_async_context(coordinator(cluster, 6))
            other = await member_at(successor, mine)
            if commits:
                assert await successor.commits.commit("g", other, cluster.offset(T0, 150)) == {T0: ErrorCode.none}
            stores[0].go_on.set()
            await expiry
            assert (await successor.offsets.fetch("g", [T0]))[T0].offset == (150 if commits else 100)

    run(test())


@BOTH
def test_the_offsets_of_a_former_coordinators_members_are_not_deleted(cluster: Cluster, plugin: str) -> None:
    """It was killed, or sleeps: the successor has loaded its members."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            former = await stack.enter_async_context(coordinator(cluster, 5))
            mine = await stable_member(former)
            assert await former.commits.commit("g", mine, cluster.offset(T0, 100)) == {T0: ErrorCode.none}
            successor = await stack.enter_async_context(coordinator(cluster, 6))
            assert await successor.deletions.delete("g") is ErrorCode.non_empty_group
            assert await successor.deletions.delete_offsets("g", [T0]) == {T0: ErrorCode.group_subscribed_to_topic}
            assert (await successor.offsets.fetch("g", [T0]))[T0].offset == 100
            left = successor.coordinator.leave("g", [MemberIdentity(mine.member_id, None)])
            assert left == [ErrorCode.none]
            assert await successor.deletions.delete_offsets("g", [T0]) == {T0: ErrorCode.none}

    run(test())


class SlowlySavingStore:
    """Stores an empty group once it may `go_on`."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.go_on = threading.Event()

    def save_group(self, group: str, state: StoredGroup) -> None:
        assert state.members or self.go_on.wait(PATIENCE_S)
        self._store.save_group(group, state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("plugin", ["topic"])
def test_a_group_that_is_deleted_while_it_is_stored_does_not_come_back(cluster: Cluster, plugin: str) -> None:
    """As where a consumer closes and its group is deleted at once."""
    stores: list[SlowlySavingStore] = []

    def slow(store: OffsetStore) -> Any:
        stores.append(SlowlySavingStore(store))
        return stores[0]

    async def test() -> None:
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(coordinator(cluster, 5, slow))
            mine = await stable_member(service)
            assert await service.commits.commit("g", mine, cluster.offset(T0, 1)) == {T0: ErrorCode.none}
            assert service.coordinator.leave("g", [MemberIdentity(mine.member_id, None)]) == [ErrorCode.none]
            deleting = asyncio.create_task(service.deletions.delete("g"))
            await asyncio.wait([deleting], timeout=1.0)
            stores[0].go_on.set()
            assert await deleting is ErrorCode.none
            await service._metadata.saved("g")
            successor = await stack.enter_async_context(coordinator(cluster, 6))
            assert [group.group_id for group in successor.coordinator.list_groups()] == []

    run(test())


@BOTH
def test_offsets_of_deserted_groups_expire(cluster: Cluster, plugin: str) -> None:
    """Not those of a group with a member, nor of one that committed since."""

    async def test() -> None:
        async with coordinator(cluster, 5) as service:
            mine = await stable_member(service)
            assert await service.commits.commit("g", mine, cluster.offset(T0, 1)) == {T0: ErrorCode.none}
            for group, when in (("old", 1_000), ("new", 2**52)):
                offsets = {p: replace(o, commit_timestamp_ms=when) for p, o in cluster.offset(T0, 1).items()}
                assert await service.commits.commit(group, OffsetCommitter(), offsets) == {T0: ErrorCode.none}
            await service.cleanup.expire_offsets(2**52)
            assert {"g", "new"} <= set(await service.offsets.groups())
            assert "old" not in await service.offsets.groups()

    run(test())


@BOTH
@pytest.mark.parametrize("moved", [False, True])
def test_offsets_are_kept_for_the_whole_time_after_the_last_member_has_left(
    cluster: Cluster, plugin: str, moved: bool
) -> None:
    """The group had nothing to commit for long, as on an idle topic; its last member leaves between two checks, of
    which another broker makes the second: it finds in the stored group when that was."""

    async def test() -> None:
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(coordinator(cluster, 5))
            mine = await stable_member(service)
            long_ago = {p: replace(o, commit_timestamp_ms=1_000) for p, o in cluster.offset(T0, 1).items()}
            assert await service.commits.commit("g", mine, long_ago) == {T0: ErrorCode.none}
            assert service.coordinator.leave("g", [MemberIdentity(mine.member_id, None)]) == [ErrorCode.none]
            await service._metadata.saved("g")
            while await service._locks.protocol("g") is not None:  # a group is not expired before it is released
                await asyncio.sleep(0.01)
            checking = await stack.enter_async_context(coordinator(cluster, 6)) if moved else service
            soon_ms = time.time_ns() // 1_000_000 + 60_000
            await checking.cleanup.expire_offsets(soon_ms)
            assert "g" in await checking.offsets.groups()
            await checking.cleanup.expire_offsets(
                soon_ms + BrokerConfig(broker_id=5).offsets_retention_minutes * 60_000
            )
            assert "g" not in await checking.offsets.groups()

    run(test())


@BOTH
@pytest.mark.parametrize("moved", [False, True])
def test_offsets_are_kept_for_the_whole_time_after_the_last_registry_member_has_left(
    cluster: Cluster, plugin: str, moved: bool
) -> None:
    """The group had nothing to commit for long; its last member leaves between two checks, of which another broker
    makes the second: that one cannot know when it left."""
    retention_ms = BrokerConfig(broker_id=5).offsets_retention_minutes * 60_000

    async def test() -> None:
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(coordinator(cluster, 5))
            long_ago = {p: replace(o, commit_timestamp_ms=1_000) for p, o in cluster.offset(T0, 1).items()}
            cluster.members().commit("g", long_ago)
            member = acquire(cluster.own, "g", GroupProtocol.REGISTRY, "member-1").path
            late_ms = time.time_ns() // 1_000_000 + 2 * retention_ms
            await service.cleanup.expire_offsets(late_ms)
            cluster.own.delete(member)
            checking = await stack.enter_async_context(coordinator(cluster, 6)) if moved else service
            await checking.cleanup.expire_offsets(late_ms + 60_000)
            assert "g" in await checking.offsets.groups()
            await checking.cleanup.expire_offsets(late_ms + 30_000 + retention_ms)
            assert ("g" in await checking.offsets.groups()) is moved
            await checking.cleanup.expire_offsets(late_ms + 120_000 + retention_ms)
            assert "g" not in await checking.offsets.groups()

    run(test())


@guarantee("A2", "a broker stores no offset of a topic that was deleted", plant=without_guards)
@BOTH
def test_a_commit_of_a_deleted_topic_is_refused(cluster: Cluster, plugin: str) -> None:
    async def test() -> None:
        async with coordinator(cluster, 5) as service:
            old = {**cluster.offset(T0, 1500), **cluster.offset(U0, 7)}
            assert set((await service.commits.commit("g", OffsetCommitter(), cluster.offset(T0, 1400))).values()) == {
                ErrorCode.none
            }
            delete_topic(cluster.own, "t")
            write_topic(cluster.own, "t", 1)
            codes = await service.commits.commit("g", OffsetCommitter(), old)
            assert {p: o.offset for p, o in (await service.offsets.fetch("g", None)).items()} == {U0: 7}
            assert codes == {T0: ErrorCode.unknown_topic_or_partition, U0: ErrorCode.none}

    run(test())


def take_any_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coordinated_offsets, "is_of", lambda *_: True)


@guarantee("A2", "OffsetFetch passes over offsets of the deleted topic", plant=take_any_offset)
@BOTH
def test_a_fetch_passes_over_offsets_of_the_deleted_topic(cluster: Cluster, plugin: str) -> None:
    cluster.elect(0)
    store = cluster.members()
    store.commit("g", {T0: CommittedOffset(1500, topic_id=uuid4()), U0: CommittedOffset(3)})

    async def test() -> None:
        async with coordinator(cluster, 5) as service:
            assert set(await service.offsets.fetch("g", [T0, U0])) == {U0}
            store.commit("g", cluster.offset(T0, 4))
            assert (await service.offsets.fetch("g", [T0]))[T0].offset == 4, (
                "of a topic that the image does not know yet"
            )

    run(test())
