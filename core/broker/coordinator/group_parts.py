"""What the parts of the group coordinator have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...errors import ErrorCode
from ...groups.coordinator.coordinator import GroupCoordinator
from ..workers import Workers
from .coordinated_offsets import CoordinatedOffsets
from .group_locks import GroupLocks
from .group_metadata_manager import GroupMetadataManager
from .group_shard import GroupShard
from .runtime import CoordinatorRuntime


class GroupParts(NamedTuple):
    """`not_mine` returns the error for a group that is not served here now."""

    runtime: CoordinatorRuntime[GroupShard]
    coordinator: GroupCoordinator
    offsets: CoordinatedOffsets
    locks: GroupLocks
    metadata: GroupMetadataManager
    workers: Workers
    not_mine: Callable[[str], ErrorCode | None]


class GroupPart:
    """Belongs to the event loop."""

    def __init__(self, parts: GroupParts) -> None:
        (
            self._runtime, self._coordinator, self._offsets, self._locks, self._metadata, self._workers,
            self._not_mine,
        ) = parts  # fmt: skip
