from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.core.broker.handlers.list_offsets import list_offsets
from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication.replica import Replica
from klamm.core.broker.request import ConnectionContext, Request
from klamm.core.broker.workers import Workers
from klamm.core.config.settings import Settings
from klamm.core.errors import ErrorCode
from klamm.core.log.partition_log import PartitionLog
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.encode import encode_batch
from klamm.core.replication.leader import ReplicationSettings
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klammtest.apis import SERVED
from klammtest.logs import batch, open_log
from klammtest.requests import new_topic, produce
from klammtest.wire import WireClient, part

LATEST, EARLIEST, LARGEST = -1, -2, -3


def ask(wire: WireClient, topic: str, timestamp: int, version: int = 7, **more: Any) -> Any:
    asked = part(ApiKey.LIST_OFFSETS, version, "ListOffsetsPartition", partition_index=0, timestamp=timestamp, **more)
    of = part(ApiKey.LIST_OFFSETS, version, "ListOffsetsTopic", name=topic, partitions=(asked,))
    answer = wire.call(
        ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=(of,), timeout=timedelta(seconds=10)
    )
    return answer.topics[0].partitions[0]


@pytest.fixture
def topic(wire: WireClient) -> str:
    """Offsets 0 to 5 at the times 100, 300, 200, 400, 350, 500, in batches of two, the second one compressed."""
    name = new_topic(wire, retention_ms=-1)
    zstd = Settings().codec_table().by_name("zstd")
    for times, codec in (((100, 300), None), ((200, 400), zstd), ((350, 500), None)):
        produce(wire, name, encode_batch([(time, None, b"x", ()) for time in times], codec=codec))
    return name


@pytest.mark.parametrize("version", range(SERVED[ApiKey.LIST_OFFSETS][0], SERVED[ApiKey.LIST_OFFSETS][1] + 1))
def test_every_version(wire: WireClient, topic: str, version: int) -> None:
    assert ask(wire, topic, EARLIEST, version).offset == 0
    assert ask(wire, topic, LATEST, version).offset == 6
    found = ask(wire, topic, 350, version)
    assert (found.error_code, found.offset, found.timestamp) == (ErrorCode.none, 3, 400)


@pytest.mark.parametrize(
    ("timestamp", "since", "offset"), [(LARGEST, 7, 5), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1), (-7, 99, -1)]
)
def test_a_negative_timestamp_has_a_meaning_from_some_version_on(
    wire: WireClient, topic: str, timestamp: int, since: int, offset: int
) -> None:
    """As at a Kafka without tiered storage (bench/compare_protocol.py): the latest tiered offset (-5) and the earliest
    pending upload (-6) are unknown, which is no error."""
    for version in range(SERVED[ApiKey.LIST_OFFSETS][0], SERVED[ApiKey.LIST_OFFSETS][1] + 1):
        found = ask(wire, topic, timestamp, version)
        expected = (ErrorCode.none, offset) if version >= since else (ErrorCode.unsupported_version, -1)
        assert (found.error_code, found.offset) == expected


@pytest.mark.parametrize(
    ("timestamp", "offset", "at"),
    [(0, 0, 100), (100, 0, 100), (101, 1, 300), (301, 3, 400), (401, 5, 500), (500, 5, 500), (501, -1, -1)],
)
def test_the_first_record_at_a_time_or_later(
    wire: WireClient, topic: str, timestamp: int, offset: int, at: int
) -> None:
    found = ask(wire, topic, timestamp)
    assert (found.offset, found.timestamp) == (offset, at)


def test_the_largest_timestamp_from_version_7(wire: WireClient, topic: str) -> None:
    found = ask(wire, topic, LARGEST)
    assert (found.offset, found.timestamp) == (5, 500)
    assert ask(wire, topic, LARGEST, 6).error_code is ErrorCode.unsupported_version
    assert ask(wire, topic, -9).error_code is ErrorCode.unsupported_version


def test_an_empty_log(wire: WireClient) -> None:
    name = new_topic(wire)
    assert [ask(wire, name, timestamp).offset for timestamp in (EARLIEST, LATEST, LARGEST, 5)] == [0, 0, -1, -1]


def test_errors(wire: WireClient, topic: str) -> None:
    assert ask(wire, "nowhere", LATEST).error_code is ErrorCode.unknown_topic_or_partition
    assert ask(wire, topic, LATEST, current_leader_epoch=9).error_code is ErrorCode.unknown_leader_epoch


