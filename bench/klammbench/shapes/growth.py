"""(g) What a batch costs as the log grows: broker CPU for a 64 KB batch at a fixed rate.

500 batches a second (open loop, acks=1), to one partition that holds 1 MB, 1 GB or 20 GB already, and to 1, 100 or
2,000 partitions in turn that hold a batch each. CPU time is the scheduler's, in nanoseconds, of all of the system's
processes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.topics import make_topic
from klammbench.metric import Metric
from klammbench.process import cpu_exact
from klammbench.systems.base import System
from klammbench.table import Table
from klammbench.targets import Target, figure

NAME = "g"
TITLE = "Cost of a batch as the log grows"
SYSTEMS: Sequence[str] = ("klamm", "kafka-tuned")
METRICS: Mapping[str, Metric] = {"cpu": Metric("broker CPU µs/batch", "lower", 1)}
MANAGED = False
"""What was filled stays from round to round; the systems are wiped at the end."""

SMALLEST = "1 partition, 1 MB"
WANTED = 1.10
_BATCH = Batch.of_size(65_536)
_RATE = 500.0
_STEP_BYTES = 1_000_000_000
_FREE_BYTES = 8_000_000_000
"""That the disk should have left when a log is filled."""


@dataclass(frozen=True, slots=True)
class GrowthCell:
    """`log_bytes` in the partition, or `partitions` with one batch each."""

    name: str
    log_bytes: int
    partitions: int
    seconds: float
    systems: Sequence[str] = SYSTEMS


def cells(quick: bool) -> Sequence[GrowthCell]:
    seconds = 1.5 if quick else 2.5
    small = [GrowthCell(SMALLEST, 1_000_000, 1, seconds), GrowthCell("1 partition, 1 GB", 1_000_000_000, 1, seconds)]
    if quick:
        return [*small, GrowthCell("200 partitions", 0, 200, seconds)]
    return [
        *small,
        GrowthCell("1 partition, 20 GB", 20_000_000_000, 1, seconds, ("klamm",)),
        GrowthCell("100 partitions", 0, 100, seconds),
        GrowthCell("2,000 partitions", 0, 2000, seconds),
    ]


def warm(system: System) -> None:
    """The harness does not call it: `run` starts systems."""
    make_topic(system, "warm", 1)
    drive(system.bootstrap, "warm", 1, _BATCH, Load(2, depth=2, warm_s=0, measure_s=3, max_bytes=1e9))


_FILLED: set[tuple[str, int, str]] = set()
"""System, process and cell: one that was started anew is empty."""


def run(cell: GrowthCell, system: System, number: int) -> Mapping[str, float]:
    if system.name not in cell.systems:
        return {}
    if not system.pids():
        system.start()
        warm(system)
    topic = _topic(cell, system, number)
    pids = system.pids()
    before = cpu_exact(pids)
    got = drive(system.bootstrap, topic, cell.partitions, _BATCH, Load(2, warm_s=0, measure_s=cell.seconds, rate=_RATE))
    if got.requests < 0.9 * _RATE * cell.seconds:
        raise RuntimeError(f"the rate was not kept: {got.requests} batches in {got.seconds:.1f} s")
    return {"cpu": (cpu_exact(pids) - before) / got.requests * 1e6}


def _topic(cell: GrowthCell, system: System, number: int) -> str:
    """The smallest log is a new one each time; the others are filled once and grow by what is measured."""
    name = f"growth-{cell.partitions}-{cell.log_bytes}"
    if cell.name == SMALLEST:
        name = f"{name}-{number}"
    here = (system.name, system.pids()[0], name)
    if here not in _FILLED:
        make_topic(system, name, cell.partitions)
        _fill(cell, system, name)
        _FILLED.add(here)
        if cell.name != SMALLEST:
            os.sync()
    return name


def _fill(cell: GrowthCell, system: System, topic: str) -> None:
    free = shutil.disk_usage(system.data_dir).free
    if free < cell.log_bytes + _FREE_BYTES:
        raise RuntimeError(
            f"{free / 1e9:.0f} GB are free on the disk, too little for a log of {cell.log_bytes / 1e9:g} GB"
        )
    size, done = max(cell.log_bytes, cell.partitions * 66_000), 0
    while done < size:
        load = Load(1, depth=4, warm_s=0, measure_s=35, max_bytes=min(_STEP_BYTES, size - done))
        done += drive(system.bootstrap, topic, cell.partitions, _BATCH, load).all_bytes


def targets(table: Table) -> Sequence[Target]:
    """Each cell against the smallest log, in the same round; the worst of them."""
    names = [name for name in table.cells() if name != SMALLEST]
    found = []
    for word, cells_of in (
        ("log", [n for n in names if "GB" in n]),
        ("partitions", [n for n in names if "GB" not in n]),
    ):
        ratios = {name: r for name in cells_of if (r := _growth(table, name)) is not None}
        remarks = [f"{name}: {figure(ratio)} x the cost with {SMALLEST}" for name, ratio in ratios.items()]
        whole = len(ratios) == len(cells_of) and bool(ratios)
        worst = max(ratios.values()) if ratios else None
        found.append(Target(f"g-growth-{word}", worst, WANTED, False, 0.0, remarks, complete=whole))
    return found


def _growth(table: Table, cell: str) -> float | None:
    above, below = table.spread(cell, "klamm", "cpu"), table.spread(SMALLEST, "klamm", "cpu")
    return None if above is None or below is None else above.median / below.median
