"""Shape (g)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.topics import make_topic
from klammbench.metric import Metric
from klammbench.process import cpu_exact
from klammbench.systems.base import System
from klammbench.table import Table
from klammbench.targets import Target, figure

SMALLEST = "1 partition, 1 MB"
AGAIN = f"{SMALLEST}, again"
WANTED = 1.10
_BATCH = Batch.of_size(65_536)
_RATE = 500.0
_STEP_BYTES = 1_000_000_000
_FREE_BYTES = 8_000_000_000
"""That the disk should have left when a log is filled."""
_TOUCHED_BYTES, _PIECE_BYTES = 200_000_000, 1_000_000
"""More than is written while it is measured."""
SYSTEMS: Sequence[str] = ("klamm", "kafka-tuned")


@dataclass(frozen=True, slots=True)
class GrowthCell:
    """`log_bytes` in the partition, or `partitions` with one batch each."""

    name: str
    log_bytes: int
    partitions: int
    seconds: float
    systems: Sequence[str] = SYSTEMS

    @property
    def topic(self) -> str:
        return f"growth-{self.partitions}-{self.log_bytes}"

    @property
    def small(self) -> bool:
        """Its log is a new one each time; the others are filled once and grow by what is measured."""
        return self.name in (SMALLEST, AGAIN)


class Growth:
    """(g) What a batch costs as the log grows: broker CPU for a 64 KB batch at a fixed rate.

    500 batches a second (open loop, acks=1), to one partition that holds 1 MB, 1 GB or 20 GB already (20 GB on Klamm
    only), and to 1, 100 or 2,000 partitions in turn that hold a batch each. A system's logs are all filled, and its
    disk is at rest, before the first of its cells is measured, so that cells differ in nothing but what they are named
    for. CPU time is the scheduler's, in nanoseconds, of all of the system's processes. The smallest log is measured
    twice in a round: how far Kafka's two lie apart is the allowance.
    """

    NAME = "g"
    TITLE = "Cost of a batch as the log grows"
    SYSTEMS = SYSTEMS
    METRICS: Mapping[str, Metric] = {"cpu": Metric("broker CPU µs/batch", "lower", 1)}
    MANAGED = False
    """What was filled stays from round to round; the systems are wiped at the end."""

    def __init__(self) -> None:
        self._cells: Sequence[GrowthCell] = ()
        self._filled: dict[str, int] = {}
        """By system, the process that has all logs: one that was started anew is empty."""
        self._unfilled: dict[tuple[str, str], str] = {}
        """By system and cell, why its log is not there."""

    def cells(self, quick: bool) -> Sequence[GrowthCell]:
        seconds = 1.5 if quick else 2.5
        first = [
            GrowthCell(SMALLEST, 1_000_000, 1, seconds),
            GrowthCell("1 partition, 1 GB", 1_000_000_000, 1, seconds),
        ]
        last = GrowthCell(AGAIN, 1_000_000, 1, seconds)
        if quick:
            self._cells = [*first, GrowthCell("200 partitions", 0, 200, seconds), last]
        else:
            self._cells = [
                *first,
                GrowthCell("1 partition, 20 GB", 20_000_000_000, 1, seconds, ("klamm",)),
                GrowthCell("100 partitions", 0, 100, seconds),
                GrowthCell("2,000 partitions", 0, 2000, 4.0),  # each has its turn
                last,
            ]
        return self._cells

    def warm(self, system: System) -> None:
        """The harness does not call it: `run` starts systems."""
        make_topic(system, "warm", 1)
        drive(system.bootstrap, "warm", 1, _BATCH, Load(2, depth=2, warm_s=0, measure_s=3, max_bytes=1e9))

    def run(self, cell: GrowthCell, system: System, number: int) -> Mapping[str, float]:
        if system.name not in cell.systems:
            return {}
        if not system.pids():
            system.start()
            self.warm(system)
        if self._filled.get(system.name) != (first := system.pids()[0]):
            self._fill_all(system)
            self._filled[system.name] = first
        if why := self._unfilled.get((system.name, cell.name)):
            raise RuntimeError(why)
        topic = cell.topic
        if cell.small:
            topic = f"{topic}-{number}"
            _fill(cell, system, topic)
        return {"cpu": _cost_us(cell, system, topic)}

    def _fill_all(self, system: System) -> None:
        """One that cannot be filled fails alone."""
        for cell in self._cells:
            if system.name in cell.systems and not cell.small:
                self._unfilled.pop((system.name, cell.name), None)
                try:
                    _fill(cell, system, cell.topic)
                except Exception as error:
                    self._unfilled[system.name, cell.name] = f"its log was not filled: {error}"
        os.sync()

    def targets(self, table: Table) -> Sequence[Target]:
        """Each cell against the smallest log of the same round; the worst of them."""
        names = [name for name in table.cells() if name not in (SMALLEST, AGAIN)]
        return [
            _target(table, "g-growth-log", [name for name in names if "GB" in name]),
            _target(table, "g-growth-partitions", [name for name in names if "GB" not in name]),
        ]


def _cost_us(cell: GrowthCell, system: System, topic: str) -> float:
    """Of one batch."""
    pids = system.pids()
    _touch(system.data_dir.parent)
    before = cpu_exact(pids)
    got = drive(system.bootstrap, topic, cell.partitions, _BATCH, Load(2, warm_s=0, measure_s=cell.seconds, rate=_RATE))
    spent = cpu_exact(pids) - before
    if got.requests < 0.9 * _RATE * cell.seconds:
        raise RuntimeError(f"the rate was not kept: {got.requests} batches in {got.seconds:.1f} s")
    return spent / got.requests * 1e6


def _touch(folder: Path) -> None:
    """Have the kernel's next free pages backed by the host. Where a virtual machine gives its free pages back to it,
    the first copy into each costs several times as much, and which cell pays depends on what anybody freed before."""
    scratch = folder / "scratch"
    with scratch.open("wb") as file:
        for _ in range(_TOUCHED_BYTES // _PIECE_BYTES):
            file.write(bytes(_PIECE_BYTES))
    scratch.unlink()


def _fill(cell: GrowthCell, system: System, topic: str) -> None:
    make_topic(system, topic, cell.partitions)
    free = shutil.disk_usage(system.data_dir).free
    if free < cell.log_bytes + _FREE_BYTES:
        raise RuntimeError(
            f"{free / 1e9:.0f} GB are free on the disk, too little for a log of {cell.log_bytes / 1e9:g} GB"
        )
    size, done = max(cell.log_bytes, cell.partitions * 66_000), 0
    while done < size:
        load = Load(1, depth=4, warm_s=0, measure_s=35, max_bytes=min(_STEP_BYTES, size - done))
        done += drive(system.bootstrap, topic, cell.partitions, _BATCH, load).all_bytes


def _target(table: Table, name: str, cells: Sequence[str]) -> Target:
    ratios = {cell: ratio for cell in cells if (ratio := table.against(SMALLEST, cell, "klamm", "cpu")) is not None}
    remarks = [f"{cell}: {figure(ratio)} x the cost with {SMALLEST}" for cell, ratio in ratios.items()]
    itself = {system: table.against(SMALLEST, AGAIN, system, "cpu") for system in SYSTEMS}
    remarks += [f"{SMALLEST}, {system} against itself: {figure(ratio)}" for system, ratio in itself.items() if ratio]
    kafka = itself["kafka-tuned"]
    allowance = max(kafka, 1 / kafka) - 1 if kafka else 0.0
    worst = max(ratios.values()) if ratios else None
    return Target(name, worst, WANTED, False, allowance, remarks, complete=bool(ratios) and len(ratios) == len(cells))


growth = Growth()
