"""The partitions of `__consumer_offsets` that this broker leads, and their groups: loaded when it becomes the leader,
dropped when it is the leader no longer.

Rules. A group request is served while this broker leads the group's partition in the leader epoch in which its groups
were loaded, else it gets NOT_COORDINATOR, and COORDINATOR_LOAD_IN_PROGRESS during the load (a JoinGroup waits).
The groups of a partition are restored together when the load ends, so that the sessions of all members begin when their
heartbeats are accepted. A new leader epoch loads again, also where this broker led before. The load of an epoch that is
over ends without effect. Changes of leadership are noticed at each request and at each tick of the group service.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from tenacity import AsyncRetrying, before_sleep_log, retry_if_exception_type, wait_exponential

from ...cluster.changes import incarnation_path
from ...errors import BrokerError, ErrorCode, KlammError, describe_error
from ...groups.coordinator.coordinator import GroupCoordinator
from ...groups.offsets_topic import OFFSETS_TOPIC
from ...interfaces.coordination import Check, Coordination, CoordinationUnavailableError
from ...interfaces.offsets import GroupStore, OffsetStore, PartitionedStore, StoredGroup
from ...records.codecs import CodecTable
from ...records.partition import TopicPartition, counted
from ..workers import Workers
from .group_locks import GroupLocks
from .group_metadata_manager import GroupMetadataManager
from .leader_fence import LeaderFence
from .led_log import LedLog
from .placement import GroupPlacement, LedRole

log = logging.getLogger(__name__)
_RETRY_S = 0.1
_COMMITTED_LOOK_S = 0.02
_LOCK_RETRY_S = 0.5


@dataclass(eq=False)
class GroupPartition:
    """One partition in one leader epoch. `groups`: its own store; None if the store keeps no groups. `loaded_ms`: since
    when it is served here, in ms since the epoch."""

    role: LedRole
    log: LedLog
    store: OffsetStore
    groups: GroupStore | None
    fence: LeaderFence
    active: bool = False
    loaded_ms: int = 0
    load: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def failed(self) -> bool:
        """True if the load has ended without success."""
        return not self.active and self.load is not None and self.load.done()


class GroupPartitions:
    """Belongs to the event loop. `on_loaded` is called with each partition whose groups were loaded."""

    def __init__(
        self,
        broker_id: int,
        placement: GroupPlacement,
        coordination: Coordination,
        offsets: OffsetStore,
        workers: Workers,
        codecs: CodecTable,
        coordinator: GroupCoordinator,
        locks: GroupLocks,
        group_metadata: GroupMetadataManager,
        on_loaded: Callable[[GroupPartition], Awaitable[None]],
    ) -> None:
        self._broker_id = broker_id
        self._placement = placement
        self._coordination = coordination
        self._offsets = offsets
        self._partitioned = offsets if isinstance(offsets, PartitionedStore) else None
        """The same store, if each partition has a store of its own. Kept: `isinstance` of a protocol is slow."""
        self._workers = workers
        self._codecs = codecs
        self._coordinator = coordinator
        self._locks = locks
        self._group_metadata = group_metadata
        self._on_loaded = on_loaded
        self._entries: dict[int, GroupPartition] = {}
        self._stopped = False

    def look(self) -> None:
        """Compares the partitions with what this broker leads now: begins loads, drops groups."""
        if self._stopped:
            return
        roles = self._placement.roles()
        for number, entry in list(self._entries.items()):
            if roles.get(number) != entry.role or entry.failed:
                self._drop(entry)
        for number, role in roles.items():
            if number not in self._entries:
                self._begin(role)

    def stop(self) -> None:
        """Ends running loads and appends."""
        self._stopped = True
        for entry in self._entries.values():
            self._end(entry)

    # -- for requests

    def refusal(self, group: str) -> ErrorCode | None:
        """Returns the error for a request about a group that is not served here now."""
        number = self._placement.partition_of(group)
        role = None if number is None else self._placement.role(number)
        entry = None if number is None else self._entries.get(number)
        if role != (None if entry is None else entry.role):
            self.look()
            entry = None if number is None else self._entries.get(number)
        if entry is None:
            return ErrorCode.not_coordinator
        return None if entry.active else ErrorCode.coordinator_load_in_progress

    async def loaded(self, group: str, timeout_s: float) -> None:
        """Waits while the group's partition is loaded, `timeout_s` at most. `refusal` says what is then."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.refusal(group) is ErrorCode.coordinator_load_in_progress and not self._stopped:
            number, left = self._placement.partition_of(group), deadline - loop.time()
            entry = None if number is None else self._entries.get(number)
            if left <= 0 or entry is None or entry.load is None:
                return
            if entry.failed:  # the next tick begins it again
                await asyncio.sleep(min(left, _RETRY_S))
            else:
                await asyncio.wait([entry.load], timeout=left)

    def of(self, group: str) -> GroupPartition:
        """Returns the partition of a group that is served here. Raises `BrokerError` with the code of `refusal`."""
        refused = self.refusal(group)
        number = self._placement.partition_of(group)
        if refused is not None or number is None:
            raise BrokerError(refused or ErrorCode.not_coordinator, f"group {group!r} is not coordinated here now")
        return self._entries[number]

    def store(self, group: str) -> OffsetStore:
        """Returns the store for a group's offsets; raises as `of` if that is the partition's own."""
        return self.of(group).store if self._partitioned is not None else self._offsets

    def group_store(self, group: str) -> GroupStore | None:
        """Returns the store that keeps the group's members, also while its partition is loaded; None if there is
        none."""
        number = self._placement.partition_of(group)
        entry = None if number is None else self._entries.get(number)
        return None if entry is None else entry.groups

    async def groups_with_offsets(self) -> list[str]:
        """Returns the groups with a stored offset that are this broker's to list and to expire, sorted."""
        return [group for group in await self.reachable_groups() if self.keeps(group)]

    async def reachable_groups(self) -> list[str]:
        """Returns the groups with a stored offset: all, or those that are coordinated here where each partition has a
        store of its own."""
        if self._partitioned is None:
            return await self._workers.offsets(self._offsets.groups)
        groups: set[str] = set()
        for entry in self.active():
            with suppress(BrokerError):  # this broker does not lead it any more
                groups.update(await self._workers.offsets(entry.store.groups))
        return sorted(group for group in groups if self.refusal(group) is None)

    def keeps(self, group: str) -> bool:
        """Returns whether the group is this broker's to list and to expire."""
        return self._placement.keeps_unplaced or self.refusal(group) is None

    def unknown_until_ms(self, group: str) -> int:
        """Returns the time before which nothing is known of the group's members, in ms since the epoch: when this
        broker began to coordinate it; 0 if the store keeps groups."""
        number = self._placement.partition_of(group)
        entry = None if number is None else self._entries.get(number)
        return 0 if entry is None or entry.groups is not None else entry.loaded_ms

    def guards(self, group: str) -> list[Check]:
        """Returns the checks that hold while this broker is registered and, unless the leader epoch fences the appends
        to the partition's own store, leads the group's partition. Raises `BrokerError` NOT_COORDINATOR without a
        registration."""
        incarnation = self._placement.incarnation()
        if not incarnation:
            raise BrokerError(ErrorCode.not_coordinator, "this broker is not registered now")
        guards = [Check(incarnation_path(incarnation))]
        number = self._placement.partition_of(group)
        entry = None if number is None else self._entries.get(number)
        if number is not None and (entry is None or not entry.active):  # it was dropped while the request waited
            raise BrokerError(ErrorCode.not_coordinator, f"group {group!r} is not coordinated here now")
        if entry is not None and entry.groups is None:
            guards.append(entry.fence.check)
        return guards

    async def renewed(self, group: str) -> bool:
        """Called after a guard failed: returns True if the state of the group's partition has changed, and this broker
        leads in the same leader epoch. `guards` then returns new checks."""
        number = self._placement.partition_of(group)
        entry = None if number is None else self._entries.get(number)
        if entry is None or entry.groups is not None:
            return False
        before = entry.fence.check
        return await self._workers.coordination(entry.fence.read) and entry.fence.check != before

    @property
    def loading(self) -> bool:
        return any(not entry.active for entry in self._entries.values())

    def active(self) -> Iterator[GroupPartition]:
        """The partitions that are served now, in the roles of this moment."""
        self.look()
        return (entry for entry in tuple(self._entries.values()) if entry.active)

    # -- becoming and ceasing to be the leader

    def _begin(self, role: LedRole) -> None:
        replica = self._placement.replica(role)
        if replica is None:
            return
        own_log = LedLog(replica, self._workers, self._codecs)
        partition = TopicPartition(OFFSETS_TOPIC, role.number)
        fence = LeaderFence(self._coordination, self._broker_id, partition, role.leader_epoch)
        if self._partitioned is not None:
            store = self._partitioned.at_leader(own_log)
            entry = GroupPartition(role, own_log, store, store, fence)
        else:
            entry = GroupPartition(role, own_log, self._offsets, None, fence)
        self._entries[role.number] = entry
        entry.load = asyncio.get_running_loop().create_task(self._load(entry))
        entry.load.add_done_callback(_log_failure)

    def _drop(self, entry: GroupPartition) -> None:
        self._end(entry)
        del self._entries[entry.role.number]
        dropped = [group for group in self._coordinator.group_ids() if entry.role.holds(group)]
        for group in dropped:
            self._locks.drop(group, ErrorCode.not_coordinator)
        if dropped or entry.active:
            log.info(
                "%s-%d is not led here in epoch %d any more: %s dropped",
                OFFSETS_TOPIC, entry.role.number, entry.role.leader_epoch, counted(len(dropped), "group"),
            )  # fmt: skip

    def _end(self, entry: GroupPartition) -> None:
        entry.log.close()
        if entry.load is not None:
            entry.load.cancel()

    async def _load(self, entry: GroupPartition) -> None:
        states: dict[str, StoredGroup] = {}
        await self._read_fence(entry.fence)
        if entry.groups is not None:
            while not entry.log.committed:
                await asyncio.sleep(_COMMITTED_LOOK_S)
            try:
                stored = await self._group_metadata.load(entry.groups)
            except BrokerError as error:
                log.info("the groups of %s are not loaded: %s", entry.log.partition, error)
                return  # the leader epoch is over: the next look drops the entry
            states = {group: state for group, state in stored.items() if entry.role.holds(group)}
        locked: list[str] = []
        try:
            for group in [group for group, state in states.items() if state.members]:
                if await self._acquire(entry, group):
                    locked.append(group)
                else:
                    del states[group]
            if self._entries.get(entry.role.number) is not entry:
                return
            # Not before: the members' sessions begin here, and no heartbeat is accepted during the load.
            self._coordinator.restore(states)
            entry.active, entry.loaded_ms = True, time.time_ns() // 1_000_000
        finally:
            self._acquired(entry, locked)
        level = logging.INFO if locked else logging.DEBUG
        log.log(level, "%s: %s with members loaded", entry.log.partition, counted(len(locked), "group"))
        await self._on_loaded(entry)

    async def _read_fence(self, fence: LeaderFence) -> None:
        """Waits until the coordination says that this broker leads; if it does not, a newer image is on its way."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(CoordinationUnavailableError),
            wait=wait_exponential(multiplier=0.1, max=5.0),
            before_sleep=before_sleep_log(log, logging.INFO),
        )
        while not await retrying(self._workers.coordination, fence.read):
            await asyncio.sleep(_RETRY_S)

    async def _acquire(self, entry: GroupPartition, group: str) -> bool:
        """Acquires the lock of a group with members; returns False if it must not be restored."""
        while (refused := await self._locks.acquire(group, entry.fence)) is ErrorCode.coordinator_not_available:
            await asyncio.sleep(_LOCK_RETRY_S)
        return refused is None

    def _acquired(self, entry: GroupPartition, groups: Iterable[str]) -> None:
        """Called when the load has ended, with the groups whose locks it acquired."""
        for group in groups:
            if entry.active:
                self._locks.join_delivered(group)
            elif not self._stopped:  # the end of the session releases them
                self._locks.abandon(group)


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if isinstance(error, KlammError):
        log.warning("the groups of a partition could not be loaded, it is tried again: %s", error)
    elif error is not None:
        log.error("the groups of a partition could not be loaded, it is tried again: %s", describe_error(error))
