"""Stores the state of classic groups, which survives their coordinator, whenever a group is stable or empty.

Rules (Kafka's GroupMetadataManager). A group's new state is stored before its members receive it; if that fails they
get an error and join again. The saves of one group keep their order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ...errors import ErrorCode, KlammError
from ...groups.records.stored_group import StoredGroup
from ..workers import Workers
from .coordinator_errors import state_code
from .key_sequencer import KeySequencer
from .stored_groups import StoredGroups

log = logging.getLogger(__name__)


class GroupMetadataManager:
    """Belongs to the event loop. `on_failed(group, generation)` is called if a state could not be stored."""

    def __init__(self, workers: Workers, on_failed: Callable[[str, int], None]) -> None:
        self._workers = workers
        self._on_failed = on_failed
        self._saving = KeySequencer()

    def save(self, store: StoredGroups, group: str, state: StoredGroup) -> None:
        """Starts to store the state; `saved` returns the outcome."""
        self._saving.begin(group, self._save(store, group, state))

    async def saved(self, group: str) -> ErrorCode:
        """Waits until the group's saves have ended; returns `none` if its last state is stored."""
        task = self._saving.last(group)
        return await asyncio.shield(task) if task is not None else ErrorCode.none

    async def stop(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for running saves; a state that is not stored makes the members rebalance."""
        await self._saving.stop(timeout_s)

    async def _save(self, store: StoredGroups, group: str, state: StoredGroup) -> ErrorCode:
        try:
            await self._workers.offsets(store.save_group, group, state)
        except KlammError as error:
            log.warning("group %s, generation %d, could not be stored: %s", group, state.generation, error)
            self._on_failed(group, state.generation)
            return state_code(error)
        return ErrorCode.none
