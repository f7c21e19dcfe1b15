"""Stores the state of classic groups that survives their coordinator: saves it when a group is stable, loads it when
this broker becomes the leader of their partition.

Rules (Kafka's GroupMetadataManager). A group's new state is stored before its members receive it; if that fails they
get an error and join again. The saves of one group keep their order. Only a partition's own store keeps groups; with
another one nothing is awaited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tenacity import AsyncRetrying, before_sleep_log, retry_if_exception_type, wait_exponential

from ...errors import BrokerError, ErrorCode, KlammError
from ...interfaces.coordination import CoordinationUnavailableError
from ...interfaces.offsets import GroupStore, StoredGroup
from ..workers import Workers
from .coordinator_errors import state_code
from .key_sequencer import KeySequencer

log = logging.getLogger(__name__)


class GroupMetadataManager:
    """Belongs to the event loop. `on_failed(group, generation)` is called if a state could not be stored."""

    def __init__(self, workers: Workers, on_failed: Callable[[str, int], None]) -> None:
        self._workers = workers
        self._on_failed = on_failed
        self._saving = KeySequencer()

    def save(self, store: GroupStore, group: str, state: StoredGroup) -> None:
        """Begins to store the state; `saved` returns the outcome."""
        self._saving.begin(group, self._save(store, group, state))

    async def saved(self, group: str) -> ErrorCode:
        """Waits until the group's saves have ended; returns `none` if its last state is stored."""
        task = self._saving.last(group)
        return await asyncio.shield(task) if task is not None else ErrorCode.none

    async def stop(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` for running saves; a state that is not stored costs the members a rebalance."""
        await self._saving.stop(timeout_s)

    async def load(self, store: GroupStore) -> dict[str, StoredGroup]:
        """Returns the stored groups of a partition. Retries until the store answers; a store that cannot be read
        returns none. Raises `BrokerError` NOT_LEADER_OR_FOLLOWER if this broker does not lead the partition any
        more."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(CoordinationUnavailableError),
            wait=wait_exponential(multiplier=0.1, max=5.0),
            before_sleep=before_sleep_log(log, logging.INFO),
        )
        try:
            return await retrying(self._workers.offsets, store.load_groups)
        except BrokerError:
            raise
        except KlammError as error:
            log.error("the stored groups cannot be read; their members will rejoin: %s", error)
            return {}

    async def _save(self, store: GroupStore, group: str, state: StoredGroup) -> ErrorCode:
        try:
            await self._workers.offsets(store.save_group, group, state)
        except KlammError as error:
            log.warning("group %s, generation %d, could not be stored: %s", group, state.generation, error)
            self._on_failed(group, state.generation)
            return state_code(error)
        return ErrorCode.none
