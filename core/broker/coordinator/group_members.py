"""JoinGroup and SyncGroup: futures that the coordinator's callbacks complete."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ...errors import ErrorCode
from ...groups.coordinator.requests import JoinRequest, JoinResult, SyncRequest, SyncResult
from .group_parts import GroupPart

R = TypeVar("R")
_LONGEST_LOAD_S = 2.0
"""The longest wait of a JoinGroup for the load of its group's shard."""


class GroupMembers(GroupPart):
    """Belongs to the event loop."""

    async def join(self, request: JoinRequest) -> JoinResult:
        """Answers when the group's rebalance has ended, or with an error. Waits for a shard that is being loaded: that
        takes some milliseconds, and librdkafka asks again only 3 s after COORDINATOR_LOAD_IN_PROGRESS."""
        refused = self._not_mine(request.group_id)
        if refused is ErrorCode.coordinator_load_in_progress:
            await self._runtime.loaded(request.group_id, _LONGEST_LOAD_S)
            refused = self._not_mine(request.group_id)
        if refused is None and request.group_id:
            fence = self._runtime.shard(request.group_id).fence
            refused = await self._locks.acquire(request.group_id, fence)
        if refused is not None:
            return JoinResult(refused, request.member_id)
        done: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        try:
            refused = self._not_mine(request.group_id)  # the partition may have been lost during the acquisition
            if refused is not None:
                return JoinResult(refused, request.member_id)
            self._coordinator.join(request, _completing(done))
        finally:
            if request.group_id:
                self._locks.join_delivered(request.group_id)
        result = await done
        if result.error is ErrorCode.none and request.instance_id is not None:
            # A static member that rejoined has a new id, which is stored although nothing else may have changed.
            stored = await self._metadata.saved(request.group_id)
            return result if stored is ErrorCode.none else JoinResult(stored, request.member_id)
        return result

    async def sync(self, request: SyncRequest) -> SyncResult:
        """Answers with the member's assignment, once the group's state with it is stored."""
        refused = self._not_mine(request.group_id)
        if refused is not None:
            return SyncResult(refused)
        done: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
        self._coordinator.sync(request, _completing(done))
        result = await done
        if result.error is not ErrorCode.none:
            return result
        stored = await self._metadata.saved(request.group_id)
        return result if stored is ErrorCode.none else SyncResult(stored)


def _completing(done: asyncio.Future[R]) -> Callable[[R], None]:
    """Returns a callback that completes `done`, unless the connection was closed in the meantime."""

    def complete(result: R) -> None:
        if not done.done():
            done.set_result(result)

    return complete
