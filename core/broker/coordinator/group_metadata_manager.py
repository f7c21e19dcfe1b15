"""Stores the state of classic groups that survives the broker: saves it when a group is stable, loads it at the start.

Rules (Kafka's GroupMetadataManager). A group's new state is stored before its members receive it; if that fails they
get COORDINATOR_NOT_AVAILABLE and join again. The saves of one group keep their order. Only a store that is a
`GroupStore` keeps groups; with another one nothing is awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tenacity import AsyncRetrying, before_sleep_log, retry_if_exception_type, wait_exponential

from ...errors import ErrorCode, KlammError
from ...interfaces.coordination import CoordinationUnavailableError
from ...interfaces.offsets import GroupStore, OffsetStore, StoredGroup
from ..workers import Workers
from .key_sequencer import KeySequencer

log = logging.getLogger(__name__)


class GroupMetadataManager:
    """Belongs to the event loop. `on_failed(group, generation)` is called if a state could not be stored."""

    def __init__(self, store: OffsetStore, workers: Workers, on_failed: Callable[[str, int], None]) -> None:
        self._store = store if isinstance(store, GroupStore) else None
        self._workers = workers
        self._on_failed = on_failed
        self._saving = KeySequencer()

    @property
    def keeps(self) -> bool:
        """True if states are stored at all."""
        return self._store is not None

    def save(self, group: str, state: StoredGroup) -> None:
        """Begins to store the state; `saved` returns the outcome."""
        if self._store is not None:
            self._saving.begin(group, self._save(self._store, group, state))

    async def saved(self, group: str) -> ErrorCode:
        """Waits until the group's saves have ended; returns `none` if its last state is stored."""
        task = self._saving.last(group)
        return await asyncio.shield(task) if task is not None else ErrorCode.none

    async def stop(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for running saves; a state that is not stored costs the members a rebalance."""
        await self._saving.stop(timeout_s)

    async def load(self) -> dict[str, StoredGroup]:
        """Returns all stored groups. Retries until the store answers; a store that cannot be read returns none."""
        if self._store is None:
            return {}
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(CoordinationUnavailableError),
            wait=wait_exponential(multiplier=0.1, max=5.0),
            before_sleep=before_sleep_log(log, logging.INFO),
        )
        try:
            return await retrying(self._workers.offsets, self._store.load_groups)
        except KlammError as error:
            log.error("the stored groups cannot be read; their members will rejoin: %s", error)
            return {}

    async def _save(self, store: GroupStore, group: str, state: StoredGroup) -> ErrorCode:
        try:
            await self._workers.offsets(store.save_group, group, state)
        except KlammError as error:
            log.warning("group %s, generation %d, could not be stored: %s", group, state.generation, error)
            self._on_failed(group, state.generation)
            return ErrorCode.coordinator_not_available
        return ErrorCode.none
