"""Tests of a broker whose groups' states cannot be stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from klamm.core.broker.coordinator.group_metadata_manager import GroupMetadataManager
from klamm.core.broker.workers import Workers
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.groups.records.stored_group import StoredGroup
from klamm.core.interfaces.coordination import CoordinationUnavailableError


class Store:
    """Fails as it is told, first come first served; then it stores."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.saved: list[tuple[str, int]] = []

    def save_group(self, group: str, state: StoredGroup) -> None:
        self._fail()
        self.saved.append((group, state.generation))

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


def state(generation: int) -> StoredGroup:
    return StoredGroup("consumer", generation, "range", None)


def keeping(store: Any, use: Callable[[GroupMetadataManager, Any], Any]) -> tuple[Any, list[tuple[str, int]]]:
    """Returns the result of `use`, and the failures that were reported."""
    failed: list[tuple[str, int]] = []

    async def run() -> Any:
        workers = Workers(1)
        try:
            return await use(GroupMetadataManager(workers, lambda *what: failed.append(what)), store)
        finally:
            workers.close()

    return asyncio.run(run()), failed


def test_saves_of_a_group_keep_their_order() -> None:
    async def use(manager: GroupMetadataManager, store: Any) -> ErrorCode:
        for generation in range(20):
            manager.save(store, "g", state(generation))
        return await manager.saved("g")

    store = Store()
    assert keeping(store, use) == (ErrorCode.none, [])
    assert store.saved == [("g", generation) for generation in range(20)]


def test_a_state_that_cannot_be_stored_is_told() -> None:
    async def use(manager: GroupMetadataManager, store: Any) -> list[ErrorCode]:
        manager.save(store, "g", state(1))
        first = await manager.saved("g")
        manager.save(store, "g", state(2))
        return [first, await manager.saved("g")]

    store = Store(CoordinationUnavailableError("away"))
    codes = [ErrorCode.coordinator_not_available, ErrorCode.none]
    assert keeping(store, use) == (codes, [("g", 1)])
    assert store.saved == [("g", 2)]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.fenced_leader_epoch, ErrorCode.not_coordinator),
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.not_enough_replicas_after_append, ErrorCode.coordinator_not_available),
        (ErrorCode.request_timed_out, ErrorCode.rebalance_in_progress),
        (ErrorCode.message_too_large, ErrorCode.unknown_server_error),
    ],
)
def test_members_get_the_code_that_kafka_gives(failure: ErrorCode, code: ErrorCode) -> None:
    async def use(manager: GroupMetadataManager, store: Any) -> ErrorCode:
        manager.save(store, "g", state(1))
        return await manager.saved("g")

    assert keeping(Store(BrokerError(failure)), use) == (code, [("g", 1)])
