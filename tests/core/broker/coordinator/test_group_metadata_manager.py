"""Tests of a broker whose groups' states cannot be stored, or cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from klamm.core.broker.coordinator.group_metadata_manager import GroupMetadataManager
from klamm.core.broker.workers import Workers
from klamm.core.errors import CorruptRecordError, ErrorCode
from klamm.core.interfaces.coordination import CoordinationUnavailableError
from klamm.core.interfaces.offsets import StoredGroup


class Store:
    """Fails as it is told, first come first served; then it stores."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.saved: list[tuple[str, int]] = []

    def save_group(self, group: str, state: StoredGroup) -> None:
        self._fail()
        self.saved.append((group, state.generation))

    def load_groups(self) -> dict[str, StoredGroup]:
        self._fail()
        return {"g": state(3)}

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


def state(generation: int) -> StoredGroup:
    return StoredGroup("consumer", generation, "range", None)


def keeping(store: Any, use: Callable[[GroupMetadataManager], Any]) -> tuple[Any, list[tuple[str, int]]]:
    """Returns the result of `use`, and the failures that were reported."""
    failed: list[tuple[str, int]] = []

    async def run() -> Any:
        workers = Workers(1)
        try:
            return await use(GroupMetadataManager(store, workers, lambda *what: failed.append(what)))
        finally:
            workers.close()

    return asyncio.run(run()), failed


def test_saves_of_a_group_keep_their_order() -> None:
    async def use(manager: GroupMetadataManager) -> ErrorCode:
        for generation in range(20):
            manager.save("g", state(generation))
        return await manager.saved("g")

    store = Store()
    assert keeping(store, use) == (ErrorCode.none, [])
    assert store.saved == [("g", generation) for generation in range(20)]


def test_a_state_that_cannot_be_stored_is_told() -> None:
    async def use(manager: GroupMetadataManager) -> list[ErrorCode]:
        manager.save("g", state(1))
        first = await manager.saved("g")
        manager.save("g", state(2))
        return [first, await manager.saved("g")]

    store = Store(CoordinationUnavailableError("away"))
    codes = [ErrorCode.coordinator_not_available, ErrorCode.none]
    assert keeping(store, use) == (codes, [("g", 1)])
    assert store.saved == [("g", 2)]


def test_loading_waits_for_the_store() -> None:
    assert keeping(Store(CoordinationUnavailableError("not yet")), GroupMetadataManager.load) == ({"g": state(3)}, [])


def test_groups_that_cannot_be_read_are_none() -> None:
    assert keeping(Store(CorruptRecordError("cut off")), GroupMetadataManager.load) == ({}, [])


def test_a_store_that_keeps_no_groups_is_not_asked() -> None:
    async def use(manager: GroupMetadataManager) -> Any:
        manager.save("g", state(1))
        return manager.keeps, await manager.saved("g"), await manager.load()

    assert keeping(object(), use) == ((False, ErrorCode.none, {}), [])
