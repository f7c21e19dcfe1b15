"""The broker's side of classic groups: the coordinator's clock, the groups' protocol locks, and the offset store.

The coordinator decides everything and never blocks. This module holds the futures that its callbacks complete, and
makes the blocking calls (offsets) on worker threads. `GroupPartitions` knows which groups are coordinated here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from ...cluster.image import NO_LEADER, ClusterImage
from ...config.sections.broker import BrokerConfig
from ...errors import ErrorCode, KlammError, describe_error
from ...groups.coordinator.coordinator import GroupCoordinator
from ...groups.coordinator.group_view import read_view
from ...groups.coordinator.requests import GroupLimits, JoinRequest, JoinResult, SyncRequest, SyncResult
from ...groups.group_protocol_lock import GroupProtocol, active_protocol
from ...groups.membership.topic_ids import TopicIds, commit_current, is_of
from ...interfaces.coordination import (
    BadVersionError,
    Check,
    Coordination,
    CoordinationUnavailableError,
    NoNodeError,
)
from ...interfaces.offsets import CommittedOffset, OffsetStore, PartitionedStore
from ...records.codecs import CodecTable
from ...records.partition import TopicPartition
from ..session.session_contact import SessionContact
from ..workers import Workers
from .coordinator_errors import commit_code
from .group_locks import GroupLocks
from .group_metadata_manager import GroupMetadataManager
from .group_partitions import GroupPartition, GroupPartitions
from .key_sequencer import KeySequencer
from .offset_cleanup import OffsetCleanup
from .placement import GroupPlacement

log = logging.getLogger(__name__)
R = TypeVar("R")
_LONGEST_TICK_S = 0.1
"""The longest wait between two ticks: a request may bring the next deadline forward."""
_SHORTEST_TICK_S = 0.001
_LONGEST_LOAD_S = 2.0
"""The longest wait of a JoinGroup for the load of its group's partition."""
_STOP_S = 2.0
_FENCE_ATTEMPTS = 5
"""Each failure means that the in-sync replicas of the group's partition changed during a commit."""


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
        placement: GroupPlacement,
        codecs: CodecTable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordination = coordination
        self._offsets = offsets
        self.keeps_offsets_by_partition = isinstance(offsets, PartitionedStore)
        """True if the offsets of a group are in its partition of `__consumer_offsets`."""
        self._workers = workers
        self._image = image
        self._clock = clock
        self._placement = placement
        self._stopped = False
        self.coordinator = GroupCoordinator(limits_of(config), clock, on_empty=self._emptied, on_changed=self._changed)
        self._locks = GroupLocks(coordination, placement.incarnation, workers, self.coordinator)
        self._group_metadata = GroupMetadataManager(workers, self.coordinator.store_failed)
        self._partitions = GroupPartitions(
            config.broker_id, placement, coordination, offsets, workers, codecs,
            self.coordinator, self._locks, self._group_metadata, self._loaded,
        )  # fmt: skip
        self._topics = TopicIds(coordination)
        self._commits = KeySequencer()
        self._cleanup = OffsetCleanup(
            self._partitions, self._locks, self.coordinator, self._group_metadata, self._commits, workers,
            self.stored, config.offsets_retention_minutes * 60_000,
        )  # fmt: skip
        self._deleted = DeletedTopics(image)
        self._forgetting: set[asyncio.Task[None]] = set()
        self._session = SessionContact(clock)
        coordination.on_session(self._session.event)
        self._ticker: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._session.start(self._coordination.session_timeout_s)
        self._partitions.look()
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def stop(self) -> None:
        """Answers parked requests and releases the locks. Later requests get COORDINATOR_NOT_AVAILABLE and are retried;
        their senders stay members."""
        self._stopped = True
        for task in (self._ticker, *self._forgetting):
            if task is not None:
                task.cancel()
        self.coordinator.close()
        await self._commits.stop(_STOP_S)
        await self._group_metadata.stop(_STOP_S)
        self._partitions.stop()
        await self._locks.stop(_STOP_S)

    # -- who coordinates

    async def find_coordinator(self, group: str) -> int:
        """Returns the id of the live broker that coordinates a group, `NO_LEADER` while there is none. Creates
        `__consumer_offsets` if it does not exist; raises `KlammError` if that is not possible now."""
        await self._placement.ensure_topic()
        found = self._placement.coordinator_of(group)
        # Another broker may coordinate the group by now: a member that waits here then asks the others.
        lost = self._session.away and not self._session.certain
        return NO_LEADER if lost and self._placement.may_have_moved(found) else found

    def not_mine(self, group: str) -> ErrorCode | None:
        """Returns the error for a request about a group that another broker coordinates, or that this one has not
        loaded yet."""
        return ErrorCode.coordinator_not_available if self._stopped else self._partitions.refusal(group)

    @property
    def loading(self) -> bool:
        """True while the groups of a partition are loaded."""
        return self._partitions.loading

    # -- members

    async def join(self, request: JoinRequest) -> JoinResult:
        """Answers when the group's rebalance has ended, or with an error. Waits for a partition that is being loaded:
        that takes some milliseconds, and librdkafka asks again only 3 s after COORDINATOR_LOAD_IN_PROGRESS."""
        refused = self.not_mine(request.group_id)
        if refused is ErrorCode.coordinator_load_in_progress:
            await self._partitions.loaded(request.group_id, _LONGEST_LOAD_S)
            refused = self.not_mine(request.group_id)
        if refused is None and request.group_id:
            fence = self._partitions.of(request.group_id).fence
            refused = await self._locks.acquire(request.group_id, fence)
        if refused is not None:
            return JoinResult(refused, request.member_id)
        done: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        try:
            refused = self.not_mine(request.group_id)  # the partition may have been lost during the acquisition
            if refused is not None:
                return JoinResult(refused, request.member_id)
            self.coordinator.join(request, _completing(done))
        finally:
            if request.group_id:
                self._locks.join_delivered(request.group_id)
        result = await done
        if result.error is ErrorCode.none and request.instance_id is not None:
            # A static member that rejoined has a new id, which is stored although nothing else may have changed.
            stored = await self._group_metadata.saved(request.group_id)
            return result if stored is ErrorCode.none else JoinResult(stored, request.member_id)
        return result

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
        """Deletes an empty group and its offsets, in turn with the group's commits. Whether a group is empty is not
        known while its former coordinator holds its lock."""
        return await asyncio.shield(self._commits.begin(group, self._delete(group)))

    async def _delete(self, group: str) -> ErrorCode:
        refused = self.not_mine(group)
        if refused is not None:
            return refused
        try:
            store = self._partitions.store(group)
            async with self._locks.pinned(group) as (protocol, unchanged):
                if protocol is GroupProtocol.REGISTRY:
                    return ErrorCode.non_empty_group
                if protocol is GroupProtocol.CLASSIC and await self._locks.held_elsewhere(group):
                    return ErrorCode.coordinator_not_available
                await self._group_metadata.saved(group)  # that its last member has left is stored before the deletion
                stored = await self.stored(group, None)
                code = self.coordinator.delete(group, has_offsets=bool(stored))
                if code is ErrorCode.none:
                    guards = [*self._partitions.guards(group), *unchanged]
                    await self._workers.offsets(store.delete, group, None, guards)
        except (BadVersionError, NoNodeError) as error:
            log.info("group %s is not deleted: %s", group, error)
            return await self._lost(group)
        except KlammError as error:
            return commit_code(error)
        return code

    async def _lost(self, group: str) -> ErrorCode:
        """Returns the code after a guard failed: a change of the in-sync replicas is temporary."""
        renewed = await self._partitions.renewed(group)
        return ErrorCode.coordinator_not_available if renewed else ErrorCode.not_coordinator

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
            if await self._locks.held_elsewhere(group):
                return ErrorCode.coordinator_not_available
            read = await self._workers.coordination(self._registry_topics, group)
            stored = bool(await self.stored(group, None))
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
                guards = self._partitions.guards(group)
                await self._workers.offsets(self._partitions.store(group).delete, group, chosen, guards)
        except (BadVersionError, NoNodeError) as error:
            log.info("offsets of group %s are not deleted: %s", group, error)
            return await self._lost(group)
        except KlammError as error:
            return commit_code(error)
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
        code, gone = ErrorCode.not_coordinator, set[TopicPartition]()
        for _ in range(_FENCE_ATTEMPTS):
            if self._session.expired:  # another broker may coordinate the group by now
                break
            try:
                self._check_store()
                guards = await self._guards(group, committer)
                if isinstance(guards, ErrorCode):
                    code = guards
                    break
                store = self._partitions.store(group)
                gone = await self._workers.offsets(self.store_current, store, group, offsets, guards)
                code = ErrorCode.none
                break
            except (BadVersionError, NoNodeError) as error:
                log.info("offsets of group %s were refused: %s", group, error)
                if await self._renewed(group):
                    continue
                await self._locks.check(group)
                break
            except KlammError as error:
                code = commit_code(error)
                break
        return {name: ErrorCode.unknown_topic_or_partition if name in gone else code for name in offsets}

    async def _renewed(self, group: str) -> bool:
        try:
            return await self._partitions.renewed(group)
        except KlammError as error:
            log.info("the state of the partition of group %s cannot be read: %s", group, error)
            return False

    async def _guards(self, group: str, committer: OffsetCommitter) -> list[Check] | ErrorCode:
        """Returns the checks for the transaction that stores the offsets, or the error that refuses the commit. A
        commit from outside the group is refused while the group has registry members."""
        refused = self.not_mine(group)
        if refused is not None:
            return refused
        code = self.coordinator.commit_error(group, committer.member_id, committer.generation, committer.instance_id)
        if code is not ErrorCode.none:
            return code
        guards = self._partitions.guards(group)
        if self.coordinator.populated(group):
            unchanged_lock = self._locks.guard(group)
            if unchanged_lock is None:
                self._locks.taken_over(group, "this broker does not hold its lock")
                return ErrorCode.not_coordinator
            return [*guards, unchanged_lock]
        protocol, unchanged = await self._locks.read(group)
        return ErrorCode.inconsistent_group_protocol if protocol is GroupProtocol.REGISTRY else [*guards, *unchanged]

    @property
    def coordination_away(self) -> bool:
        """True if the coordination does not answer now: `store_current` then checks no guards."""
        return self._session.away

    def store_current(
        self,
        store: OffsetStore,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        guards: list[Check],
    ) -> set[TopicPartition]:
        """Stores the offsets whose topic exists; returns the others. Blocking, on any thread but the event loop's.
        Raises `BadVersionError` or `NoNodeError` if one of the guards fails."""
        if self._session.away:  # the store works without the coordination, as partitions do
            self._check_session()
            store.commit(group, offsets)
            self._check_session()
            return set()
        asked_s = self._clock()
        gone = commit_current(store, self._topics, group, offsets, guards)
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

    def _check_store(self) -> None:
        """Raises `CoordinationUnavailableError` at once if the store's coordination is known to be unreachable: a call
        would wait for its time-out, and delay the heartbeats on the same connection."""
        if self._offsets.needs_coordination and (self._session.away or self._session.expired):
            raise CoordinationUnavailableError("the coordination, which stores the offsets, is unavailable")

    async def fetch(self, group: str, names: Iterable[TopicPartition] | None) -> dict[TopicPartition, CommittedOffset]:
        """Returns the stored offsets of existing topics; an offset of a deleted topic of the same name is left out.
        Raises `CoordinationUnavailableError` when the store is unreachable, at once if that is known."""
        stored = await self.stored(group, names)
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

    async def stored(self, group: str, names: Iterable[TopicPartition] | None) -> dict[TopicPartition, CommittedOffset]:
        """Returns all stored offsets, also those of deleted topics."""
        self._check_store()
        return await self._workers.offsets(self._partitions.store(group).fetch, group, names)

    async def with_offsets(self) -> list[str]:
        """Returns the groups that are coordinated here and have a stored offset."""
        return await self._partitions.groups_with_offsets()

    async def forget_topics(self, deleted: Mapping[UUID, str]) -> None:
        """Deletes the offsets of deleted topics: see `OffsetCleanup.forget_topics`."""
        await self._cleanup.forget_topics(deleted)

    async def expire_offsets(self, now_ms: int) -> None:
        """Deletes the offsets of deserted groups: see `OffsetCleanup.expire_offsets`."""
        await self._cleanup.expire_offsets(now_ms)

    # -- the coordinator's clock, and its last members

    async def _tick(self) -> None:
        while True:
            due = self.coordinator.next_deadline()
            left = _LONGEST_TICK_S if due is None else due - self._clock()
            await asyncio.sleep(min(max(left, _SHORTEST_TICK_S), _LONGEST_TICK_S))
            try:
                self._session.look()
                self._partitions.look()
                if self.keeps_offsets_by_partition and (deleted := self._deleted.look()):
                    self._forget_soon(self._cleanup.forget_here(deleted))
                self.coordinator.tick()
            except Exception as error:  # it must go on, or no session of a member would end again
                log.exception("the groups are looked at again: %s", describe_error(error))
                await asyncio.sleep(_LONGEST_TICK_S)

    async def _loaded(self, partition: GroupPartition) -> None:
        """Called with a partition that is served from now on: deletes offsets of topics that were created again while
        another broker led it, or none."""
        if partition.groups is not None:
            self._forget_soon(self._forget_replaced(partition))

    async def _forget_replaced(self, partition: GroupPartition) -> None:
        ids = {topic.name: topic.topic_id for topic in self._image().topics.values()}
        doubtful: dict[UUID, str] = {}
        for group in await self._workers.offsets(partition.store.groups):
            stored = await self._workers.offsets(partition.store.fetch, group)
            for name, found in stored.items():
                if found.topic_id is not None and name.topic in ids and found.topic_id != ids[name.topic]:
                    doubtful[found.topic_id] = name.topic
        if doubtful:  # the image may be older than a commit
            now = await self._workers.coordination(self._topics.now, set(doubtful.values()))
            gone = {i: name for i, name in doubtful.items() if now.get(name, i) != i}
            await self._cleanup.forget_in(await self._workers.offsets(partition.store.groups), gone)

    def _forget_soon(self, forgetting: Coroutine[Any, Any, None]) -> None:
        """Runs it as a task. Nothing is lost if it fails: offsets of a deleted topic are ignored, and looked for again
        at the next load."""
        task = asyncio.get_running_loop().create_task(forgetting)
        self._forgetting.add(task)
        task.add_done_callback(self._forgot)

    def _forgot(self, task: asyncio.Task[None]) -> None:
        self._forgetting.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, KlammError):
            log.info("offsets of deleted topics stay for now: %s", error)
        elif error is not None:
            log.error("offsets of deleted topics stay for now: %s", describe_error(error))

    def _changed(self, group: str) -> None:
        state = self.coordinator.state_to_store(group, _now_ms())
        store = self._partitions.group_store(group)
        if state is not None and store is not None:
            self._group_metadata.save(store, group, state)

    def _emptied(self, group: str) -> None:
        self._locks.emptied(group)
        self._cleanup.emptied(group, _now_ms())


class DeletedTopics:
    """The topics that `look` finds missing in the image, since it was called last."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        self._seen = image()

    def look(self) -> dict[UUID, str]:
        """Returns the deleted topics' names by id. A coordination that was restored from a backup lacks topics that
        were not deleted: its version is lower."""
        before, now = self._seen, self._image()
        self._seen = now
        if now is before or now.version <= before.version or now.history != before.history:
            return {}
        ids = {topic.topic_id for topic in now.topics.values()}
        return {topic.topic_id: topic.name for topic in before.topics.values() if topic.topic_id not in ids}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _completing(done: asyncio.Future[R]) -> Callable[[R], None]:
    """Returns a callback that completes `done`, unless the connection was closed in the meantime."""

    def complete(result: R) -> None:
        if not done.done():
            done.set_result(result)

    return complete
