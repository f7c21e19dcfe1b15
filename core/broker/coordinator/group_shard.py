"""The classic groups of one partition of `__consumer_offsets`, at the broker that leads it, in one leader epoch.

Rules. The groups of a partition are restored together when the load ends, so that the sessions of all members begin
when their heartbeats are accepted. Before that the protocol lock of each group with members is acquired.
"""

from __future__ import annotations

import asyncio
import logging

from tenacity import AsyncRetrying, before_sleep_log, retry_if_exception_type, wait_exponential

from ...errors import BrokerError, ErrorCode, KlammError
from ...groups.coordinator.coordinator import GroupCoordinator
from ...groups.records.stored_group import StoredGroup
from ...interfaces.coordination import CoordinationUnavailableError
from ...records.partition import TopicPartition, counted
from ..workers import Workers
from .coordinator_topic import LedRole
from .group_locks import GroupLocks
from .leader_fence import LeaderFence
from .stored_groups import StoredGroups

log = logging.getLogger(__name__)
_RETRY_S = 0.1
_LOCK_RETRY_S = 0.5


class GroupShard:
    """Implements `klamm.core.broker.coordinator.runtime.Shard`. `stored`: the groups and offsets in the log."""

    def __init__(
        self,
        role: LedRole,
        partition: TopicPartition,
        stored: StoredGroups,
        fence: LeaderFence,
        coordinator: GroupCoordinator,
        locks: GroupLocks,
        workers: Workers,
    ) -> None:
        self.stored = stored
        self.fence = fence
        self.clear, self.apply = stored.clear, stored.apply
        self._role = role
        self._partition = partition
        self._coordinator = coordinator
        self._locks = locks
        self._workers = workers
        self._restored = False

    async def load(self) -> None:
        await self._read_fence()
        states = {group: state for group, state in (await self.states()).items() if self._role.holds(group)}
        locked: list[str] = []
        try:
            for group in [group for group, state in states.items() if state.members]:
                if await self._acquire(group):
                    locked.append(group)
                else:
                    del states[group]
            # Not before: the members' sessions begin here, and no heartbeat is accepted during the load.
            self._coordinator.restore(states)
            self._restored = True
        finally:
            for group in locked:
                if self._restored:
                    self._locks.join_delivered(group)
                else:
                    self._locks.abandon(group)
        level = logging.INFO if locked else logging.DEBUG
        log.log(level, "%s: %s with members loaded", self._partition, counted(len(locked), "group"))

    def unload(self) -> None:
        dropped = [group for group in self._coordinator.group_ids() if self._role.holds(group)]
        for group in dropped:
            self._locks.drop(group, ErrorCode.not_coordinator)
        if dropped or self._restored:
            log.info(
                "%s is not led here in epoch %d any more: %s dropped",
                self._partition, self._role.leader_epoch, counted(len(dropped), "group"),
            )  # fmt: skip

    async def states(self) -> dict[str, StoredGroup]:
        """Returns the stored states of the groups; none, with a line in the log, if they cannot be read. Raises
        `BrokerError` NOT_LEADER_OR_FOLLOWER if this broker no longer leads the partition."""
        try:
            return await self._workers.offsets(self.stored.load_groups)
        except BrokerError:
            raise
        except KlammError as error:
            log.error("the stored groups cannot be read; their members will rejoin: %s", error)
            return {}

    async def _read_fence(self) -> None:
        """Waits until the coordination confirms that this broker leads. If it does not confirm, a newer image will
        arrive."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(CoordinationUnavailableError),
            wait=wait_exponential(multiplier=0.1, max=5.0),
            before_sleep=before_sleep_log(log, logging.INFO),
        )
        while not await retrying(self._workers.coordination, self.fence.read):
            await asyncio.sleep(_RETRY_S)

    async def _acquire(self, group: str) -> bool:
        """Acquires the lock of a group with members; returns False if it must not be restored."""
        while (refused := await self._locks.acquire(group, self.fence)) is ErrorCode.coordinator_not_available:
            await asyncio.sleep(_LOCK_RETRY_S)
        return refused is None
