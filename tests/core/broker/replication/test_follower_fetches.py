"""A follower's Fetch at its leader: what counts, and what the follower is told, where nothing is appended any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication.follower_fetches import FollowerFetches
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.broker.replication.replica import Replica, monotonic_ms
from klamm.core.broker.replication.throttles import ReplicationThrottles
from klamm.core.broker.request import ConnectionContext, Request
from klamm.core.cluster.reassignment import ReplicaAssignment, begin, cancelled, completed
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.errors import ErrorCode
from klamm.core.log.partition_log import PartitionLog
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.replica_fetch import (
    VERSION,
    PartitionAnswer,
    PartitionFetch,
    PartitionKey,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    read_replica_fetch_response,
)
from klamm.core.replication.fetch_sessions import FetchSessionCache
from klamm.core.replication.leader import ReplicationSettings
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klammtest.logs import batch, open_log

SETTINGS = ReplicationSettings(2, 30_000)
STATE = PartitionState(0, 3, 1, (0, 1), (), {0: "a", 1: "b"}, 0)
OWN = BrokerRegistration(0, 1, "here", ("a",))
FOLLOWER = BrokerRegistration(1, 2, "there", ("b",))
BROKERS = BrokerConfig(broker_id=0)


class Leader:
    """Broker 0, which leads one partition, in the event loop of a test; `registrations`: what it has read of others."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.registrations: dict[int, BrokerRegistration] = {}
        self.partitions = Partitions(BrokerMetrics())
        self.replica = Replica(0, log.tp, log, BrokerMetrics().traffic("events"), (0, 1), SETTINGS)
        self.replica.on_metadata(STATE, 1, OWN, (0, 1), SETTINGS)
        self.partitions.put(self.replica)
        self.fetches = FollowerFetches(
            self.partitions,
            lambda: cast(Any, SimpleNamespace(registrations=self.registrations, topic_by_id=lambda _: None)),
            cast(Any, None),
            lambda: BROKERS.replica_fetch_response_max_bytes,
            FetchSessionCache(10, 120_000.0, count(1).__next__),
            ReplicationThrottles(lambda: BROKERS),
            lambda _: None,
            lambda _: None,
        )
        self._session = (0, 0)
        """Id and epoch of the next request's session."""

    async def fetch(
        self, offset: int, *, max_wait_ms: int = 0, epoch: int = 2, changed: bool = True, first: bool = False
    ) -> dict[PartitionKey, PartitionAnswer]:
        """Broker 1 fetches in its session, or in its first one after a start; without `changed` the request has no
        partition."""
        if first:
            self._session = (0, 0)
        session_id, session_epoch = self._session
        wanted = PartitionFetch(3, offset, 3 if offset else -1, 0, 1 << 20)
        message = ReplicaFetchRequest(
            replica_id=1, replica_epoch=epoch, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20,
            session_id=session_id, session_epoch=session_epoch,
            partitions={(self.log.topic_id.bytes, 0): wanted} if changed else {},
        )  # fmt: skip
        request = Request(ApiKey.FETCH, VERSION, message, ConnectionContext(1, "PLAINTEXT", "?"), "replica", 1)
        answer = _read(await self.fetches.fetch(request, message))
        self._session = answer.session_id, session_epoch + 1
        return dict(answer.partitions)


def _read(pieces: list[Any]) -> ReplicaFetchResponse:
    return read_replica_fetch_response(memoryview(b"".join(bytes(piece) for piece in pieces)), 0)


def with_leader(folder: Path, script: Callable[[Leader], Awaitable[None]]) -> None:
    async def run() -> None:
        log = open_log(folder)
        try:
            await asyncio.wait_for(script(Leader(log)), 60)
        finally:
            log.close()

    asyncio.run(run())