@pytest.mark.parametrize(
    ("timestamp", "version", "code"),
    [
        (LATEST, 5, ErrorCode.offset_not_available),
        (100, 5, ErrorCode.offset_not_available),
        (100, 4, ErrorCode.leader_not_available),
        (LARGEST, 7, ErrorCode.offset_not_available),
        (50, 7, ErrorCode.none),
        (EARLIEST, 7, ErrorCode.none),
    ],
)
def test_a_new_leader_does_not_say_that_there_is_nothing_above_its_old_watermark(
    tmp_path: Path, timestamp: int, version: int, code: ErrorCode
) -> None:
    """The record of time 100 is committed, but this leader, which followed until now, does not know that yet. A
    consumer that is told that there is no such record begins at the end, and never reads it (KIP-207)."""
    log = open_log(tmp_path)
    for time in (50, 100):
        log.append_as_leader(batch(timestamp_ms=time), 2)
    log.advance_high_watermark(1)

    found = asyncio.run(asyncio.wait_for(asked_of_a_new_leader(log, timestamp, version), 60))
    log.close()
    assert found.error_code is code
    if code is ErrorCode.none:
        assert found.offset == 0


def test_a_leader_that_is_deposed_meanwhile_does_not_say_that_there_is_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader(batch(timestamp_ms=50), 2)
    found = asyncio.run(asyncio.wait_for(asked_of_a_new_leader(log, 100, 7, deposed=True), 60))
    log.close()
    assert found.error_code is ErrorCode.not_leader_or_follower


async def asked_of_a_new_leader(log: PartitionLog, timestamp: int, version: int, *, deposed: bool = False) -> Any:
    """Returns the answer of broker 0, which has just begun to lead with broker 1 in sync. With `deposed` it leads no
    more when a worker has searched the log."""
    state, settings = PartitionState(0, 3, 1, (0, 1), (), {0: "a", 1: "b"}, 0), ReplicationSettings(2, 30_000)
    replica = Replica(0, log.tp, log, BrokerMetrics().traffic("events"), (0, 1), settings)
    replica.on_metadata(state, 1, BrokerRegistration(0, 1, "here", ("a",)), (0, 1), settings)
    one = part(ApiKey.LIST_OFFSETS, version, "ListOffsetsPartition", partition_index=0, timestamp=timestamp)
    of = part(ApiKey.LIST_OFFSETS, version, "ListOffsetsTopic", name="events", partitions=(one,))
    message = messages.request(ApiKey.LIST_OFFSETS, version).build(replica_id=-1, isolation_level=0, topics=(of,))
    connection, reply = ConnectionContext(1, "PLAINTEXT", "?"), messages.response(ApiKey.LIST_OFFSETS, version)
    request = Request(ApiKey.LIST_OFFSETS, version, message, connection, "test", 1, reply)
    workers, access = Workers(1), SimpleNamespace(refusal=lambda *_: None)

    async def searched(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = await workers.disk(call, *args, **kwargs)
        if deposed:
            replica.rest()
        return found

    services = SimpleNamespace(workers=SimpleNamespace(disk=searched), access=access, led=lambda *_: replica)
    try:
        answer: Any = await list_offsets(cast(Any, services), request)
    finally:
        workers.close()
    return answer.topics[0].partitions[0]


def test_a_partition_that_is_named_twice_is_refused_and_others_are_not(wire: WireClient, topic: str) -> None:
    version = SERVED[ApiKey.LIST_OFFSETS][1]
    parts = [
        part(
            ApiKey.LIST_OFFSETS,
            version,
            "ListOffsetsPartition",
            partition_index=n,
            timestamp=at,
            current_leader_epoch=-1,
        )
        for n, at in ((0, EARLIEST), (0, LATEST))
    ]
    topics = [
        part(ApiKey.LIST_OFFSETS, version, "ListOffsetsTopic", name=name, partitions=of)
        for name, of in ((topic, (parts[0],)), ("events", (parts[0],)), (topic, (parts[1],)))
    ]
    answer = wire.call(
        ApiKey.LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=tuple(topics),
        timeout=timedelta(seconds=10),
    )  # fmt: skip
    codes = [(each.name, one.error_code) for each in answer.topics for one in each.partitions]
    refused = (topic, ErrorCode.invalid_request)
    assert codes == [refused, ("events", ErrorCode.none), refused]
