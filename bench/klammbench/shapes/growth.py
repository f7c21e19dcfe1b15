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
from klammbench.process import cpu_kernel, cpu_seconds
from klammbench.systems.base import System
from klammbench.table import Table, distance
from klammbench.targets import Target, figure

SMALLEST = "1 partition, 1 MB"
WANTED = 1.10
_SMALL_BYTES = 1_000_000
_BATCH = Batch.of_size(65_536)
_RATE = 500.0
_WARM_S = 0.3
_STEP_BYTES = 1_000_000_000
_FREE_BYTES = 12_000_000_000
"""Disk space that must be left when a log has been filled."""
_TOUCHED_MB = 200
"""More than is written in one turn."""
SYSTEMS: Sequence[str] = ("klamm", "kafka-tuned")


@dataclass(frozen=True, slots=True)
class GrowthCell:
    """`log_bytes` in the partition, or `partitions` with one batch each; `turns` pairs of `seconds` each."""

    name: str
    log_bytes: int
    partitions: int
    seconds: float
    turns: int = 2
    systems: Sequence[str] = SYSTEMS

    @property
    def topic(self) -> str:
        return f"growth-{self.partitions}-{self.log_bytes}"

    @property
    def small(self) -> bool:
        """True if the log is new each time; the other logs are filled once and grow by what is measured."""
        return self.name == SMALLEST


@dataclass(slots=True)
class Cost:
    """CPU seconds that batches took; the kernel's part is sampled, 10 ms at a time."""

    batches: int = 0
    cpu: float = 0.0
    kernel: float = 0.0

    @property
    def us(self) -> float:
        return self.cpu / self.batches * 1e6

    @property
    def kernel_us(self) -> float:
        return self.kernel / self.batches * 1e6


class Growth:
    """(g) What a batch costs as the log grows: broker CPU for a 64 KB batch at a fixed rate.

    500 batches a second (open loop, acks=1), to one partition that holds 1 MB, 1 GB or 20 GB already (20 GB on Klamm
    only), and to 1, 100 or 2,000 partitions in turn that hold a batch each. A system's logs are all filled, and written
    to the disk, before the first of its cells is measured. Each cell is measured beside a new log of 1 MB on the same
    broker, in turns of 0.8 s: small, cell, cell, small (2,000 partitions: twice as many of 1 s, so that each partition
    is written to), so that other load on the machine affects both. `growth` is the cell's cost divided by that of the
    small log of its own turns; in the cell of 1 MB it compares one small log with another, and the distance of Kafka's
    value from 1 there is the allowance. CPU time is the scheduler's, in nanoseconds, of all of the system's processes,
    user and kernel; the kernel's part is sampled.
    """

    NAME = "g"
    TITLE = "Cost of a batch as the log grows"
    SYSTEMS = SYSTEMS
    METRICS: Mapping[str, Metric] = {
        "cpu": Metric("broker CPU µs/batch", "lower", 1),
        "growth": Metric("times the small log's cost in the same turns", None, 3),
        "small": Metric("broker CPU µs/batch, the small log in the same turns", None, 1),
        "kernel": Metric("broker CPU µs/batch in the kernel, sampled", None, 1),
    }
    MANAGED = True
    """The filled logs stay from round to round; the systems are wiped at the end of the run."""

    def __init__(self) -> None:
        self._cells: Sequence[GrowthCell] = ()
        self._unfilled: dict[tuple[str, str], str] = {}
        """By system and cell, why its log is not there."""
        self._next: dict[tuple[str, str], int] = {}
        """By system and topic, the partition whose turn it is."""

    def cells(self, quick: bool) -> Sequence[GrowthCell]:
        seconds = 0.6 if quick else 0.8
        first = [
            GrowthCell(SMALLEST, _SMALL_BYTES, 1, seconds),
            GrowthCell("1 partition, 1 GB", 1_000_000_000, 1, seconds),
        ]
        if quick:
            self._cells = [*first, GrowthCell("200 partitions", 0, 200, seconds)]
        else:
            self._cells = [
                *first,
                GrowthCell("1 partition, 20 GB", 20_000_000_000, 1, seconds, systems=("klamm",)),
                GrowthCell("100 partitions", 0, 100, seconds),
                GrowthCell("2,000 partitions", 0, 2000, 1.0, turns=4),  # each partition is written to
            ]
        return self._cells

    def warm(self, system: System) -> None:
        """Warms the system up and fills its logs."""
        make_topic(system, "warm", 1)
        drive(system.bootstrap, "warm", 1, _BATCH, Load(2, depth=2, warm_s=0, measure_s=3, max_bytes=1e9))
        self._fill_all(system)
        drive(system.bootstrap, "warm", 1, _BATCH, Load(2, warm_s=0, measure_s=2, rate=_RATE))

    def run(self, cell: GrowthCell, system: System, number: int) -> Mapping[str, float]:
        if system.name not in cell.systems:
            return {}
        if why := self._unfilled.get((system.name, cell.name)):
            raise RuntimeError(why)
        small, topic = f"growth-small-{number}", cell.topic
        _fill(system, small, 1, _SMALL_BYTES)
        if cell.small:
            topic = f"{topic}-{number}"
            _fill(system, topic, 1, _SMALL_BYTES)
        beside, own = self.in_turn(cell, system, small, topic)
        return {"cpu": own.us, "growth": own.us / beside.us, "small": beside.us, "kernel": own.kernel_us}

    def in_turn(self, cell: GrowthCell, system: System, small: str, topic: str) -> tuple[Cost, Cost]:
        """Measures in alternation and returns the cost of the small log and of the cell."""
        for name, partitions in ((small, 1), (topic, cell.partitions)):
            drive(system.bootstrap, name, partitions, _BATCH, Load(2, warm_s=0, measure_s=_WARM_S, rate=_RATE))
        os.sync()
        costs = Cost(), Cost()
        for turn in range(cell.turns):
            for place in (0, 1) if turn % 2 == 0 else (1, 0):
                wanted = self._some_partitions(cell, system, topic)
                if place == 0:
                    _measure(costs[0], system, small, [0] * len(wanted), cell.seconds)  # as many frames as the cell has
                else:
                    _measure(costs[1], system, topic, wanted, cell.seconds)
                    self._next[system.name, topic] = (wanted[-1] + 1) % cell.partitions
        return costs

    def _some_partitions(self, cell: GrowthCell, system: System, topic: str) -> Sequence[int]:
        """Returns all partitions, or as many as there are batches in a turn, beginning after the last one used."""
        first = self._next.get((system.name, topic), 0)
        count = min(cell.partitions, round(_RATE * cell.seconds))
        return [(first + n) % cell.partitions for n in range(count)]

    def _fill_all(self, system: System) -> None:
        """Fills the logs of all cells; a cell whose log cannot be filled fails alone."""
        for cell in self._cells:
            if system.name in cell.systems and not cell.small:
                self._unfilled.pop((system.name, cell.name), None)
                try:
                    _fill(system, cell.topic, cell.partitions, max(cell.log_bytes, cell.partitions * 66_000))
                except Exception as error:
                    self._unfilled[system.name, cell.name] = f"its log was not filled: {error}"
        os.sync()

    def targets(self, table: Table) -> Sequence[Target]:
        """Returns targets that compare each cell with the small log of the same turns; the worst cell counts."""
        names = [name for name in table.cells() if name != SMALLEST]
        return [
            _target(table, "g-growth-log", [name for name in names if "GB" in name]),
            _target(table, "g-growth-partitions", [name for name in names if "GB" not in name]),
        ]


