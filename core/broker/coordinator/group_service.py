"""The broker's side of classic groups: the coordinator's clock, the groups' protocol locks, and the offset store.

The coordinator decides everything and never blocks. This module holds the futures that its callbacks complete, and
makes the blocking calls (protocol lock, offsets) on worker threads.
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

from ...cluster.image import NO_LEADER, ClusterImage
from ...cluster.tree import paths
from ...config.sections.broker import BrokerConfig
from ...errors import ErrorCode, KlammError
from ...groups.coordinator.coordinator import GroupCoordinator
from ...groups.coordinator.group_view import read_view
from ...groups.coordinator.requests import GroupLimits, JoinRequest, JoinResult, SyncRequest, SyncResult
from ...groups.group_protocol_lock import (
    ClassicGroupLocks,
    GroupProtocol,
    active_protocol,
    pin_lock,
    read_lock,
    unpin_lock,
)
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
from ..session.session_contact import SessionContact
from ..workers import Workers
from .group_metadata_manager import GroupMetadataManager
from .key_sequencer import KeySequencer

log = logging.getLogger(__name__)
R = TypeVar("R")
_LONGEST_TICK_S = 0.1
"""The longest wait between two ticks: a request may bring the next deadline forward."""
_SHORTEST_TICK_S = 0.001
_LEAVE_ATTEMPTS = 20
_STOP_S = 2.0
_LOCK_RETRY_S = 0.5


def limits_of(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
    )


class OffsetCommitter(NamedTuple):
    """The sender of a commit; without member id and with generation -1, a consumer that is no member of the group."""

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
        self.coordinator = GroupCoordinator(limits_of(config), clock, on_empty=self._emptied, on_changed=self._changed)
        self._group_metadata = GroupMetadataManager(offsets, workers, self.coordinator.store_failed)
        self._unready: ErrorCode | None = ErrorCode.coordinator_load_in_progress if self._group_metadata.keeps else None
        self._loader: asyncio.Task[None] | None = None
        self._locks = ClassicGroupLocks(coordination, config.broker_id, self.coordinator.populated)
        self._offsets_retention_ms = config.offsets_retention_minutes * 60_000
        self._populated_ms: dict[str, int] = {}
        self._topics = TopicIds(coordination)
        self._commits = KeySequencer()
        self._session = SessionContact(clock)
        coordination.on_session(self._session.event)
        self._ticker: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._session.start(self._coordination.session_timeout_s)
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        if self._group_metadata.keeps:
            self._loader = asyncio.get_running_loop().create_task(self._load())

    async def stop(self) -> None:
        """Answers parked requests and releases the locks. Later requests get COORDINATOR_NOT_AVAILABLE and are retried;
        their senders stay members."""
        self._unready = ErrorCode.coordinator_not_available
        for task in (self._ticker, self._loader):
            if task is not None:
                task.cancel()
        self.coordinator.close()
        await self._commits.stop(_STOP_S)
        await self._group_metadata.stop(_STOP_S)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_STOP_S)
        for task in self._leaving:
            task.cancel()  # the end of the session releases the remaining locks

    async def reacquire_locks(self) -> None:
        """Acquires the locks of groups with members again, in a new session; drops the members of groups that were
        taken over."""
        for group in await self._workers.coordination(self._locks.reacquire):
            self._taken_over(group, "its lock was acquired by another while this broker had no session")

    # -- who coordinates

    def coordinator_of(self, group: str) -> int | None:
        """Returns the id of the live broker that coordinates a group; every broker computes the same one.

        If the store is partitioned, the leader of the group's partition (`NO_LEADER` while there is none), else a
        broker chosen by the hash of the group id. None if no broker is registered.
        """
        image = self._image()
        brokers = sorted(image.brokers)
        if isinstance(self._offsets, PartitionedStore) and (topic := image.topics.get(self._offsets.topic)):
            leader = topic.partitions[self._offsets.partition_of(group, len(topic.partitions))].leader
            return leader if leader in brokers else NO_LEADER
        return brokers[zlib.crc32(group.encode()) % len(brokers)] if brokers else None

    def not_mine(self, group: str) -> ErrorCode | None:
        """Returns the error for a request about a group that another broker coordinates, or that this one has not
        loaded yet."""
        return self._unready if self._is_mine(group) else ErrorCode.not_coordinator

    def _is_mine(self, group: str) -> bool:
        return self.coordinator_of(group) in (self._broker_id, None)

    async def _load(self) -> None:
        """Restores the stored groups. Requests get COORDINATOR_LOAD_IN_PROGRESS in the meantime."""
        loaded = 0
        for group, state in (await self._group_metadata.load()).items():
            if not self._is_mine(group):
                continue
            if not state.members:
                self.coordinator.restore({group: state})
                continue
            while (refused := await self._acquire_lock(group)) is ErrorCode.coordinator_not_available:
                await asyncio.sleep(_LOCK_RETRY_S)
            if refused is None:
                self.coordinator.restore({group: state})
                loaded += 1
                if self._locks.join_delivered(group):
                    self._emptied(group)
        self._unready = None
        log.info("%d groups with members were loaded", loaded)

    # -- members

    async def join(self, request: JoinRequest) -> JoinResult:
        refused = self.not_mine(request.group_id)
        if refused is None and request.group_id:
            refused = await self._acquire_lock(request.group_id)
        if refused is not None:
            return JoinResult(refused, request.member_id)
        done: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        try:
            self.coordinator.join(request, _completing(done))
        finally:
            if request.group_id and self._locks.join_delivered(request.group_id):
                self._emptied(request.group_id)
        result = await done
        if result.error is ErrorCode.none and request.instance_id is not None:
            # A static member that rejoined has a new id, which is stored although nothing else may have changed.
            stored = await self._group_metadata.saved(request.group_id)
            return result if stored is ErrorCode.none else JoinResult(stored, request.member_id)
        return result

    async def _acquire_lock(self, group: str) -> ErrorCode | None:
        acquiring = asyncio.ensure_future(self._workers.coordination(self._locks.acquire, group))
        try:
            await asyncio.shield(acquiring)
        except asyncio.CancelledError:  # the client has disconnected; the thread cannot be stopped
            acquiring.add_done_callback(lambda done: self._abandoned(done, group))
            raise
        except KlammError as error:
            log.info("group %s cannot be joined: %s", group, error)
            known = error.code is ErrorCode.inconsistent_group_protocol
            return error.code if known else ErrorCode.coordinator_not_available
        return None

    def _abandoned(self, acquiring: asyncio.Future[None], group: str) -> None:
        if not acquiring.cancelled() and acquiring.exception() is None and self._locks.join_delivered(group):
            self._emptied(group)

    async def sync(self, request: SyncRequest) -> SyncResult:
        refused = self.not_mine(request.group_id)
        if refused is not None:
            return SyncResult(refused)
        done: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self.coordinator.sync(request, _completing(done))
        result = await done
        if result.error is not ErrorCode.none:
            return result
        stored = await self._group_metadata.saved(request.group_id)
        return result if stored is ErrorCode.none else SyncResult(stored)

    async def delete(self, group: str) -> ErrorCode:
        """Deletes an empty group and its offsets, in turn with the group's commits."""
        return await asyncio.shield(self._commits.begin(group, self._delete(group)))

    async def _delete(self, group: str) -> ErrorCode:
        refused = self.not_mine(group)
        if refused is not None:
            return refused
        try:
            async with self._pinned_lock(group) as (protocol, guards):
                if protocol is GroupProtocol.REGISTRY:
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
        """Deletes some offsets of a group (KIP-496), in turn with the group's commits. Returns a code for each,
        `group_subscribed_to_topic` if a member reads the topic; or one code if the whole group is refused."""
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
        """Returns the topics that the members of a registry group subscribe to; none if it has no members. Blocking."""
        if active_protocol(self._coordination, group) is not GroupProtocol.REGISTRY:
            return frozenset()
        members = read_view(self._coordination, group, ()).subscriptions.values()
        return frozenset(topic for subscription in members for topic in subscription)

    # -- offsets

    async def commit(
        self, group: str, committer: OffsetCommitter, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, ErrorCode]:
        """Stores the offsets of a member, or of a consumer outside the group; returns a code for each. The commits of a
        group are stored in the order of their requests. A commit whose client has disconnected is still stored, before
        the next one."""
        return await asyncio.shield(self._commits.begin(group, self._commit(group, committer, offsets)))

    async def _commit(
        self, group: str, committer: OffsetCommitter, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, ErrorCode]:
        if self._session.expired:  # another broker may coordinate the group by now
            return dict.fromkeys(offsets, ErrorCode.not_coordinator)
        try:
            self._check_store()
            guards = await self._guards(group, committer)
            if isinstance(guards, ErrorCode):
                return dict.fromkeys(offsets, guards)
            gone = await self._workers.offsets(self._store, group, offsets, guards)
        except (BadVersionError, NoNodeError) as error:
            log.info("offsets of group %s were refused: %s", group, error)
            await self._check_lock(group)
            return dict.fromkeys(offsets, ErrorCode.not_coordinator)
        except KlammError as error:
            return dict.fromkeys(offsets, error.code)
        return {name: ErrorCode.unknown_topic_or_partition if name in gone else ErrorCode.none for name in offsets}

    async def _guards(self, group: str, committer: OffsetCommitter) -> list[Check] | ErrorCode:
        """Returns the checks for the transaction that stores the offsets, or the error that refuses the commit. A
        commit from outside the group is refused while the group has registry members."""
        refused = self.not_mine(group)
        if refused is not None:
            return refused
        code = self.coordinator.commit_error(group, committer.member_id, committer.generation, committer.instance_id)
        if code is not ErrorCode.none:
            return code
        if self.coordinator.populated(group):
            unchanged_lock = self._locks.guard(group)
            if unchanged_lock is None:
                self._taken_over(group, "this broker does not hold its lock")
                return ErrorCode.not_coordinator
            return [Check(paths.broker(self._broker_id)), unchanged_lock]
        protocol, unchanged = await self._workers.coordination(read_lock, self._coordination, group)
        guards = [Check(paths.broker(self._broker_id)), *unchanged]
        return ErrorCode.inconsistent_group_protocol if protocol is GroupProtocol.REGISTRY else guards

    @asynccontextmanager
    async def _pinned_lock(self, group: str) -> AsyncIterator[tuple[GroupProtocol | None, list[Check]]]:
        """Yields the protocol of the group's members, and the checks that fail once the lock is acquired again or this
        broker is no longer registered."""
        protocol, unchanged = await self._workers.coordination(pin_lock, self._coordination, group)
        try:
            yield protocol, [Check(paths.broker(self._broker_id)), *unchanged]
        finally:
            await self._workers.coordination(unpin_lock, self._coordination, group)

    def _store(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: list[Check]
    ) -> set[TopicPartition]:
        """Stores the offsets whose topic exists; returns the others. Blocking."""
        if self._session.away:  # the store works without the coordination, as partitions do
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
        """Raises `CoordinationUnavailableError` unless this broker's session is surely alive: then no other broker can
        coordinate the group."""
        if not self._session.certain:
            raise CoordinationUnavailableError(
                "the coordination is unavailable, and this broker's session may have ended"
            )

    async def _check_lock(self, group: str) -> None:
        """Drops the group's members if another holder has acquired its lock; called after a guard failed."""
        try:
            if not await self._workers.coordination(self._locks.still_holds, group):
                self._taken_over(group, "another broker or a registry member has acquired its lock")
        except KlammError as error:
            log.info("the lock of group %s cannot be read: %s", group, error)

    def _taken_over(self, group: str, why: object) -> None:
        """Drops the group, whose state here is outdated: its members join again at the present coordinator."""
        log.warning("the members of group %s are dropped: %s", group, why)
        self._locks.mark_lost(group)
        self.coordinator.evict(group)
        self._emptied(group)

    def _check_store(self) -> None:
        """Raises `CoordinationUnavailableError` at once if the store's coordination is known to be unreachable: a call
        would wait for its time-out, and delay the heartbeats on the same connection."""
        if self._offsets.needs_coordination and (self._session.away or self._session.expired):
            raise CoordinationUnavailableError("the coordination, which stores the offsets, is unavailable")

    async def fetch(self, group: str, names: Iterable[TopicPartition] | None) -> dict[TopicPartition, CommittedOffset]:
        """Returns the stored offsets of existing topics; an offset of a deleted topic of the same name is left out.
        Raises `CoordinationUnavailableError` when the store is unreachable, at once if that is known."""
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
        """Returns all stored offsets, also those of deleted topics."""
        self._check_store()
        return await self._workers.offsets(self._offsets.fetch, group, names)

    async def with_offsets(self) -> list[str]:
        """Returns the groups that have a stored offset."""
        return await self._workers.offsets(self._offsets.groups)

    async def forget_topics(self, deleted: Mapping[UUID, str]) -> None:
        """Deletes every group's offsets of deleted topics (their names by id), also those of groups with members, as
        Kafka does. Offsets of a newer topic of the same name stay. Raises `KlammError` when the store fails: call it
        again."""
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
        """Deletes the offsets of groups that have had no member and no commit for `offsets.retention.minutes`. Groups
        whose id begins with `__` are the broker's own and are kept."""
        oldest = now_ms - self._offsets_retention_ms
        for group in await self.with_offsets():
            if self.coordinator.populated(group):
                self._populated_ms[group] = now_ms
            elif not group.startswith("__"):
                await asyncio.shield(self._commits.begin(group, self._expire_offsets(group, oldest)))
        for group, state in (await self._group_metadata.load()).items():
            if state.changed_ms < oldest:
                await asyncio.shield(self._commits.begin(group, self._expire_group(group)))

    async def _expire_offsets(self, group: str, oldest_ms: int) -> None:
        """Runs in turn with the group's commits: it sees the commits before it, and those after it are stored after
        it."""
        if not self._deserted(group) or self._populated_ms.get(group, 0) > oldest_ms:
            return
        if not _older(await self._stored(group, None), oldest_ms):  # true for most groups: skip the lock
            return
        async with self._pinned_lock(group) as (protocol, guards):
            if protocol is not None:
                return
            stored = await self._stored(group, None)
            expired = _older(stored, oldest_ms) and self._deserted(group)
            if expired and await self._forget_group(group, guards, stored):
                self._populated_ms.pop(group, None)
                log.info("the offsets of group %s have expired", group)

    async def _expire_group(self, group: str) -> None:
        """Deletes the stored state of a group that has neither members nor offsets, in turn with the group's
        commits."""
        async with self._pinned_lock(group) as (protocol, guards):
            if protocol is None and not await self._stored(group, None) and self._deserted(group):
                await self._forget_group(group, guards, {})

    async def _forget_group(
        self, group: str, guards: list[Check], seen: Mapping[TopicPartition, CommittedOffset]
    ) -> bool:
        """Deletes the group's offsets, but for those committed since they were `seen`. Returns False, and deletes
        nothing, if its lock was acquired in the meantime."""
        try:
            await self._workers.offsets(self._offsets.delete, group, None, guards, seen=seen)
        except (BadVersionError, NoNodeError) as error:
            log.info("the offsets of group %s stay: %s", group, error)
            return False
        return True

    def _deserted(self, group: str) -> bool:
        """Returns whether the group is coordinated here and has no members."""
        return self.not_mine(group) is None and not self.coordinator.populated(group)

    # -- the coordinator's clock, and its last members

    async def _tick(self) -> None:
        while True:
            due = self.coordinator.next_deadline()
            left = _LONGEST_TICK_S if due is None else due - self._clock()
            await asyncio.sleep(min(max(left, _SHORTEST_TICK_S), _LONGEST_TICK_S))
            self._session.look()
            self.coordinator.tick()

    def _changed(self, group: str) -> None:
        state = self.coordinator.state_to_store(group, time.time_ns() // 1_000_000)
        if state is not None:
            self._group_metadata.save(group, state)

    def _emptied(self, group: str) -> None:
        task = asyncio.get_running_loop().create_task(self._release_lock(group))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _release_lock(self, group: str) -> None:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(CoordinationUnavailableError),
            wait=wait_exponential(multiplier=0.5, max=30.0),
            stop=stop_after_attempt(_LEAVE_ATTEMPTS),
            reraise=True,
        )
        try:
            await retrying(self._workers.coordination, self._locks.release, group)
        except KlammError as error:
            log.warning("the lock of group %s is held until the session ends: %s", group, error)


def _older(stored: Mapping[TopicPartition, CommittedOffset], oldest_ms: int) -> bool:
    """Returns whether there are offsets and all of them were committed before that time."""
    return bool(stored) and max(offset.commit_timestamp_ms for offset in stored.values()) < oldest_ms


def _completing(done: asyncio.Future[R]) -> Callable[[R], None]:
    """Returns a callback that completes `done`, unless the connection was closed in the meantime."""

    def complete(result: R) -> None:
        if not done.done():
            done.set_result(result)

    return complete
