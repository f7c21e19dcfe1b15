"""A broker whose clock is a day off, in a cluster of three: it is named in one line, and nothing rests on its clock."""

from __future__ import annotations

import shutil
import sys
import time
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.requests import batch
from klammtest.waiting import eventually
from klammtest.wire import WireClient
from klammtest.zookeeper import ZooKeeperServer

sys.path.insert(0, str(Path(__file__).parent))
from skewed_clock import SkewedClock

DAY_S = 86_400


def append(cluster: BrokerCluster, value: bytes) -> int:
    return cluster.append("t", batch(value, timestamp_ms=round(time.time() * 1000)))


def producer_id(cluster: BrokerCluster, broker: int) -> int:
    with WireClient(cluster.brokers[broker].bootstrap) as wire:
        answer = wire.call(
            ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=timedelta(seconds=60),
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
    assert answer.error_code is ErrorCode.none
    return int(answer.producer_id)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("ahead_s", [DAY_S, -DAY_S], ids=["ahead", "behind"])
def test_a_broker_whose_clock_is_a_day_off(zookeeper_server: ZooKeeperServer, tmp_path: Path, ahead_s: int) -> None:
    clock = SkewedClock(tmp_path)
    connect = f"{zookeeper_server.connect}/{uuid4().hex[:8]}"
    tree = {"plugin": "zookeeper", "zookeeper.connect": connect, "zookeeper.session.timeout.ms": 6000}
    keys = {"log.retention.check.interval.ms": 200}
    with running_cluster(tmp_path, tree, broker=keys, environments={2: clock.environment}) as cluster:
        eventually(lambda: len(cluster.registered()) == 3, "all are registered")
        two_days = str(2 * DAY_S * 1000)  # the leader refuses what is further ahead of its clock, an hour by default
        cluster.create_topic("t", 1, {"retention.ms": two_days, "message.timestamp.after.max.ms": two_days})
        assert cluster.await_in_sync("t", 1)
        epochs, ids = [append(cluster, b"true time")], [producer_id(cluster, n) for n in cluster.ids]
        cluster.kill([2])
        epochs.append(append(cluster, b"without it"))
        clock.set(ahead_s)
        cluster.start([2])
        assert cluster.await_in_sync("t", 1), "its sessions are none of its clock's"
        said = lambda: cluster.brokers[cluster.controller()].log()  # noqa: E731
        eventually(lambda: "the clock of broker 2" in said(), "the controller has read of it")
        how = "ahead of" if ahead_s > 0 else "behind"
        (line,) = [line for line in said().splitlines() if "the clock of broker 2" in line]
        assert f"minutes {how} this broker's: timestamps and retention follow each broker's own clock" in line
        ids += [producer_id(cluster, n) for n in (2, 0, 1)]
        others = [number for number in cluster.ids if number != 2]
        cluster.kill([others[0]])  # so that it may lead, and be the controller
        epochs.append(append(cluster, b"beside it"))
        cluster.kill([others[1]])
        cluster.start(others)
        assert cluster.await_in_sync("t", 1)
        clock.set(0)
        cluster.kill([2])
        epochs.append(append(cluster, b"after it"))
        cluster.start([2])
        assert cluster.await_in_sync("t", 1)
        ids += [producer_id(cluster, n) for n in cluster.ids]
        assert epochs == sorted(epochs), "leader epochs never go back"
        assert len(set(ids)) == len(ids), "no producer id is given out twice"
        kept = (b"true time", b"without it", b"beside it", b"after it")
        eventually(lambda: all(value in cluster.records("t") for value in kept), f"{kept} are there")
        for broker in cluster.brokers:
            assert "Traceback" not in broker.log()
