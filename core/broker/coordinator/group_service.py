"""The broker's side of classic groups: the coordinator's clock, its door to the group, and the offset store.

The coordinator itself decides everything and waits for nothing; here are the futures that its callbacks complete, and
the blocking calls (door, offsets), which go to worker threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar
from uuid import UUID

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from ...cluster import paths
from ...cluster.image import NO_LEADER, ClusterImage
from ...config.sections.broker import BrokerConfig
from ...errors import ErrorCode, KlammError
from ...groups.coordinator.coordinator import GroupCoordinator
from ...groups.coordinator.group_view import read_view
from ...groups.coordinator.requests import GroupLimits, JoinRequest, JoinResult, SyncRequest, SyncResult
from ...groups.group_protocol_lock import ClassicDoors, Door, door_of, hold_still, let_go, look_inside
from ...groups.membership.topic_ids import TopicIds, commit_current, is_of
from ...interfaces.coordination import (
    BadVersionError,
    Check,
    Coordination,
    CoordinationUnavailableError,
    NoNodeError,
)
from ...interfaces.offsets import CommittedOffset, OffsetStore, PartitionedStore
from ...records.partition import TopicPartition
from ..session_contact import SessionContact
from ..workers import Workers
from .group_store import GroupKeeper
from .key_sequencer import TurnsByKey

log = logging.getLogger(__name__)
R = TypeVar("R")
_LONGEST_TICK_S = 0.1
"""A request may bring the next deadline forward; more often than this nothing looks."""
_SHORTEST_TICK_S = 0.001
_LEAVE_ATTEMPTS = 20
_STOP_S = 2.0
_DOOR_RETRY_S = 0.5


def limits_of(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
    )


class Committer(NamedTuple):
    """Who commits; without member id and generation (-1), nobody's member."""

    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class GroupService:
    """Belongs to the event loop. `image` gives the cluster as it is now; `clock` seconds, monotonic."""

    def __init__(
        self,
        config: BrokerConfig,
        coordination: Coordination,
        offsets: OffsetStore,
        workers: Workers,
        image: Callable[[], ClusterImage],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker_id = config.broker_id
        self._coordination = coordination
        self._offsets = offsets
        self._workers = workers
        self._image = image
        self._clock = clock
        self.coordinator = GroupCoordinator(limits_of(config), clock, on_empty=self._emptied, on_settled=self._settled)
        self._keeper = GroupKeeper(offsets, workers, self.coordinator.unsettle)
        self._unready: ErrorCode | None = ErrorCode.coordinator_load_in_progress if self._keeper.keeps else None
        self._loader: asyncio.Task[None] | None = None
        self._doors = ClassicDoors(coordination, config.broker_id, self.coordinator.populated)
        self._offsets_retention_ms = config.offsets_retention_minutes * 60_000
        self._populated_ms: dict[str, int] = {}
        self._topics = TopicIds(coordination)
        self._commits = TurnsByKey()
        self._session = SessionContact(clock)
        coordination.on_session(self._session.event)
        self._ticker: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._session.start(self._coordination.session_timeout_s)
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        if self._keeper.keeps:
            self._loader = asyncio.get_running_loop().create_task(self._load())

    async def stop(self) -> None:
        """Answer parked members, close the doors. Who asks from now on is to come back, a member still."""
        self._unready = ErrorCode.coordinator_not_available
        for task in (self._ticker, self._loader):
            if task is not None:
                task.cancel()
        self.coordinator.close()
        await self._commits.stop(_STOP_S)
        await self._keeper.stop(_STOP_S)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_STOP_S)
        for task in self._leaving:
            task.cancel()  # the session's end closes what is left

    async def renew_doors(self) -> None:
        """After a new session: enter the doors of live groups again; a group that was taken over is ended."""
        for group in await self._workers.coordination(self._doors.renew):
            self._taken_over(group, "it was entered while this broker had no session")

    # -- who coordinates

    def coordinator_of(self, group: str) -> int | None:
        """The live broker that a group belongs to, the same at every broker: the leader of its partition where the
        store has such (`NO_LEADER` while there is none), else one that its name chooses; None where no broker is."""
        image = self._image()
        brokers = sorted(image.brokers)
        if isinstance(self._offsets, PartitionedStore) and (topic := image.topics.get(self._offsets.topic)):
            leader = topic.partitions[self._offsets.partition_of(group, len(topic.partitions))].leader
            return leader if leader in brokers else NO_LEADER
        return brokers[zlib.crc32(group.encode()) % len(brokers)] if brokers else None

    def not_mine(self, group: str) -> ErrorCode | None:
        """The error for a request about a group that another broker coordinates, or this one not yet."""
        return self._unready if self._is_mine(group) else ErrorCode.not_coordinator

    def _is_mine(self, group: str) -> bool:
        return self.coordinator_of(group) in (self._broker_id, None)

    async def _load(self) -> None:
        """Groups with members go on where the broker before stopped; who asks meanwhile is told to wait."""
        loaded = 0
        for group, state in (await self._keeper.load()).items():
            if not self._is_mine(group):
                continue
            if not state.members:
                self.coordinator.restore({group: state})
                continue
            while (refused := await self._enter_door(group)) is ErrorCode.coordinator_not_available:
                await asyncio.sleep(_DOOR_RETRY_S)
            if refused is None:
                self.coordinator.restore({group: state})
                loaded += 1
                if self._doors.entered(group):
                    self._emptied(group)
        self._unready = None
        log.info("%d groups with members were loaded", loaded)

    # -- members

    async def join(self, request: JoinRequest) -> JoinResult:
        refused = self.not_mine(request.group_id)
        if refused is None and request.group_id:
            refused = await self._enter_door(request.group_id)
        if refused is not None:
            return JoinResult(refused, request.member_id)
        done: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        try:
            self.coordinator.join(request, _completing(done))
        finally:
            if request.group_id and self._doors.entered(request.group_id):
                self._emptied(request.group_id)
        result = await done
        if result.error is ErrorCode.none and request.instance_id is not None:
            # A static member that came back has a new id, and nothing else may have changed.
            stored = await self._keeper.saved(request.group_id)
            return result if stored is ErrorCode.none else JoinResult(stored, request.member_id)
        return result

    async def _enter_door(self, group: str) -> ErrorCode | None:
        entering = asyncio.ensure_future(self._workers.coordination(self._doors.enter, group))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:  # the client has gone; the thread goes on
            entering.add_done_callback(lambda done: self._abandoned(done, group))
            raise
        except KlammError as error:
            log.info("group %s cannot be joined: %s", group, error)
            known = error.code is ErrorCode.inconsistent_group_protocol
            return error.code if known else ErrorCode.coordinator_not_available
        return None

    def _abandoned(self, entering: asyncio.Future[None], group: str) -> None:
        if not entering.cancelled() and entering.exception() is None and self._doors.entered(group):
            self._emptied(group)

    async def sync(self, request: SyncRequest) -> SyncResult:
        refused = self.not_mine(request.group_id)
        if refused is not None:
            return SyncResult(refused)
        done: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self.coordinator.sync(request, _completing(done))
        result = await done
        stored = await self._keeper.saved(request.group_id) if result.error is ErrorCode.none else ErrorCode.none
        return result if stored is ErrorCode.none else SyncResult(stored)

    async def delete(self, group: str) -> ErrorCode:
        """Forget an empty group and its offsets; between two commits."""
        return await asyncio.shield(self._commits.begin(group, self._delete(group)))

    async def _delete(self, group: str) -> ErrorCode:
        refused = self.not_mine(group)
        if refused is not None:
            return refused
        try:
            async with self._holding_still(group) as (door, guards):
                if door is Door.REGISTRY:
                    return ErrorCode.non_empty_group
                stored = await self._stored(group, None)
                code = self.coordinator.delete(group, has_offsets=bool(stored))
                if code is ErrorCode.none:
                    await self._workers.offsets(self._offsets.delete, group, None, guards)
        except (BadVersionError, NoNodeError) as error:
            log.info("group %s is not deleted: %s", group, error)
            return ErrorCode.not_coordinator
        except KlammError as error:
            return error.code
        return code

    async def delete_offsets(
        self, group: str, names: Collection[TopicPartition]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        """Forget some offsets of a group (KIP-496): a code for each, `group_subscribed_to_topic` where a member reads
        the topic; or one code where the group as a whole is refused. Between two commits."""
        return await asyncio.shield(self._commits.begin(group, self._delete_offsets(group, names)))

    async def _delete_offsets(
        self, group: str, names: Collection[TopicPartition]
    ) -> ErrorCode | dict[TopicPartition, ErrorCode]:
        refused = self.not_mine(group)
        if refused is not None:
            return refused
        try:
            read = await self._workers.coordination(self._registry_topics, group)
            stored = bool(await self._stored(group, None))
            codes = {
                name: ErrorCode.group_subscribed_to_topic
                if name.topic in read
                else self.coordinator.delete_offsets_error(group, name.topic, has_offsets=stored or bool(read))
                for name in names
            }
            for code in (ErrorCode.group_id_not_found, ErrorCode.non_empty_group):
                if code in codes.values():
                    return code
            chosen = [name for name, code in codes.items() if code is ErrorCode.none]
            if chosen:
                guards = [Check(paths.broker(self._broker_id))]
                await self._workers.offsets(self._offsets.delete, group, chosen, guards)
        except (BadVersionError, NoNodeError) as error:
            log.info("offsets of group %s are not deleted: %s", group, error)
            return ErrorCode.not_coordinator
        except KlammError as error:
            return error.code
        return codes

    def _registry_topics(self, group: str) -> frozenset[str]:
        """What the members of a registry group read; nothing where there are none. Blocking."""
        if door_of(self._coordination, group) is not Door.REGISTRY:
            return frozenset()
        members = read_view(self._coordination, group, ()).subscriptions.values()
        return frozenset(topic for subscription in members for topic in subscription)

    # -- offsets

    async def commit(
        self, group: str, committer: Committer, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, ErrorCode]:
        """Stores a member's offsets, or those of nobody's member: a code for each. The commits of a group are stored in
        the order of their requests; one whose client has gone is stored all the same, before the next."""
        return await asyncio.shield(self._commits.begin(group, self._commit(group, committer, offsets)))

    async def _commit(
        self, group: str, committer: Committer, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, ErrorCode]:
        if self._session.expired:  # somebody else has the group by now, or may
            return dict.fromkeys(offsets, ErrorCode.not_coordinator)
        try:
            self._check_store()
            guards = await self._guards(group, committer)
            if isinstance(guards, ErrorCode):
                return dict.fromkeys(offsets, guards)
            gone = await self._workers.offsets(self._store, group, offsets, guards)
        except (BadVersionError, NoNodeError) as error:
            log.info("offsets of group %s were refused: %s", group, error)
            await self._look_at_door(group)
            return dict.fromkeys(offsets, ErrorCode.not_coordinator)
        except KlammError as error:
            return dict.fromkeys(offsets, error.code)
        return {name: ErrorCode.unknown_topic_or_partition if name in gone else ErrorCode.none for name in offsets}

    async def _guards(self, group: str, committer: Committer) -> list[Check] | ErrorCode:
        """What must hold while the offsets are stored; or why they may not be. A commit from outside any group is
        refused while registry members own the group."""
        refused = self.not_mine(group)
        if refused is not None:
            return refused
        code = self.coordinator.commit_error(group, committer.member_id, committer.generation, committer.instance_id)
        if code is not ErrorCode.none:
            return code
        if self.coordinator.populated(group):
            entered = self._doors.guard(group)
            if entered is None:
                self._taken_over(group, "its door is not open")
                return ErrorCode.not_coordinator
            return [Check(paths.broker(self._broker_id)), entered]
        door, unchanged = await self._workers.coordination(look_inside, self._coordination, group)
        guards = [Check(paths.broker(self._broker_id)), *unchanged]
        return ErrorCode.inconsistent_group_protocol if door is Door.REGISTRY else guards

    @asynccontextmanager
    async def _holding_still(self, group: str) -> AsyncIterator[tuple[Door | None, list[Check]]]:
        """Who is in the group, and what holds until somebody enters it, or this broker is not registered any more."""
        door, unchanged = await self._workers.coordination(hold_still, self._coordination, group)
        try:
            yield door, [Check(paths.broker(self._broker_id)), *unchanged]
        finally:
            await self._workers.coordination(let_go, self._coordination, group)

    def _store(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: list[Check]
    ) -> set[TopicPartition]:
        """The offsets whose topic is gone; the others are stored. Blocking."""
        if self._session.away:  # the store needs no coordination, and goes on without one as partitions do
            self._check_session()
            self._offsets.commit(group, offsets)
            self._check_session()
            return set()
        asked_s = self._clock()
        gone = commit_current(self._offsets, self._topics, group, offsets, guards)
        if len(gone) < len(offsets):
            self._session.heard(asked_s)
        return gone

    def _check_session(self) -> None:
        """Nobody else can have the group while this broker's session lives."""
        if not self._session.certain:
            raise CoordinationUnavailableError("the coordination is away, and this broker's session may be over")

    async def _look_at_door(self, group: str) -> None:
        """A guard has failed: perhaps somebody else has the group by now."""
        try:
            if not await self._workers.coordination(self._doors.still_holds, group):
                self._taken_over(group, "another broker or a registry member has entered it")
        except KlammError as error:
            log.info("the door of group %s cannot be looked at: %s", group, error)

    def _taken_over(self, group: str, why: object) -> None:
        """What is known of the group here is of the past: its members join again, wherever it is coordinated now."""
        log.warning("the members of group %s are sent away: %s", group, why)
        self._doors.lost(group)
        self.coordinator.evict(group)
        self._emptied(group)

    def _check_store(self) -> None:
        """A call would wait for its time-out, and hold up the heartbeats of its connection."""
        if self._offsets.needs_coordination and (self._session.away or self._session.expired):
            raise CoordinationUnavailableError("the coordination is away, and the offsets with it")

    async def fetch(self, group: str, names: Iterable[TopicPartition] | None) -> dict[TopicPartition, CommittedOffset]:
        """What is stored for the topics that there are now; an offset of a deleted topic of the same name is passed
        over. `CoordinationUnavailableError`, at once where that is known, when the store is away."""
        stored = await self._stored(group, names)
        image = self._image()
        doubtful = {
            name.topic
            for name, found in stored.items()
            if not is_of(found, topic.topic_id if (topic := image.topics.get(name.topic)) else None)
        }
        if not doubtful:
            return stored
        # The image may be older than the commit.
        ids = await self._workers.coordination(self._topics.now, doubtful)
        return {
            name: found
            for name, found in stored.items()
            if name.topic not in doubtful or is_of(found, ids.get(name.topic))
        }

    async def _stored(
        self, group: str, names: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Whatever is stored, offsets of deleted topics too."""
        self._check_store()
        return await self._workers.offsets(self._offsets.fetch, group, names)

    async def with_offsets(self) -> list[str]:
        """Groups that have a stored offset."""
        return await self._workers.offsets(self._offsets.groups)

    async def forget_topics(self, deleted: Mapping[UUID, str]) -> None:
        """Forget every group's offsets of topics that are no more (their names by id), live groups' too, as Kafka does.
        Those of a topic that has the name by now stay. `KlammError` when the store fails: call it again."""
        for group in await self.with_offsets():
            await asyncio.shield(self._commits.begin(group, self._forget_topics(group, deleted)))

    async def _forget_topics(self, group: str, deleted: Mapping[UUID, str]) -> None:
        names = set(deleted.values())
        gone = {
            name: found
            for name, found in (await self._stored(group, None)).items()
            if name.topic in names and (found.topic_id is None or found.topic_id in deleted)
        }
        if gone:
            # A registry member may have committed to the new topic of that name meanwhile.
            await self._workers.offsets(self._offsets.delete, group, gone, seen=gone)

    async def expire_offsets(self, now_ms: int) -> None:
        """Forget the offsets of groups that have had no member and no commit for `offsets.retention.minutes`. A name
        that begins with `__` is the broker's own and is kept."""
        oldest = now_ms - self._offsets_retention_ms
        for group in await self.with_offsets():
            if self.coordinator.populated(group):
                self._populated_ms[group] = now_ms
            elif not group.startswith("__"):
                await asyncio.shield(self._commits.begin(group, self._expire_offsets(group, oldest)))
        for group, state in (await self._keeper.load()).items():
            if state.changed_ms < oldest:
                await asyncio.shield(self._commits.begin(group, self._expire_group(group)))

    async def _expire_offsets(self, group: str, oldest_ms: int) -> None:
        """Between two commits: one before it counts, and one after it is stored after it."""
        if not self._deserted(group) or self._populated_ms.get(group, 0) > oldest_ms:
            return
        if not _older(await self._stored(group, None), oldest_ms):  # most are not, and are left in peace
            return
        async with self._holding_still(group) as (door, guards):
            if door is not None:
                return
            stored = await self._stored(group, None)
            expired = _older(stored, oldest_ms) and self._deserted(group)
            if expired and await self._forget_group(group, guards, stored):
                self._populated_ms.pop(group, None)
                log.info("the offsets of group %s have expired", group)

    async def _expire_group(self, group: str) -> None:
        """Forget what is stored of a group that has neither member nor offset; between two commits."""
        async with self._holding_still(group) as (door, guards):
            if door is None and not await self._stored(group, None) and self._deserted(group):
                await self._forget_group(group, guards, {})

    async def _forget_group(
        self, group: str, guards: list[Check], seen: Mapping[TopicPartition, CommittedOffset]
    ) -> bool:
        """Unless somebody has entered it; what was committed since it was `seen` stays."""
        try:
            await self._workers.offsets(self._offsets.delete, group, None, guards, seen=seen)
        except (BadVersionError, NoNodeError) as error:
            log.info("the offsets of group %s stay: %s", group, error)
            return False
        return True

    def _deserted(self, group: str) -> bool:
        """It is coordinated here, and has no members."""
        return self.not_mine(group) is None and not self.coordinator.populated(group)

    # -- the coordinator's clock, and its last members

    async def _tick(self) -> None:
        while True:
            due = self.coordinator.next_deadline()
            left = _LONGEST_TICK_S if due is None else due - self._clock()
            await asyncio.sleep(min(max(left, _SHORTEST_TICK_S), _LONGEST_TICK_S))
            self._session.look()
            self.coordinator.tick()

    def _settled(self, group: str) -> None:
        state = self.coordinator.state_to_store(group, time.time_ns() // 1_000_000)
        if state is not None:
            self._keeper.save(group, state)

    def _emptied(self, group: str) -> None:
        task = asyncio.get_running_loop().create_task(self._leave_door(group))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave_door(self, group: str) -> None:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(CoordinationUnavailableError),
            wait=wait_exponential(multiplier=0.5, max=30.0),
            stop=stop_after_attempt(_LEAVE_ATTEMPTS),
            reraise=True,
        )
        try:
            await retrying(self._workers.coordination, self._doors.leave, group)
        except KlammError as error:
            log.warning("the door of group %s stays open until the session ends: %s", group, error)


def _older(stored: Mapping[TopicPartition, CommittedOffset], oldest_ms: int) -> bool:
    """Whether there are offsets, all of them committed before that time."""
    return bool(stored) and max(offset.commit_timestamp_ms for offset in stored.values()) < oldest_ms


def _completing(done: asyncio.Future[R]) -> Callable[[R], None]:
    """A callback for the coordinator; the connection may have gone in the meantime."""

    def complete(result: R) -> None:
        if not done.done():
            done.set_result(result)

    return complete
