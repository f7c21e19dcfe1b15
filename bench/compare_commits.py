"""Compares two commits of Klamm on the cells of `make bench`, in alternation: is the newer one slower?

`make bench-compare BEFORE=../old-clone` runs the broker of this tree and that of another clone, both made by their
`bench/install.sh`. It prints one line for each metric of each cell: the medians and, of the ratios after/before within
each round, the median and the range. Two runs of `make bench` differ by more than a few per cent on a busy machine;
ratios within one round do not. A metric counts as worse if its median is worse by more than `--limit`; the command then
exits with 1.

Both use the embedded coordination. Clients are those of this tree, so shapes that measure clients are left out. Of (h),
three brokers of each tree, only the peaks and the costs of a follower are compared.

The clients of (b) and (f) send more records than in `make bench`, so that what a start costs counts for less. A disk
that holds up one of the two for 100 ms decides the tail of (d): `DATA=/dev/shm/compared` keeps the logs in memory, so
that only the brokers are compared. Both hash with the same seed, and before each measurement a file is written and
removed, so that neither pays for pages that the host of a virtual machine has taken back.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from klammbench.harness import BusyError, alone, end_on_signals, machine
from klammbench.metric import Metric
from klammbench.paths import BROKER_COMMAND, SYSTEM_DATA, VAR
from klammbench.shapes import SHAPES
from klammbench.shapes.base import Cell, Shape
from klammbench.shapes.footprint import FootprintCell
from klammbench.shapes.growth import touch
from klammbench.shapes.throughput import ThroughputCell
from klammbench.systems.base import System
from klammbench.systems.clusters import KlammCluster
from klammbench.systems.klamm import Klamm

COMPARED = ("b", "c", "d", "f", "g", "h")
"""The shapes that measure only brokers."""
_KINDS = ("peak", "follower")
"""Of a shape whose cells have kinds, those that are compared."""
_CLIENT_RECORDS = 2_000_000
"""What a client produces or consumes in a cell of (b) and (f): about 0.3 s of the broker's CPU time."""
_TOUCHED_MB = 1000
"""About what a measurement writes."""
ROUNDS = 6
LIMIT = 0.03


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

    def worse_by(self) -> float:
        """Returns the share by which the median ratio is worse: below 0 if it is better, 0 without a ratio."""
        if not self.ratios:
            return 0.0
        ratio = statistics.median(self.ratios)
        return 1 - ratio if self.metric.better == "higher" else ratio - 1

    def line(self, limit: float) -> str:
        unit, digits = self.metric.unit, self.metric.digits
        old, new = statistics.median(self.before), statistics.median(self.after)
        ratio = "no ratio"
        if ratios := self.ratios:
            ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        verdict = "WORSE" if self.worse_by() > limit else "ok"
        return f"{self.cell}: {unit}: {old:,.{digits}f} -> {new:,.{digits}f}, after/before {ratio} {verdict}"


def compare(
    shape: Shape,
    systems: Sequence[System],
    rounds: int,
    prepare: Callable[[System], None],
    say: Callable[[str], None],
    pattern: str = "",
) -> list[Comparison]:
    """Runs the shape's cells, those in whose name `pattern` is found, on both `systems` (before, after); their order
    alternates from round to round. Each round starts both anew: of two starts of one commit the one is often 5 %
    slower than the other until it ends. `prepare` is called before each measurement. A round that fails is left out and
    `say` gets a line about it; raises `RuntimeError` if all fail."""
    cells = [
        _longer(cell)
        for cell in shape.cells(True)
        if getattr(cell, "kind", _KINDS[0]) in _KINDS and re.search(pattern, cell.name)
    ]
    values: dict[tuple[str, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    number = 0
    for turn in range(rounds):
        found: dict[str, dict[int, Mapping[str, float]]] = {cell.name: {} for cell in cells}
        try:
            with ExitStack() as stack:
                for system in systems:
                    system.wipe()
                    stack.callback(system.wipe)
                    if shape.MANAGED:
                        stack.callback(system.stop)
                        system.start()
                        shape.warm(system)
                for cell in cells:
                    for place in (0, 1) if turn % 2 == 0 else (1, 0):
                        number += 1
                        prepare(systems[place])
                        found[cell.name][place] = shape.run(cell, systems[place], number)
        except RuntimeError as error:  # the other rounds count
            say(f"({shape.NAME}) round {turn + 1} of {rounds} FAILED: {error}")
            continue
        for cell in cells:
            _keep(shape, cell, found[cell.name], values)
        say(f"({shape.NAME}) round {turn + 1} of {rounds} done")
    if cells and not values:
        raise RuntimeError(f"({shape.NAME}) each of {rounds} rounds has failed")
    return [
        Comparison(name, shape.METRICS[metric], before, after) for (name, metric), (before, after) in values.items()
    ]


def _longer(cell: Cell) -> Cell:
    if isinstance(cell, ThroughputCell):
        return replace(cell, messages=_CLIENT_RECORDS)
    if isinstance(cell, FootprintCell):
        return replace(cell, name=f"{_CLIENT_RECORDS:,} records", records=_CLIENT_RECORDS)
    return cell


def _keep(
    shape: Shape,
    cell: Cell,
    got: Mapping[int, Mapping[str, float]],
    values: Mapping[tuple[str, str], tuple[list[float], list[float]]],
) -> None:
    for metric, described in shape.METRICS.items():
        if described.better is not None and metric in got[0] and metric in got[1]:
            for place in (0, 1):
                values[cell.name, metric][place].append(got[place][metric])


def main() -> int:
    given = _arguments()
    end_on_signals()
    os.environ["PYTHONHASHSEED"] = "0"
    before = given.before / BROKER_COMMAND.relative_to(VAR.parents[1]) if given.before.is_dir() else given.before
    if not before.exists():
        print(f"compare_commits: {before} does not exist: run bench/install.sh in that clone", file=sys.stderr)
        return 2
    wanted = given.only.split(",")
    if unknown := [name for name in wanted if name not in COMPARED]:
        print(f"compare_commits: no shape {', '.join(unknown)}; there are {', '.join(COMPARED)}", file=sys.stderr)
        return 2
    print(f"before {before}, after {BROKER_COMMAND}; {given.rounds} rounds; {machine()}", flush=True)
    worse = 0
    try:
        with alone():
            for name in wanted:
                systems = [
                    _system(name, given.data / f"compared-{at}", command)
                    for at, command in (("before", before), ("after", BROKER_COMMAND))
                ]
                compared = compare(
                    SHAPES[name], systems, given.rounds, _back_pages, lambda line: print(line, flush=True), given.cells
                )
                for found in compared:
                    print(f"({name}) {found.line(given.limit)}", flush=True)
                    worse += found.worse_by() > given.limit
    except BusyError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"bench-compare: {worse} metrics worse by more than {given.limit:.0%}")
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
    parser.add_argument("--limit", type=float, default=LIMIT, help="the share by which a median may be worse")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
