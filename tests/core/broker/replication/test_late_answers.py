"""An answer counts only for the request that was sent, though the partition was wanted anew meanwhile (R9)."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from klamm.core.broker.replication.replica_fetcher import FetcherSettings, ReplicaFetcher
from klamm.core.broker.workers import Workers
from klamm.core.errors import ErrorCode
from klamm.core.protocol.replica_fetch import PartitionAnswer
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.follower import FetchResult
from klamm.core.replication.replica_fetch import ReplicaFetch, ReplicaFetchData

KEY = (UUID(int=1), 0)
SETTINGS = FetcherSettings(500, 1, 1 << 20, 10 << 20, 1000, 30_000)


class Follower:
    """Takes answers, and records the request that each is said to answer."""

    def __init__(self, leader_epoch: int) -> None:
        self.leader, self.leader_epoch = 2, leader_epoch
        self.answered: list[ReplicaFetch] = []

    def fetch(self, broker_epoch: int) -> ReplicaFetch:
        return ReplicaFetch(1, broker_epoch, self.leader_epoch, 100, 3)

    def on_answer(self, fetch: ReplicaFetch, data: ReplicaFetchData) -> FetchResult:
        self.answered.append(fetch)
        return FetchResult.APPENDED


def replica(number: int = 0) -> Any:
    """A replica of partition `number` of topic t, whose log has 100 records."""
    return SimpleNamespace(
        key=(KEY[0], number),
        name=TopicPartition("t", number),
        complete=lambda: None,
        log=SimpleNamespace(log_start_offset=0, log_end_offset=100, flushes=False, config=None, offline=None),
        is_in_sync=lambda _: True,
    )


def made() -> ReplicaFetcher:
    """A fetcher from a broker that is not registered."""
    throttles = cast(Any, SimpleNamespace(follower_bucket=lambda _: None))
    return ReplicaFetcher(
        1,
        2,
        Workers(1),
        SETTINGS,
        throttles,
        lambda: None,
        lambda: 7,
        on_lost=lambda _: None,
        on_stale=lambda: None,
    )


def test_an_answer_to_a_request_of_a_former_role_is_not_taken() -> None:
    async def main() -> None:
        fetcher = made()
        first, second = Follower(4), Follower(6)
        fetcher.add(replica(), cast(Any, first))
        fetcher._requests += 1  # the request of the first role is sent
        fetcher.remove(KEY)
        fetcher.add(replica(), cast(Any, second))
        answer = PartitionAnswer(ErrorCode.none, 5, 0, None, b"")
        await fetcher._take(KEY, answer)
        assert second.answered == []
        fetcher._requests += 1  # the request of the second role is sent
        await fetcher._take(KEY, answer)
        assert [fetch.leader_epoch for fetch in second.answered] == [6]
        assert first.answered == []
        await fetcher.stop()

    asyncio.run(main())


def test_a_log_start_that_retention_raised_is_reported_with_the_next_request() -> None:
    async def main() -> None:
        fetcher, follower, followed = made(), Follower(4), replica()

        def sent() -> list[int]:
            """The log starts in the next request."""
            fetcher._requests += 1
            request = fetcher._session.next_request()
            fetcher._session.on_response(ErrorCode.none, 1)
            return [wanted.log_start_offset for wanted in request.partitions.values()]

        fetcher.report_log_starts()
        fetcher.add(followed, cast(Any, follower))
        assert sent() == [0]
        fetcher.report_log_starts()
        assert sent() == [], "nothing has changed"
        followed.log.log_start_offset = 30
        fetcher.report_log_starts()
        await fetcher._take(KEY, PartitionAnswer(ErrorCode.none, 5, 0, None, b""))
        assert len(follower.answered) == 1, "the answer that was on its way counts"
        assert sent() == [30]
        followed.log.log_start_offset = 60
        fetcher.report_log_starts()
        assert sent() == [60]
        fetcher.report_log_starts()
        assert sent() == []
        await fetcher.stop()

    asyncio.run(main())


@pytest.mark.parametrize(("told", "again"), [(5, []), (6, [KEY])])
def test_a_watermark_that_is_not_taken_is_asked_for_again(told: int, again: list[Any]) -> None:
    """The leader of a session tells a watermark once, and this one came with an answer to a request of before."""

    async def main() -> None:
        fetcher, follower = made(), Follower(4)

        def asked() -> list[Any]:
            """The partitions that the next request names."""
            fetcher._requests += 1
            request = fetcher._session.next_request()
            fetcher._session.on_response(ErrorCode.none, 1)
            return list(request.partitions)

        fetcher.add(replica(), cast(Any, follower))
        assert asked() == [KEY]
        await fetcher._take(KEY, PartitionAnswer(ErrorCode.none, 5, 0, None, b""))
        assert asked() == [], "the session has it"
        fetcher._fetched[KEY].wanted_after = fetcher._requests
        await fetcher._take(KEY, PartitionAnswer(ErrorCode.none, told, 0, None, b""))
        assert len(follower.answered) == 1
        assert asked() == again
        await fetcher.stop()

    asyncio.run(main())


def test_the_lag_is_what_a_partition_lacks_of_what_its_leader_last_told() -> None:
    async def main() -> None:
        fetcher = made()
        assert fetcher.max_lag == 0
        for number, high_watermark in enumerate((105, 99)):
            followed = replica(number)
            fetcher.add(followed, cast(Any, Follower(4)))
            fetcher._requests += 1
            await fetcher._take(followed.key, PartitionAnswer(ErrorCode.none, high_watermark, 0, None, b""))
            await fetcher._take(followed.key, PartitionAnswer(ErrorCode.not_leader_or_follower, -1, -1, None, b""))
            assert fetcher.max_lag == 5
        await fetcher.stop()

    asyncio.run(main())


def test_a_log_that_is_offline_is_not_fetched() -> None:
    """Its leader would count it as one that has all records, and let it join again."""

    async def main() -> None:
        fetcher, online, offline = made(), replica(0), replica(1)
        offline.log.offline = "an fsync failed"
        for each in (online, offline):
            fetcher.add(each, cast(Any, Follower(4)))
        assert list(fetcher._session.next_request().partitions) == [online.key]
        await fetcher.stop()

    asyncio.run(main())


def test_a_disk_that_fails_one_partition_holds_up_no_other() -> None:
    class Failing(Follower):
        def on_answer(self, fetch: ReplicaFetch, data: ReplicaFetchData) -> FetchResult:
            raise OSError(errno.EIO, "Input/output error")

    async def main() -> None:
        fetcher, followed = made(), replica()
        fetcher.add(followed, cast(Any, Failing(4)))
        fetcher._requests += 1
        await fetcher._take(followed.key, PartitionAnswer(ErrorCode.none, 5, 0, None, b""))
        assert not fetcher._session.next_request().partitions, "it is left out for a while"
        await fetcher.stop()

    asyncio.run(main())
