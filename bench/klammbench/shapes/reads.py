"""(reads) What a fetch costs: one connection reads one partition, one fetch of at most 1 MB after the other. Batches of
three sizes, read uncommitted and read committed, of a topic without transactions.

Only `make bench-compare` has this shape: it compares two commits of Klamm.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.reader import Source
from klammbench.drivers.topics import make_topic
from klammbench.metric import Metric
from klammbench.process import cpu_seconds
from klammbench.systems.base import System
from klammbench.table import Table
from klammbench.targets import Target

NAME = "reads"
TITLE = "Fetches of one connection"
SYSTEMS: Sequence[str] = ("klamm",)
MANAGED = True
METRICS: Mapping[str, Metric] = {
    "rate": Metric("MB/s", "higher", 1),
    "broker_cpu": Metric("broker CPU s/GB", "lower", 3),
}
_WARM_S, _MEASURE_S = 0.1, 0.5
_ISOLATIONS = ("read_uncommitted", "read_committed")
"""By the protocol's number."""


@dataclass(frozen=True, slots=True)
class _Filled:
    label: str
    batch: Batch
    bytes: int

    @property
    def topic(self) -> str:
        return f"reads-{self.batch.messages}"


_FILLED = (
    _Filled("batches of 64 KB", Batch.of_size(65_536), 64_000_000),
    _Filled("batches of 4 KB", Batch.of_size(4_096), 16_000_000),
    _Filled("batches of one record", Batch(1), 2_000_000),
)


@dataclass(frozen=True, slots=True)
class ReadCell:
    filled: _Filled
    isolation: int

    @property
    def name(self) -> str:
        return f"{self.filled.label}, {_ISOLATIONS[self.isolation]}"


def cells(quick: bool) -> Sequence[ReadCell]:  # noqa: ARG001 - all are quick
    return [ReadCell(filled, isolation) for filled in _FILLED for isolation in range(len(_ISOLATIONS))]


def warm(system: System) -> None:
    """Fills the topics."""
    for filled in _FILLED:
        make_topic(system, filled.topic, 1)
        load = Load(2, depth=2, warm_s=0, measure_s=20, max_bytes=filled.bytes)
        drive(system.bootstrap, filled.topic, 1, filled.batch, load)


def run(cell: ReadCell, system: System, number: int) -> Mapping[str, float]:  # noqa: ARG001 - topics stay
    source = Source(system.bootstrap, cell.filled.topic, cell.isolation)
    try:
        source.read(_WARM_S, sys.maxsize, again=True)
        pids = system.pids()
        before = cpu_seconds(pids)
        got = source.read(_MEASURE_S, sys.maxsize, again=True)
        spent = cpu_seconds(pids) - before
    finally:
        source.close()
    return {"rate": got.bytes / got.seconds / 1e6, "broker_cpu": spent / got.bytes * 1e9}


def targets(table: Table) -> Sequence[Target]:  # noqa: ARG001 - only two commits are compared
    return []
