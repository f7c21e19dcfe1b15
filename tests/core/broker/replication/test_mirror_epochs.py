"""A follower of a mirror compares all epochs of its log with its leader's (docs/mirror.md, M13). The logs are on disk;
requests and answers are encoded as for the network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication.follower_fetches import FollowerFetches
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.broker.replication.replica import Replica
from klamm.core.broker.replication.throttles import ReplicationThrottles
from klamm.core.broker.request import ConnectionContext, Request
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.replica_fetch import (
    VERSION,
    PartitionFetch,
    ReplicaFetchRequest,
    read_replica_fetch_request,
    read_replica_fetch_response,
)
from klamm.core.records.encode import encode_batch
from klamm.core.replication.fetch_sessions import FetchSessionCache
from klamm.core.replication.follower import FetchResult
from klamm.core.replication.leader import ReplicationSettings
from klamm.core.replication.partition import Partition
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klamm.core.replication.replica_fetch import EpochEndOffset, ReplicaFetch, ReplicaFetchData
from klammtest.logs import START_MS, open_log

SETTINGS = ReplicationSettings(1, 30_000)
MIRROR = PartitionState(0, 30, 1, (0,), (), {0: "a"}, 0, "berlin")
PROMOTED = replace(MIRROR, mirror="", promoted_epoch=30)
ORDINARY = replace(MIRROR, mirror="")
LEADER = BrokerRegistration(0, 1, "here", ("a",))
FOLLOWER = BrokerRegistration(1, 2, "there", ("b",))
BROKERS = BrokerConfig(broker_id=0)


class Run(NamedTuple):
    """Batches of one record of one epoch, from an offset up to another."""

    epoch: int
    start: int
    end: int


def filled(folder: Path, runs: Sequence[Run]) -> PartitionLog:
    """Opens a log with these batches, as a mirror has stored them."""
    log = open_log(folder)
    log.follow(30)
    for epoch, start, end in runs:
        for offset in range(start, end):
            record = (START_MS, None, b"%d of %d" % (offset, epoch), ())
            log.append_as_follower(encode_batch([record], base_offset=offset, leader_epoch=epoch), 30)
    return log


def batches(log: PartitionLog) -> bytes:
    return bytes(log.read(log.log_start_offset, 1 << 20, isolation=ReadIsolation.LOG_END).data)


async def copied(ours: PartitionLog, theirs: PartitionLog, state: PartitionState) -> list[FetchResult]:
    """Has `theirs` follow `ours` until it has everything; returns what the answers did."""
    partitions = Partitions(BrokerMetrics())
    replica = Replica(0, ours.tp, ours, BrokerMetrics().traffic("events"), (0, 1), SETTINGS)
    replica.on_metadata(state, 1, LEADER, (0, 1), SETTINGS)
    partitions.put(replica)
    fetches = FollowerFetches(
        partitions,
        lambda: cast(Any, SimpleNamespace(registrations={1: FOLLOWER}, topic_by_id=lambda _: None)),
        cast(Any, None),
        lambda: BROKERS.replica_fetch_response_max_bytes,
        FetchSessionCache(10, 120_000.0, lambda: 1),
        ReplicationThrottles(lambda: BROKERS),
        lambda _: None,
        lambda _: None,
    )
    partition: Partition[int] = Partition(1, theirs, (0, 1), SETTINGS)
    partition.on_metadata(state, 1, FOLLOWER, 0.0)
    follower = partition.follower
    assert follower is not None
    results: list[FetchResult] = []
    for _ in range(20):
        fetch = follower.fetch(2)
        assert fetch is not None
        results.append(follower.on_answer(fetch, await answer(fetches, fetch, ours)))
        if theirs.log_end_offset == ours.log_end_offset and results[-1] is FetchResult.APPENDED:
            return results
    raise AssertionError(f"it does not end: {results}")


async def answer(fetches: FollowerFetches, fetch: ReplicaFetch, log: PartitionLog) -> ReplicaFetchData:
    key = log.topic_id.bytes, 0
    wanted = PartitionFetch(*fetch[2:5], 0, 1 << 20, fetch.epoch_ranges)
    sent = ReplicaFetchRequest(1, 2, 0, 1, 1 << 20, 0, -1, {key: wanted}).encode()
    message = read_replica_fetch_request(sent, 0)
    assert message is not None
    request = Request(ApiKey.FETCH, VERSION, message, ConnectionContext(1, "PLAINTEXT", "?"), "replica", 1)
    pieces = await fetches.fetch(request, message)
    found = read_replica_fetch_response(memoryview(b"".join(map(bytes, pieces))), 0).partitions[key]
    diverging = None if found.diverging is None else EpochEndOffset(*found.diverging)
    return ReplicaFetchData(found.error, diverging, found.high_watermark, found.log_start_offset, bytes(found.records))


BEHIND_A_GAP = [Run(19, 15, 18), Run(20, 18, 20)]
APPENDED, COMPARED, TRUNCATED = FetchResult.APPENDED, FetchResult.COMPARED, FetchResult.TRUNCATED


@pytest.mark.parametrize("state", [MIRROR, PROMOTED], ids=["mirror", "promoted"])
@pytest.mark.parametrize(
    ("ours", "theirs", "results"),
    [
        ([Run(5, 0, 3), *BEHIND_A_GAP], [Run(19, 0, 10)], [TRUNCATED, APPENDED]),
        ([Run(5, 0, 3), *BEHIND_A_GAP], [Run(5, 0, 2), Run(19, 2, 5), *BEHIND_A_GAP], [TRUNCATED, APPENDED]),
        ([Run(5, 0, 6), *BEHIND_A_GAP], [Run(5, 0, 3), Run(19, 3, 10)], [TRUNCATED, APPENDED]),
        ([Run(1, 0, 6), Run(2, 6, 9)], [Run(2, 0, 1)], [TRUNCATED, APPENDED]),
    ],
    ids=[
        "an epoch begins earlier",
        "beyond the gap",
        "the leader has more below",
        "a later epoch than the next batch's",
    ],
)
def test_a_log_of_another_history_is_cut_where_it_differs(
    tmp_path: Path, state: PartitionState, ours: list[Run], theirs: list[Run], results: list[FetchResult]
) -> None:
    own, other = filled(tmp_path / "0", ours), filled(tmp_path / "1", theirs)
    assert asyncio.run(copied(own, other, state)) == results
    assert batches(other) == batches(own)
    assert other.epoch_ranges(exact=True) == own.epoch_ranges(exact=True)


@pytest.mark.parametrize(
    ("ours", "theirs", "results"),
    [
        ([Run(5, 0, 3), *BEHIND_A_GAP], [Run(5, 0, 3), *BEHIND_A_GAP[:1]], [APPENDED]),
        ([Run(5, 0, 3), *BEHIND_A_GAP], [Run(5, 0, 3), Run(19, 3, 10)], [APPENDED]),
        ([Run(5, 0, 3), Run(19, 3, 10), *BEHIND_A_GAP], [Run(5, 0, 3), *BEHIND_A_GAP[:1]], [COMPARED, APPENDED]),
        ([Run(5, 0, 3), *BEHIND_A_GAP], [Run(19, 15, 16)], [APPENDED]),
    ],
    ids=["equal", "more within the leader's gap", "less within its own gap", "a later start"],
)
def test_a_log_that_differs_only_in_a_gap_is_kept(
    tmp_path: Path, ours: list[Run], theirs: list[Run], results: list[FetchResult]
) -> None:
    own, other = filled(tmp_path / "0", ours), filled(tmp_path / "1", theirs)
    if theirs[0].start:
        other.advance_log_start(theirs[0].start)
    kept = batches(other)
    assert asyncio.run(copied(own, other, MIRROR)) == results
    assert batches(other).startswith(kept)


def test_a_partition_that_never_was_a_mirror_compares_its_last_epoch(tmp_path: Path) -> None:
    log = filled(tmp_path, [Run(5, 0, 3)])
    partition: Partition[int] = Partition(1, log, (0, 1), SETTINGS)
    partition.on_metadata(ORDINARY, 1, FOLLOWER, 0.0)
    assert partition.follower is not None
    fetch = partition.follower.fetch(2)
    assert fetch is not None
    assert fetch.epoch_ranges == ()


@pytest.mark.parametrize("in_sync", [True, False])
def test_an_in_sync_follower_keeps_what_differs_below_the_last_common_record(tmp_path: Path, in_sync: bool) -> None:
    """Both were compared with an earlier leader, in whose gap they differ: what is committed behind it stays."""
    own = filled(tmp_path / "0", [Run(5, 0, 3), Run(9, 3, 10), *BEHIND_A_GAP])
    other = filled(tmp_path / "1", [Run(5, 0, 3), Run(7, 3, 10), *BEHIND_A_GAP])
    before = batches(other)
    state = replace(MIRROR, isr=(0, 1), data_ids={0: "a", 1: "b"}) if in_sync else MIRROR
    results = asyncio.run(copied(own, other, state))
    assert results == ([APPENDED] if in_sync else [COMPARED, TRUNCATED, APPENDED])
    assert batches(other) == (before if in_sync else batches(own))