def test_a_fetch_that_counts_only_once_it_has_waited_completes_what_it_commits(tmp_path: Path) -> None:
    """The follower has started again, and fetches before its leader has read its registration. It is in sync and at the
    log's end, so no other Fetch would follow for this partition: the producer would wait for the time of its request.
    """

    async def script(leader: Leader) -> None:
        leader.replica.appended(100, leader.log.append_as_leader(batch(), 3))
        produced = asyncio.create_task(leader.replica.committed(3, 1, 3600.0))
        fetch = asyncio.create_task(leader.fetch(1, max_wait_ms=50))
        await asyncio.sleep(0)
        assert leader.log.high_watermark == 0, "the registration is not known yet"
        leader.registrations[1] = FOLLOWER
        answers = await fetch
        assert leader.log.high_watermark == 1
        assert await asyncio.wait_for(produced, 10) is ErrorCode.none
        assert [answer.high_watermark for answer in answers.values()] == [1]

    with_leader(tmp_path, script)


def test_a_follower_of_an_idle_partition_learns_that_records_were_deleted(tmp_path: Path) -> None:
    async def script(leader: Leader) -> None:
        leader.registrations[1] = FOLLOWER
        for _ in range(3):
            leader.log.append_as_leader(batch(), 3)
        await leader.fetch(0)
        (answer,) = (await leader.fetch(3)).values()
        assert answer.log_start_offset == 0
        assert await leader.fetch(3, changed=False) == {}, "nothing has changed"
        leader.log.delete_records_before(2)
        leader.replica.review_followers()
        (answer,) = (await leader.fetch(3, changed=False)).values()
        assert answer.log_start_offset == 2
        leader.replica.review_followers()
        assert await leader.fetch(3, changed=False) == {}, "it is told once"

    with_leader(tmp_path, script)


def test_a_follower_that_has_started_again_leaves_no_session_behind(tmp_path: Path) -> None:
    """A killed process ends no session; appends would be noted for each of its lives."""

    async def script(leader: Leader) -> None:
        for epoch in range(2, 7):
            leader.registrations[1] = replace(FOLLOWER, epoch=epoch)
            await leader.fetch(0, epoch=epoch, first=True)
        assert len(leader.replica._followers) == 1
        assert len(leader.fetches._sessions) == 1

    with_leader(tmp_path, script)


@pytest.mark.parametrize("read", ["each change", "both at once"])
@pytest.mark.parametrize("how", ["moved", "cancelled"])
def test_a_replica_that_was_removed_and_added_again_is_not_in_sync_by_a_fetch_of_before(
    tmp_path: Path, how: str, read: str
) -> None:
    """It has deleted its log meanwhile, under the same registration. Its last Fetch is still parked here, or is noted
    here, since this broker has read both changes at once: in sync by that, it could lead without any record."""
    live = {0: OWN, 1: FOLLOWER}

    async def script(leader: Leader) -> None:
        leader.registrations[1] = FOLLOWER
        for _ in range(3):
            leader.log.append_as_leader(batch(), 3)
        await leader.fetch(0)
        await leader.fetch(3)
        assert leader.log.high_watermark == 3
        parked = asyncio.create_task(leader.fetch(3, max_wait_ms=50))
        await asyncio.sleep(0)
        if how == "moved":
            away = completed(begin(ReplicaAssignment((0, 1)), (0,)), STATE, live, 2)
        else:
            away = cancelled(begin(ReplicaAssignment((0,)), (0, 1)), STATE, live, 2)
        assert away is not None
        if read == "each change":
            leader.replica.on_metadata(away.state, 2, OWN, away.assignment.replicas, SETTINGS)
        back = begin(away.assignment, (0, 1))
        leader.replica.on_metadata(away.state, 3, OWN, back.replicas, SETTINGS)
        await parked
        (led,) = leader.partitions
        assert led.leader is not None
        assert not led.leader.wants_member(1, FOLLOWER, monotonic_ms())
        assert led.leader.next_proposal(live, monotonic_ms()) is None

    with_leader(tmp_path, script)


def test_a_fetch_that_does_not_count_after_it_has_waited_is_taken_with_the_next(tmp_path: Path) -> None:
    """It is woken by an append to another partition, before the follower's registration is read."""

    async def script(leader: Leader) -> None:
        leader.log.append_as_leader(batch(), 3)
        await leader.fetch(1, max_wait_ms=20)
        assert leader.log.high_watermark == 0, "the registration is not known yet"
        leader.registrations[1] = FOLLOWER
        await leader.fetch(1, changed=False)
        assert leader.log.high_watermark == 1

    with_leader(tmp_path, script)
