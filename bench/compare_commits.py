"""Compares two commits of Klamm on the cells of `make bench`, in alternation: is the newer one slower?

`make bench-compare BEFORE=../old-clone` runs the broker of this tree and that of another clone, both made by their
`bench/install.sh`. Two starts of one commit differ by some per cent until they end, so each round starts both anew, and
measures each cell on both in turns (before, after, after, before). Of a cell, a metric and a round the ratio
after/before is that of the means of these turns.

Printed is one line for each metric of each cell: the medians, and of the rounds' ratios the median and the 95 %
confidence interval of that median (from the order of the ratios, without an assumption on how they are spread). A
metric is WORSE if the whole interval is worse by more than `--limit`, ok if the whole interval is better than that, and
open otherwise: then more rounds are needed. Every ten rounds the cells without an open metric are left out of the next
ones. The command exits with 1 if a metric is WORSE.

Both use the embedded coordination. Clients are those of this tree, so shapes that measure clients are left out. Of (h),
three brokers of each tree, only the peaks and the costs of a follower are compared. (reads) is in no other program.

The clients of (b) and (f) send more records than in `make bench`, so that what a start costs counts for less. A disk
that holds up one of the two for 100 ms decides the tail of (d): `DATA=/dev/shm/compared` keeps the logs in memory, so
that only the brokers are compared. Both hash with the same seed, and before each measurement a file is written and
removed, so that neither pays for pages that the host of a virtual machine has taken back.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from klammbench.harness import BusyError, alone, end_on_signals, machine
from klammbench.metric import Metric
from klammbench.paths import BROKER_COMMAND, SYSTEM_DATA, VAR
from klammbench.shapes import SHAPES, reads
from klammbench.shapes.base import Cell, Shape
from klammbench.shapes.footprint import FootprintCell
from klammbench.shapes.growth import GrowthCell, touch
from klammbench.shapes.throughput import ThroughputCell
from klammbench.systems.base import System
from klammbench.systems.clusters import KlammCluster
from klammbench.systems.klamm import Klamm

COMPARED: Mapping[str, Shape] = {**{name: SHAPES[name] for name in "bcdfgh"}, reads.NAME: reads}
"""The shapes that measure only brokers."""
_KINDS = ("peak", "follower")
"""Of a shape whose cells have kinds, those that are compared."""
_CLIENT_RECORDS = 1_000_000
"""What a client produces or consumes in a turn of (b), and half of that in (f): about 0.15 s of the broker's CPU
time."""
_TOUCHED_MB = 1000
"""About what a measurement writes."""
_WARM_S = 0.5
"""No JVM is compared: what a broker imports and allocates at its first requests is done by then."""
_NAMES = ("before", "after")
_LOOK = 10
"""After so many rounds the cells that are decided are left out."""
ROUNDS = 30
LIMIT = 0.03


class Verdict(StrEnum):
    OK = "ok"
    OPEN = "open"
    WORSE = "WORSE"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the bounds of the median with a confidence of at least 95 %: order statistics by the binomial
    distribution. With fewer than 6 values no bounds are that sure: (-inf, inf).
    """
    ordered, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    while (outside := outside + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The values of one metric of one cell: `before` and `after` have one value per round, in the metric's unit."""

    cell: str
    metric: Metric
    before: Sequence[float]
    after: Sequence[float]

    @property
    def ratios(self) -> Sequence[float]:
        """Returns after / before for each round; rounds in which `before` is 0 are left out."""
        return [new / old for old, new in zip(self.before, self.after, strict=True) if old]

    def verdict(self, limit: float) -> Verdict:
        low, high = interval(self.ratios)
        worst, best = (1 - low, 1 - high) if self.metric.better == "higher" else (high - 1, low - 1)
        if best > limit:
            return Verdict.WORSE
        return Verdict.OK if worst <= limit else Verdict.OPEN

    def line(self, limit: float) -> str:
        unit, digits = self.metric.unit, self.metric.digits
        old, new = statistics.median(self.before), statistics.median(self.after)
        ratio = "no ratio"
        if ratios := self.ratios:
            low, high = interval(ratios)
            ratio = f"{statistics.median(ratios):.3f} (95 %: {low:.3f} to {high:.3f}; {len(ratios)} rounds)"
        return (
            f"{self.cell}: {unit}: {old:,.{digits}f} -> {new:,.{digits}f}, after/before {ratio} {self.verdict(limit)}"
        )


@dataclass(slots=True)
class Comparer:
    """Compares `systems` (before, after). `prepare` is called before each measurement; `say` gets a line for each
    round."""

    systems: Sequence[System]
    rounds: int
    limit: float
    prepare: Callable[[System], None]
    say: Callable[[str], None]

    def compare(self, shape: Shape, pattern: str = "") -> Sequence[Comparison]:
        """Runs the shape's cells in whose name `pattern` is found. A round that fails is left out, and `say` gets a
        line about it; raises `RuntimeError` if all fail."""
        cells = [
            _longer(cell)
            for cell in shape.cells(True)
            if getattr(cell, "kind", _KINDS[0]) in _KINDS and re.search(pattern, cell.name)
        ]
        found: dict[tuple[str, str], Comparison] = {}
        failed = 0
        for turn in range(self.rounds):
            if turn % _LOOK == 0:
                done = {key[0] for key in found} - {
                    name for (name, _), one in found.items() if one.verdict(self.limit) == Verdict.OPEN
                }
                cells = [cell for cell in cells if cell.name not in done]
            if not cells:
                break
            try:
                got = self._round(shape, cells, turn)
            except RuntimeError as error:  # the other rounds count
                failed += 1
                self.say(f"({shape.NAME}) round {turn + 1} of {self.rounds} FAILED: {error}")
                continue
            for (name, metric), (before, after) in got.items():
                old = found.get((name, metric)) or Comparison(name, shape.METRICS[metric], (), ())
                found[name, metric] = replace(old, before=(*old.before, before), after=(*old.after, after))
            self.say(f"({shape.NAME}) round {turn + 1} of {self.rounds} done")
        if failed == self.rounds:
            raise RuntimeError(f"({shape.NAME}) each of {self.rounds} rounds has failed")
        return list(found.values())

    def _round(self, shape: Shape, cells: Sequence[Cell], turn: int) -> Mapping[tuple[str, str], tuple[float, float]]:
        """Returns the means of both systems by cell and metric."""
        means: dict[tuple[str, str], tuple[float, float]] = {}
        with ExitStack() as stack:
            for system in self.systems:
                system.wipe()
                stack.callback(system.wipe)
                if shape.MANAGED:
                    stack.callback(system.stop)
                    system.start()
                    shape.warm(system)
            for place, cell in enumerate(cells):
                got: tuple[list[Mapping[str, float]], list[Mapping[str, float]]] = ([], [])
                order = (0, 1, 1, 0) if _in_turns(shape, cell) else (0, 1)
                for step, second in enumerate(order):
                    at = (second + turn) % 2
                    self.prepare(self.systems[at])
                    try:
                        got[at].append(shape.run(cell, self.systems[at], place * len(order) + step))
                    except RuntimeError as error:
                        raise RuntimeError(f"{cell.name}, {_NAMES[at]}: {error}") from error
                for metric, described in shape.METRICS.items():
                    if described.better is not None and all(metric in one for one in (*got[0], *got[1])):
                        means[cell.name, metric] = (
                            statistics.fmean(one[metric] for one in got[0]),
                            statistics.fmean(one[metric] for one in got[1]),
                        )
        return means


def _in_turns(shape: Shape, cell: Cell) -> bool:
    """Returns False if a measurement starts the system, or has turns of its own."""
    return shape.MANAGED and getattr(cell, "kind", "peak") == "peak" and not isinstance(cell, GrowthCell)


def _longer(cell: Cell) -> Cell:
    if isinstance(cell, ThroughputCell):
        return replace(cell, messages=_CLIENT_RECORDS)
    if isinstance(cell, FootprintCell):
        records = 2 * _CLIENT_RECORDS
        return replace(cell, name=f"{records:,} records", records=records)
    return cell


def main() -> int:
    given = _arguments()
    end_on_signals()
    os.environ["PYTHONHASHSEED"] = "0"
    before = given.before.resolve()  # the brokers run in folders of their own
    if before.is_dir():
        before /= BROKER_COMMAND.relative_to(VAR.parents[1])
    if not before.exists():
        print(f"compare_commits: {before} does not exist: run bench/install.sh in that clone", file=sys.stderr)
        return 2
    wanted = given.only.split(",")
    if unknown := [name for name in wanted if name not in COMPARED]:
        print(f"compare_commits: no shape {', '.join(unknown)}; there are {', '.join(COMPARED)}", file=sys.stderr)
        return 2
    print(f"before {before}, after {BROKER_COMMAND}; {given.rounds} rounds; {machine()}", flush=True)
    verdicts: list[Verdict] = []
    try:
        with alone():
            for name in wanted:
                systems = [
                    _system(name, given.data.resolve() / f"compared-{at}", command)
                    for at, command in zip(_NAMES, (before, BROKER_COMMAND), strict=True)
                ]
                for system in systems:
                    system.warm_s = _WARM_S
                comparer = Comparer(systems, given.rounds, given.limit, _back_pages, partial(print, flush=True))
                for found in comparer.compare(COMPARED[name], given.cells):
                    verdicts.append(found.verdict(given.limit))
                    print(f"({name}) {found.line(given.limit)}", flush=True)
    except BusyError as error:
        print(error, file=sys.stderr)
        return 2
    worse, left = verdicts.count(Verdict.WORSE), verdicts.count(Verdict.OPEN)
    print(
        f"bench-compare: of {len(verdicts)} metrics {worse} are worse by more than {given.limit:.0%}, {left} are open"
    )
    return 1 if worse else 0


def _back_pages(system: System) -> None:
    folder = system.data_dir.parent
    folder.mkdir(parents=True, exist_ok=True)
    touch(folder, _TOUCHED_MB)


def _system(shape: str, folder: Path, command: Path) -> System:
    if shape == "h":
        return KlammCluster("klamm-cluster", folder, zookeeper=False, command=command)
    return Klamm("klamm", folder, zookeeper=False, command=command)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="compare_commits", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("before", type=Path, help="the other clone, or its `klamm` command")
    parser.add_argument("--only", default="b,c", help=f"letters of shapes, with commas between: {','.join(COMPARED)}")
    parser.add_argument("--cells", default="", help="a pattern of the cells' names, as `consume`")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--data", type=Path, default=SYSTEM_DATA, help="the folder of both brokers' logs")
    parser.add_argument("--limit", type=float, default=LIMIT, help="the share by which a metric may be worse")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
