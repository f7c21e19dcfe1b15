"""A leader that cannot be fetched from is said once, in a line that names no place in the code."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from klamm.core.broker.replication.replica_fetcher import FetcherSettings, ReplicaFetcher
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.replica_fetch import ReplicaFetch

SETTINGS = FetcherSettings(500, 1, 1 << 20, 10 << 20, 1000, 30_000)


def test_a_leader_that_is_not_registered_is_said_without_a_place(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "klamm.core.broker.replication.replica_fetcher")

    async def main() -> None:
        third = asyncio.Event()
        attempts: list[int] = []

        def lost(leader: int) -> None:
            attempts.append(leader)
            if len(attempts) == 3:
                third.set()

        throttles = SimpleNamespace(follower_bucket=lambda _: None)
        fetcher = ReplicaFetcher(
            1, 2, cast(Any, None), SETTINGS, cast(Any, throttles), lambda: None, lambda: 7, lost, lambda: None
        )
        log = SimpleNamespace(log_start_offset=0, flushes=False, config=None, offline=None)
        replica = SimpleNamespace(key=(UUID(int=1), 0), name=TopicPartition("t", 0), log=log, is_in_sync=lambda _: True)
        follower = SimpleNamespace(fetch=lambda epoch: ReplicaFetch(1, epoch, 4, 100, 3))
        fetcher.add(cast(Any, replica), cast(Any, follower))
        async with asyncio.timeout(60):
            await third.wait()
        await fetcher.stop()

    asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        "fetching from broker 2 failed, retrying: ConnectionError: broker 2 is not registered"
    ]
