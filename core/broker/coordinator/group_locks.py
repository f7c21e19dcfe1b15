"""The protocol locks of classic groups (design D6) on the event loop: the calls that block run on worker threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from ...errors import ErrorCode, KlammError
from ...groups.coordinator.coordinator import GroupCoordinator
from ...groups.group_protocol_lock import (
    ClassicGroupLocks,
    GroupProtocol,
    active_protocol,
    last_protocol,
    pin_lock,
    read_lock,
    unpin_lock,
)
from ...interfaces.coordination import Check, Coordination, CoordinationUnavailableError
from ..workers import Workers
from .leader_fence import LeaderFence

log = logging.getLogger(__name__)
_RELEASE_ATTEMPTS = 20
_REFUSALS = frozenset({ErrorCode.inconsistent_group_protocol, ErrorCode.not_coordinator})


class GroupLocks:
    """Belongs to the event loop. `incarnation` names this broker's present registration."""

    def __init__(
        self,
        coordination: Coordination,
        incarnation: Callable[[], str],
        workers: Workers,
        coordinator: GroupCoordinator,
    ) -> None:
        self._coordination = coordination
        self._workers = workers
        self._coordinator = coordinator
        self._locks = ClassicGroupLocks(coordination, incarnation, coordinator.populated)
        self._releasing: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def stop(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for running releases; the end of the session releases the other locks."""
        self._stopped = True
        if self._releasing:
            await asyncio.wait(self._releasing, timeout=timeout_s)
        for task in self._releasing:
            task.cancel()

    async def acquire(self, group: str, fence: LeaderFence) -> ErrorCode | None:
        """Acquires the lock for a join while the `fence` holds, or returns the error that refuses it. Call
        `join_delivered` if it returned None."""
        acquiring = asyncio.ensure_future(self._workers.coordination(self._locks.acquire, group, fence.confirmed))
        try:
            await asyncio.shield(acquiring)
        except asyncio.CancelledError:  # the client has disconnected; the thread cannot be stopped
            acquiring.add_done_callback(lambda done: self._abandoned(done, group))
            raise
        except KlammError as error:
            log.info("group %s cannot be joined: %s", group, error)
            return error.code if error.code in _REFUSALS else ErrorCode.coordinator_not_available
        return None

    def _abandoned(self, acquiring: asyncio.Future[None], group: str) -> None:
        if not acquiring.cancelled() and acquiring.exception() is None:
            self.join_delivered(group)

    def join_delivered(self, group: str) -> None:
        """Called once the join has reached the coordinator, or never will: releases the lock of an empty group."""
        if self._locks.join_delivered(group):
            self.emptied(group)

    def abandon(self, group: str) -> None:
        """Called when the lock was acquired and the group was not loaded: releases it, unless a successor has taken
        it."""
        if self._stopped:
            return
        self._locks.join_delivered(group)
        self._locks.mark_lost(group)
        self.emptied(group)

    def emptied(self, group: str) -> None:
        """Starts to release the lock of a group without members."""
        task = asyncio.get_running_loop().create_task(self._release(group))
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, group: str) -> None:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(CoordinationUnavailableError),
            wait=wait_exponential(multiplier=0.5, max=30.0),
            stop=stop_after_attempt(_RELEASE_ATTEMPTS),
            reraise=True,
        )
        try:
            await retrying(self._workers.coordination, self._locks.release, group)
        except KlammError as error:
            log.warning("the lock of group %s is held until the session ends: %s", group, error)

    def guard(self, group: str) -> Check | None:
        """Returns the check that holds until another holder acquires the lock; None while this broker does not hold
        it."""
        return self._locks.guard(group)

    async def check(self, group: str) -> None:
        """Drops the group's members if another holder has acquired its lock; called after a guard failed."""
        try:
            if not await self._workers.coordination(self._locks.still_holds, group):
                self.taken_over(group, "another broker or a registry member has acquired its lock")
        except KlammError as error:
            log.info("the lock of group %s cannot be read: %s", group, error)

    def taken_over(self, group: str, why: object) -> None:
        """Drops the group, whose state here is outdated: its members join again at the present coordinator."""
        log.warning("the members of group %s are dropped: %s", group, why)
        self.drop(group, ErrorCode.unknown_member_id)

    def drop(self, group: str, error: ErrorCode) -> None:
        """Drops the group; its parked requests get `error`. Its lock is released, unless a successor has taken it."""
        self._locks.mark_lost(group)
        self._coordinator.evict(group, error)
        self.emptied(group)

    async def read(self, group: str) -> tuple[GroupProtocol | None, list[Check]]:
        return await self._workers.coordination(read_lock, self._coordination, group)

    async def protocol(self, group: str) -> GroupProtocol | None:
        return await self._workers.coordination(active_protocol, self._coordination, group)

    async def held_elsewhere(self, group: str) -> bool:
        """Returns whether another broker holds the lock: the group's former coordinator, whose members have not joined
        here yet."""
        held = await self.protocol(group) is GroupProtocol.CLASSIC
        if held and not self._locks.knows(group):  # it may have been released here since it was read
            held = await self.protocol(group) is GroupProtocol.CLASSIC
        return held and not self._locks.knows(group)

    async def last_protocol(self, group: str) -> GroupProtocol | None:
        return await self._workers.coordination(last_protocol, self._coordination, group)

    @asynccontextmanager
    async def pinned(self, group: str) -> AsyncIterator[tuple[GroupProtocol | None, list[Check]]]:
        """Yields the protocol of the group's members, and the checks that fail once the lock is acquired again."""
        protocol, unchanged = await self._workers.coordination(pin_lock, self._coordination, group)
        try:
            yield protocol, unchanged
        finally:
            await self._workers.coordination(unpin_lock, self._coordination, group)