def _measure(cost: Cost, system: System, topic: str, partitions: Sequence[int], seconds: float) -> None:
    pids = system.pids()
    begin = Cost()

    def ready() -> None:
        touch(system.data_dir.parent)
        begin.cpu, begin.kernel = cpu_seconds(pids), cpu_kernel(pids)

    load = Load(2, warm_s=0, measure_s=seconds, rate=_RATE)
    got = drive(system.bootstrap, topic, partitions, _BATCH, load, before=ready)
    cost.batches += got.requests
    cost.cpu += cpu_seconds(pids) - begin.cpu
    cost.kernel += cpu_kernel(pids) - begin.kernel


def touch(folder: Path, megabytes: int = _TOUCHED_MB) -> None:
    """Writes and removes a file, so that the host already backs the pages that the kernel allocates next.

    Where a virtual machine returns its free pages to the host, the first copy into each costs several times as much,
    and which cell pays depends on what was freed before.
    """
    scratch = folder / "scratch"
    with scratch.open("wb") as file:
        for _ in range(megabytes):
            file.write(bytes(1_000_000))
    scratch.unlink()


def _fill(system: System, topic: str, partitions: int, size: int) -> None:
    make_topic(system, topic, partitions)
    free = shutil.disk_usage(system.data_dir).free
    if free < size + _FREE_BYTES:
        raise RuntimeError(f"{free / 1e9:.0f} GB are free on the disk, too little for a log of {size / 1e9:g} GB")
    done = 0
    while done < size:
        load = Load(1, depth=4, warm_s=0, measure_s=35, max_bytes=min(_STEP_BYTES, size - done))
        done += drive(system.bootstrap, topic, partitions, _BATCH, load).all_bytes


def _target(table: Table, name: str, cells: Sequence[str]) -> Target:
    """Returns the worst cell's median over the rounds; the allowance is the same figure of Kafka's small log."""
    found = {cell: spread.median for cell in cells if (spread := table.spread(cell, "klamm", "growth"))}
    itself = {system: spread.median for system in SYSTEMS if (spread := table.spread(SMALLEST, system, "growth"))}
    allowance = distance(itself["kafka-tuned"]) if "kafka-tuned" in itself else 0.0
    remarks = [f"{cell}: {figure(growth)} x the cost with {SMALLEST}" for cell, growth in found.items()]
    remarks += [f"{SMALLEST}, {system} beside itself: {figure(growth)}" for system, growth in itself.items()]
    remarks.append(f"allowance (Kafka A/A) {allowance:.3f}")
    worst = max(found.values(), default=None)
    return Target(name, worst, WANTED, False, allowance, remarks, complete=bool(found) and len(found) == len(cells))


growth = Growth()
