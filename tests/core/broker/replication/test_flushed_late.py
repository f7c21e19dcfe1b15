"""Replicas that report their flushed ends: a Produce waits for the last flush, and no replica flushes too seldom."""

from __future__ import annotations

import asyncio
from pathlib import Path

from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication.replica import Replica, monotonic_ms
from klamm.core.errors import ErrorCode
from klamm.core.log.partition_log import PartitionLog
from klamm.core.replication.leader import ReplicationSettings
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klamm.core.replication.replica_fetch import ReplicaFetch
from klammtest.brokers.inprocess import broker_thread
from klammtest.logs import batch, open_log
from klammtest.requests import batch as wire_batch
from klammtest.requests import create_topic, metadata, produce, wait_until_all_are_known
from klammtest.waiting import eventually
from klammtest.wire import WireClient

SETTINGS = ReplicationSettings(2, 30_000)
STATE = PartitionState(0, 3, 1, (0, 1), (), {0: "a", 1: "b"}, 0)


async def produce_and_flush(log: PartitionLog) -> ErrorCode:
    replica = Replica(0, log.tp, log, BrokerMetrics().traffic("events"), (0, 1), SETTINGS)
    replica.on_metadata(STATE, 1, BrokerRegistration(0, 1, "here", ("a",)), (0, 1), SETTINGS)
    assert replica.leader is not None
    stored = log.append_as_leader(batch([b"v"]), 3)
    replica.appended(100, stored)
    waiting = asyncio.create_task(replica.committed(3, 1, 60.0))
    await asyncio.sleep(0)
    follower = BrokerRegistration(1, 2, "there", ("b",))
    assert replica.leader.on_fetch(ReplicaFetch(1, 2, 3, 1, 3), follower, monotonic_ms()) is None
    replica.complete()
    assert not waiting.done(), "the leader has not flushed"
    await asyncio.to_thread(log.flush)
    return await waiting


def test_the_leader_flushes_after_its_followers(tmp_path: Path) -> None:
    log = open_log(tmp_path, flush_messages=100)
    assert asyncio.run(asyncio.wait_for(produce_and_flush(log), 30)) is ErrorCode.none
    assert log.high_watermark == 1
    log.close()


def test_a_replica_whose_flush_is_far_away_flushes_within_the_lag_time(tmp_path: Path) -> None:
    """It would leave the in-sync replicas otherwise, and the request would end with REQUEST_TIMED_OUT."""
    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db")}
    keys = {"replica.lag.time.max.ms": 6_000, "log.flush.scheduler.interval.ms": 100}
    with (
        broker_thread(tmp_path / "0", tree, {**keys, "broker.id": 0}) as first,
        broker_thread(tmp_path / "1", tree, {**keys, "broker.id": 1}) as second,
    ):
        addresses = {number: f"127.0.0.1:{b.advertised[0].port}" for number, b in enumerate((first, second))}
        wait_until_all_are_known(addresses.values())
        with WireClient(addresses[0]) as wire:
            controller = metadata(wire, []).controller_id
        held_back = {"flush.messages": "1000000", "min.insync.replicas": "2"}
        with WireClient(addresses[controller]) as wire:
            assert create_topic(wire, "t", 1, held_back, replication_factor=2).error_code is ErrorCode.none

        def leader() -> int:
            with WireClient(addresses[0]) as wire:
                found: int = metadata(wire, ["t"]).topics[0].partitions[0].leader_id
                return found

        eventually(lambda: leader() >= 0, "the topic has a leader")
        with WireClient(addresses[leader()], timeout_s=60) as wire:
            eventually(
                lambda: produce(wire, "t", wire_batch(b"v"), acks=-1).error_code is ErrorCode.none,
                "a record is acknowledged",
            )
