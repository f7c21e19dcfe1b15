"""Shape (d)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.topics import topic_on
from klammbench.metric import Metric
from klammbench.shapes.base import BROKERS
from klammbench.shapes.warming import PARTITIONS
from klammbench.shapes.warming import warm as warm_up
from klammbench.systems.base import System
from klammbench.table import Table
from klammbench.targets import Target, ratio_target

_CONNECTIONS = 8
_SHARE = 0.5
_PEAK_S, _LOOKS = 1.5, 3
_WARM_S, _MEASURE_S = 1.0, 4.0


@dataclass(frozen=True, slots=True)
class LatencyCell:
    name: str
    batch: Batch
    max_bytes: float
    """Bytes at which the measured time ends early, so that the disk does not become the bottleneck."""


_CELLS = (
    LatencyCell("requests of one message", Batch(1), 2e9),
    LatencyCell("batches of 64 KB", Batch.of_size(65_536), 4e9),
)


class Latency:
    """(d) Latency of an acknowledgement at one absolute rate for all: half the lowest peak found before the rounds.

    Open loop: requests are due at fixed times, and a request's latency counts from when it was due, so that a stall
    counts for all requests that it delayed (no coordinated omission). acks=1, 12 partitions, 8 connections. A peak is
    that of a closed loop with one request in flight on each connection, the median of three measurements. The driver
    runs with real-time priority where permitted (as root), because on two cores it would otherwise wait for the
    broker's threads, longer with more threads; its own delay is in the last table, and part of the latencies. Each
    measurement has 4 s after 1 s that does not count, so that some dozens of requests lie above p99.9 (about ten
    batches).
    """

    NAME = "d"
    TITLE = "Latency at one rate for all, half the lowest peak"
    SYSTEMS = BROKERS
    MANAGED = True
    METRICS: Mapping[str, Metric] = {
        "rate": Metric("requests/s", None),
        "p99": Metric("µs p99", "lower"),
        "p50": Metric("µs p50", "lower"),
        "p999": Metric("µs p99.9", "lower"),
        "late": Metric("µs p99 of the driver's own delay", None),
    }

    def __init__(self) -> None:
        self._quick = False
        self._peaks: dict[str, dict[str, float]] = {}

    def cells(self, quick: bool) -> Sequence[LatencyCell]:
        self._quick = quick
        self._peaks = {}  # peaks of this run's systems only
        return _CELLS

    def warm(self, system: System) -> None:
        """Warms the system up and finds its peak in a closed loop."""
        warm_up(system)
        for place, cell in enumerate(_CELLS):
            found = [self._peak(cell, system, f"peak-{place}-{look}") for look in range(1 if self._quick else _LOOKS)]
            self._peaks.setdefault(cell.name, {})[system.name] = statistics.median(found)

    def _peak(self, cell: LatencyCell, system: System, name: str) -> float:
        with topic_on(system, name, PARTITIONS) as topic:
            got = drive(system.bootstrap, topic, PARTITIONS, cell.batch, Load(_CONNECTIONS, measure_s=_PEAK_S))
        return got.requests / got.seconds

    def rate(self, cell: LatencyCell) -> float:
        return _SHARE * min(self._peaks[cell.name].values())

    def run(self, cell: LatencyCell, system: System, number: int) -> Mapping[str, float]:
        rate = self.rate(cell)
        load = Load(
            _CONNECTIONS,
            warm_s=_WARM_S,
            measure_s=2.0 if self._quick else _MEASURE_S,
            max_bytes=cell.max_bytes,
            rate=rate,
        )
        with topic_on(system, f"latency-{number}", PARTITIONS) as topic:
            got = drive(system.bootstrap, topic, PARTITIONS, cell.batch, load)
        return {
            "rate": got.requests / got.seconds,
            "p99": got.p99_us,
            "p50": got.p50_us,
            "p999": got.p999_us,
            "late": got.late_p99_us,
        }

    def targets(self, table: Table) -> Sequence[Target]:
        return [ratio_target("d-p99", table.shape_value("p99"), 1.0, at_least=False)]


latency = Latency()
