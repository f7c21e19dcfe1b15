"""Shape (h)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.core.records.partition import TopicPartition
from klammbench.drivers.raw import Batch, Load, Outcome, drive_each
from klammbench.drivers.stream import How, Pauses, end_leaders
from klammbench.drivers.topics import make_topic, topic_on
from klammbench.metric import Metric
from klammbench.paths import SYSTEM_DATA
from klammbench.process import cpu_seconds, pss_bytes
from klammbench.systems import SYSTEMS
from klammbench.systems.base import Cluster, System
from klammbench.table import CLUSTER_AGAIN, Table
from klammbench.targets import Target, figure, ratio_target

OURS, KAFKA = "klamm-cluster", "kafka-cluster"
_SYSTEMS: Sequence[str] = (OURS, KAFKA, CLUSTER_AGAIN)
_BOTH: Sequence[str] = (OURS, KAFKA)
_PARTITIONS = 12
_REPLICAS = 3
_ACKS_ALL = -1
_LARGE, _SMALL = Batch.of_size(65_536), Batch(1)
_CONNECTIONS: Mapping[Batch, int] = {_LARGE: 6, _SMALL: 9}
"""Connections at half load: the same number to each broker."""
_SHARE = 0.5
_MOST_BYTES = 2e9
_IDLE_PARTITIONS = 2000
_IN_SYNC_S = 120.0
_LATEST = -1
_STRETCH = 1.0
_SESSION_S = 6.0
"""`zookeeper.session.timeout.ms` of the brokers, its default: how long a host that is silent counts as live."""

Kind = Literal["peak", "half", "memory", "follower", "lone follower", "ends", "pause", "many"]


@dataclass(frozen=True, slots=True)
class ClusterCell:
    """`kind` says what is measured; `batch`, `connections` and `depth` are those of the load, where there is one."""

    name: str
    kind: Kind
    batch: Batch = _LARGE
    connections: int = 0
    depth: int = 1
    systems: Sequence[str] = _SYSTEMS
    rounds: int = 1_000_000


@dataclass(frozen=True, slots=True)
class _Extent:
    """How much a run measures. Times are in seconds."""

    measure_s: float
    half_s: float
    looks: int
    """Measurements of a peak, of which the median counts."""
    warm_s: float
    ends: Mapping[str, tuple[int, int]]
    """By system, how many leaders are killed, and how many stopped, in a round."""
    pauses: int
    """How many leaders are paused."""
    kills_beside: int
    """How many leaders are killed beside 2,000 partitions."""
    idle_s: float


_FULL = _Extent(1.5, 4.0, 3, 15.0, {OURS: (6, 3), KAFKA: (2, 2)}, 3, 5, 10.0)
_QUICK = _Extent(1.0, 1.5, 1, 6.0, {OURS: (3, 2), KAFKA: (1, 1)}, 1, 2, 5.0)


@dataclass(slots=True)
class _Peaks:
    """Requests per second of each system, by batch."""

    found: dict[Batch, dict[str, float]] = field(default_factory=dict)

    def half_of_lowest(self, batch: Batch) -> float:
        return _SHARE * min(self.found[batch].values())


class ThreeBrokers:
    """(h) Three brokers of Klamm with their ZooKeeper beside three of Apache Kafka (KRaft, combined mode, the tuned
    setting), all on this machine: replication factor 3, min.insync.replicas 2, acks=all, 12 partitions. The raw driver
    sends to the leaders of all partitions. CPU time and memory are those of all processes of a system. Six brokers that
    share two cores are not how anyone runs either system: what carries over to separate machines is CPU per GB, memory,
    and the time of a fail-over at the settings named, not the rate.

    The peak is a closed loop, with five batches in flight on each of six connections, or one request of one message on
    each of 8 and 64. The p99 is taken in an open loop at half the lower one of the peaks that are found before the
    rounds (as in (d)). What a follower costs is the CPU time of a Produce request with three replicas less that with
    one, divided by two: both ends of replication, and the leader's wait for it. It is taken in the closed loop, where a
    follower copies runs of batches (five in flight on each of six connections, 16 on each of 24 for one message), and
    at half load, where it copies each message by itself. The memory is taken after the loads.

    Leaders are killed (SIGKILL) and stopped (SIGTERM, a controlled shutdown) in a cluster of their own, while Klamm's
    idempotent producer sends a record every 5 ms, for both systems: the figure is the longest pause between two
    acknowledgements, or records read. It fails if an acknowledged record is lost, doubled or out of order. Each round
    kills and stops some leaders; the p99 target takes the longest pause of all, which is no less. A paused leader
    (SIGSTOP) stands for a host that is silent: another is elected when its session ends. The 2,000 partitions are in a
    cluster of their own too, first without any client (the figures are those of the broker with the highest); then
    leaders are killed there.
    """

    NAME = "h"
    TITLE = "Three brokers beside three"
    SYSTEMS = _SYSTEMS
    MANAGED = True
    METRICS: Mapping[str, Metric] = {
        "rate": Metric("requests/s", "higher"),
        "throughput": Metric("MB/s", None, 1),
        "cpu": Metric("CPU s/GB of all processes", "lower", 2),
        "request_cpu": Metric("CPU µs/request of all processes", "lower", 1),
        "p99": Metric("µs p99", "lower"),
        "p50": Metric("µs p50", "lower"),
        "offered": Metric("requests/s at half load", None),
        "pss": Metric("MB PSS of all processes", "lower"),
        "follower": Metric("CPU µs/request for each follower", "lower", 1),
        "killed_p50": Metric("s p50 without an acknowledgement, leader killed", "lower", 3),
        "killed_longest": Metric("s longest without an acknowledgement, leader killed", "lower", 3),
        "killed_read": Metric("s longest without a record read, leader killed", "lower", 3),
        "paused_longest": Metric("s longest without an acknowledgement, leader paused", "lower", 3),
        "stopped_longest": Metric("s longest without an acknowledgement, leader stopped", "lower", 3),
        "stopped_failed": Metric("sends failed, leader stopped", None),
        "idle_cpu": Metric("% of a core, idle broker", "lower", 2),
        "idle_pss": Metric("MB PSS, idle broker", "lower"),
    }

    def __init__(self) -> None:
        self._extent = _FULL
        self._peaks = _Peaks()

    def cells(self, quick: bool) -> Sequence[ClusterCell]:
        self._extent = _QUICK if quick else _FULL
        self._peaks = _Peaks()  # peaks of this run's systems only
        first = 1 if quick else 1_000_000
        ours = (OURS,) if quick else _BOTH
        return [
            ClusterCell("batches of 64 KB", "peak", _LARGE, 6, 5),
            ClusterCell("one message, 8 connections", "peak", _SMALL, 8),
            ClusterCell("one message, 64 connections", "peak", _SMALL, 64),
            ClusterCell("half load, batches of 64 KB", "half", _LARGE, _CONNECTIONS[_LARGE]),
            ClusterCell("half load, one message", "half", _SMALL, _CONNECTIONS[_SMALL]),
            ClusterCell("after the loads", "memory", systems=_BOTH),
            ClusterCell("a follower, batches of 64 KB", "follower", _LARGE, 6, 5, ours, first),
            ClusterCell("a follower, runs of one message", "follower", _SMALL, 24, 16, ours, first),
            ClusterCell("a follower, a lone message", "lone follower", _SMALL, _CONNECTIONS[_SMALL], 1, ours, first),
            ClusterCell("leaders end", "ends", systems=_BOTH, rounds=first),
            ClusterCell("a leader is paused", "pause", systems=ours, rounds=1),
            ClusterCell("2,000 partitions", "many", systems=ours, rounds=1),
        ]

    def warm(self, system: System) -> None:
        """Warms the system up and finds its peaks."""
        cluster = cast(Cluster, system)
        for batch, depth in ((_SMALL, 2), (_LARGE, 5)):
            # A name of its own: a broker that has not yet read the first one's deletion would name that one's leaders.
            with topic_on(cluster, f"warm-{batch.messages}", _PARTITIONS, replicas=_REPLICAS) as topic:
                seconds = min(self._extent.warm_s, cluster.warm_s)
                load = Load(_CONNECTIONS[batch], depth, warm_s=0, measure_s=seconds, max_bytes=_MOST_BYTES)
                _drive(cluster, topic, batch, load)
                found = []
                for _ in range(self._extent.looks):
                    load = Load(_CONNECTIONS[batch], measure_s=self._extent.measure_s, max_bytes=_MOST_BYTES)
                    got = _drive(cluster, topic, batch, load)
                    found.append(got.requests / got.seconds)
            self._peaks.found.setdefault(batch, {})[system.name] = statistics.median(found)

    def run(self, cell: ClusterCell, system: System, number: int) -> Mapping[str, float]:
        cluster = cast(Cluster, system)
        if cell.kind == "peak":
            return self._peak(cell, cluster, number)
        if cell.kind == "half":
            return self._half(cell, cluster, number)
        if cell.kind == "memory":
            return {"pss": pss_bytes(cluster.pids()) / 1e6}
        if cell.kind == "follower":
            load = Load(cell.connections, cell.depth, measure_s=self._extent.measure_s, max_bytes=_MOST_BYTES)
            return self._follower(cell, cluster, number, load)
        if cell.kind == "lone follower":
            return self._follower(cell, cluster, number, self._half_load(cell, self._extent.half_s))
        return self._apart(cell, cluster)

    def _peak(self, cell: ClusterCell, cluster: Cluster, number: int) -> Mapping[str, float]:
        load = Load(cell.connections, cell.depth, measure_s=self._extent.measure_s, max_bytes=_MOST_BYTES)
        pids = cluster.pids()
        with topic_on(cluster, f"cluster-{number}", _PARTITIONS, replicas=_REPLICAS) as topic:
            led = leaders(cluster, topic, _PARTITIONS)
            before = cpu_seconds(pids)
            got = _sent(topic, led, cell.batch, load)
            spent = cpu_seconds(pids) - before
        requests = _requests(got)
        payload = cell.batch.messages * cell.batch.message_bytes
        found = {"rate": got.requests / got.seconds}
        if cell.batch.messages > 1:
            return found | {"throughput": found["rate"] * payload / 1e6, "cpu": spent / (requests * payload) * 1e9}
        return found | {"request_cpu": spent / requests * 1e6}

    def _half(self, cell: ClusterCell, cluster: Cluster, number: int) -> Mapping[str, float]:
        load = self._half_load(cell, self._extent.half_s)
        with topic_on(cluster, f"cluster-{number}", _PARTITIONS, replicas=_REPLICAS) as topic:
            got = _drive(cluster, topic, cell.batch, load)
        return {"p99": got.p99_us, "p50": got.p50_us, "offered": got.requests / got.seconds}

    def _half_load(self, cell: ClusterCell, seconds: float) -> Load:
        rate = self._peaks.half_of_lowest(cell.batch)
        return Load(cell.connections, warm_s=0.5, measure_s=seconds, max_bytes=_MOST_BYTES, rate=rate)

    def _follower(self, cell: ClusterCell, cluster: Cluster, number: int, load: Load) -> Mapping[str, float]:
        spent: dict[int, list[float]] = {1: [], _REPLICAS: []}
        # In turns, so that a drift of the machine counts on both sides.
        for turn, replicas in enumerate((1, _REPLICAS, _REPLICAS, 1)):
            with topic_on(cluster, f"cluster-{number}-{turn}", _PARTITIONS, _config(replicas), replicas) as topic:
                led = leaders(cluster, topic, _PARTITIONS, replicas)
                before = cpu_seconds(cluster.pids())
                got = _sent(topic, led, cell.batch, load)
                spent[replicas].append((cpu_seconds(cluster.pids()) - before) / _requests(got))
        extra = statistics.fmean(spent[_REPLICAS]) - statistics.fmean(spent[1])
        return {"follower": extra / (_REPLICAS - 1) * 1e6}

    def _apart(self, cell: ClusterCell, cluster: Cluster) -> Mapping[str, float]:
        """Measures on a cluster of its own: its brokers end, or hold many partitions, and the others stay warm."""
        own = cast(Cluster, SYSTEMS[cluster.name](SYSTEM_DATA / f"{cluster.name}-apart"))
        own.wipe()
        own.start()
        try:
            if cell.kind == "ends":
                return self._ends(own)
            return self._pause(own) if cell.kind == "pause" else self._many(own)
        finally:
            own.stop()
            own.wipe()

    def _ends(self, cluster: Cluster) -> Mapping[str, float]:
        kills, stops = self._extent.ends[cluster.name]
        killed = _ended(cluster, "kill", kills)
        stopped = end_leaders(cluster, "stop", stops)
        if stopped.problems:
            raise RuntimeError("; ".join(stopped.problems[:3]))
        return {
            "killed_p50": statistics.median(killed.acknowledgements),
            "killed_longest": max(killed.acknowledgements),
            "killed_read": max(killed.records),
            "stopped_longest": max(stopped.acknowledgements),
            "stopped_failed": len(stopped.failed),
        }

    def _pause(self, cluster: Cluster) -> Mapping[str, float]:
        return {"paused_longest": max(_ended(cluster, "pause", self._extent.pauses).acknowledgements)}

    def _many(self, cluster: Cluster) -> Mapping[str, float]:
        found = self._idle(cluster)
        killed = _ended(cluster, "kill", self._extent.kills_beside)
        return {**found, "killed_longest": max(killed.acknowledgements)}

    def _idle(self, cluster: Cluster) -> Mapping[str, float]:
        make_topic(cluster, "idle", _IDLE_PARTITIONS, replicas=_REPLICAS)
        leaders(cluster, "idle", _IDLE_PARTITIONS)
        time.sleep(self._extent.idle_s)  # what the creation left behind
        brokers = [cluster.broker_pids(node) for node in cluster.brokers]
        before, begin = [cpu_seconds(pids) for pids in brokers], time.monotonic()
        time.sleep(self._extent.idle_s)
        spent, seconds = [cpu_seconds(pids) for pids in brokers], time.monotonic() - begin
        return {
            "idle_cpu": max(after - start for after, start in zip(spent, before, strict=True)) / seconds * 100,
            "idle_pss": max(pss_bytes(pids) for pids in brokers) / 1e6,
        }

    def targets(self, table: Table) -> Sequence[Target]:
        def ratio(name: str, metric: str, wanted: float, *cells: str, at_least: bool = False) -> Target:
            found = table.shape_value(metric, cells=cells)
            remarks = []
            if name == "h-requests" and found is not None:
                remarks.append(f"stretch goal >={_STRETCH:g}: {'met' if found.value >= _STRETCH else 'short'}")
            return ratio_target(name, found, wanted, at_least=at_least, remarks=remarks)

        small = ("one message, 8 connections", "one message, 64 connections")
        half = ("half load, batches of 64 KB", "half load, one message")
        return [
            ratio("h-throughput", "rate", 1.0, "batches of 64 KB", at_least=True),
            ratio("h-requests", "rate", 0.5, *small, at_least=True),
            ratio("h-cpu-per-gb", "cpu", 0.8, "batches of 64 KB"),
            ratio("h-p99", "p99", 1.0, *half),
            ratio("h-memory", "pss", 0.2, "after the loads"),
            _absolute(table, "h-follower-batch", "a follower, batches of 64 KB", "follower", 180, "µs"),
            _absolute(table, "h-follower-message", "a follower, runs of one message", "follower", 3, "µs"),
            _absolute(table, "h-fail-over-p50", "leaders end", "killed_p50", 0.3, "s"),
            _absolute(table, "h-fail-over-p99", "leaders end", "killed_longest", 1.0, "s", longest=True),
            _absolute(table, "h-fail-over-partitions", "2,000 partitions", "killed_longest", 1.5, "s", longest=True),
            _absolute(
                table, "h-fail-over-paused", "a leader is paused", "paused_longest", _SESSION_S + 1, "s", longest=True
            ),
            _absolute(table, "h-shutdown-failed", "leaders end", "stopped_failed", 0, "sends", longest=True),
            _absolute(table, "h-shutdown-gap", "leaders end", "stopped_longest", 0.2, "s", longest=True),
            _absolute(table, "h-idle-cpu", "2,000 partitions", "idle_cpu", 3, "% of a core"),
            _absolute(table, "h-idle-memory", "2,000 partitions", "idle_pss", 120, "MB"),
        ]


def _absolute(
    table: Table, name: str, cell: str, metric: str, wanted: float, unit: str, *, longest: bool = False
) -> Target:
    """Returns the target of Klamm's median over the rounds, or of its highest figure; Kafka's own is a remark."""
    found = {}
    for system in _BOTH:
        if spread := table.spread(cell, system, metric):
            found[system] = spread.highest if longest else spread.median
    remarks = [f"{system} {figure(value)} {unit}" for system, value in found.items()]
    return Target(name, found.get(OURS), wanted, at_least=False, remarks=[", ".join(remarks)] if remarks else [])


def _ended(cluster: Cluster, how: How, rounds: int) -> Pauses:
    """Raises `RuntimeError` if a record was lost, doubled or out of order, or could not be sent."""
    found = end_leaders(cluster, how, rounds)
    if wrong := [*found.problems, *found.failed]:
        raise RuntimeError("; ".join(wrong[:3]))
    return found


def leaders(cluster: Cluster, topic: str, partitions: int, replicas: int = _REPLICAS) -> dict[str, list[int]]:
    """Returns the partitions by the HOST:PORT of their leader, once all their replicas are in sync."""
    deadline = time.monotonic() + _IN_SYNC_S
    with ClusterClient(cluster.bootstrap, codecs=load_settings({}).codec_table()) as client:
        while True:
            known = client.metadata([topic]).topics[topic].partitions
            behind = [
                number for number in range(partitions) if number not in known or len(known[number].isr) < replicas
            ]
            if not behind:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(behind)} of {partitions} partitions are not in sync within {_IN_SYNC_S:g} s")
            time.sleep(0.1)
        client.list_offsets({TopicPartition(topic, number): _LATEST for number in range(partitions)})  # each leads now
    led: dict[str, list[int]] = {}
    for number in range(partitions):
        led.setdefault(cluster.brokers[known[number].leader], []).append(number)
    return led


def _drive(cluster: Cluster, topic: str, batch: Batch, load: Load) -> Outcome:
    return _sent(topic, leaders(cluster, topic, _PARTITIONS), batch, load)


def _sent(topic: str, led: Mapping[str, Sequence[int]], batch: Batch, load: Load) -> Outcome:
    """Runs the raw driver. Raises `RuntimeError` if nothing was acknowledged in the measured time."""
    got = drive_each(topic, led, batch, load, _ACKS_ALL)
    if not got.requests:
        raise RuntimeError(f"no request was acknowledged within {load.measure_s:g} s")
    return got


def _config(replicas: int) -> Mapping[str, str]:
    return {"min.insync.replicas": str(min(replicas, 2))}


def _requests(got: Outcome) -> float:
    """Returns the requests that were acknowledged, those before the measured time included."""
    return got.requests * got.all_bytes / got.bytes


three_brokers = ThreeBrokers()
