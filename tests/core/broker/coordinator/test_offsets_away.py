"""While the coordination's session is suspended, commits to it are refused at once: they would hold up heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from klamm.core.broker.coordinator.group_service import GroupService, OffsetCommitter
from klamm.core.broker.workers import Workers
from klamm.core.cluster.image import EMPTY_IMAGE
from klamm.core.cluster.tree import paths
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.coordination import CoordinationUnavailableError, NoNodeError, SessionEvent, Stat
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition

OFFSETS = {TopicPartition("t", 0): CommittedOffset(1)}


class Sessions:
    """As much of a coordination as says when its session changes."""

    session_timeout_s = 60.0

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        self.tell = callback

    def get(self, path: str) -> tuple[bytes, Stat]:
        if path != paths.METADATA_VERSION:
            raise NoNodeError(path)
        return b"", Stat(0, 0, 0, 0, 0)


class Store:
    """Counts the calls that got through to it."""

    def __init__(self, needs_coordination: bool) -> None:
        self.needs_coordination = needs_coordination
        self.calls = 0

    def commit(self, *_: object) -> None:
        self.calls += 1

    def fetch(self, *_: object) -> dict[TopicPartition, CommittedOffset]:
        self.calls += 1
        return {}


@pytest.mark.parametrize("event", [SessionEvent.SUSPENDED, SessionEvent.EXPIRED])
def test_a_store_that_is_away_is_not_asked(event: SessionEvent) -> None:
    assert asyncio.run(_calls(Store(needs_coordination=True), event)) == (2, 2)


def test_a_store_that_needs_no_coordination_goes_on() -> None:
    assert asyncio.run(_calls(Store(needs_coordination=False), SessionEvent.SUSPENDED)) == (4, 0)


def test_no_commit_is_taken_once_the_session_is_over() -> None:
    """Whoever fetches may do so: the store answers."""
    assert asyncio.run(_calls(Store(needs_coordination=False), SessionEvent.EXPIRED)) == (3, 1)


async def _calls(store: Any, event: SessionEvent) -> tuple[int, int]:
    """Calls that reached the store, and calls refused: two during the event, two after it."""
    sessions: Any = Sessions()
    workers = Workers(1)
    service = GroupService(BrokerConfig(), sessions, store, workers, lambda: EMPTY_IMAGE)
    service.start()
    refused = 0
    try:
        for now in (event, SessionEvent.CONNECTED):
            sessions.tell(now)
            codes = await service.commit("g", OffsetCommitter(), OFFSETS)
            refusal = ErrorCode.not_coordinator if now is SessionEvent.EXPIRED else ErrorCode.coordinator_not_available
            refused += list(codes.values()) == [refusal]
            try:
                await service.fetch("g", None)
            except CoordinationUnavailableError:
                refused += 1
    finally:
        await service.stop()
        workers.close()
    return store.calls, refused
