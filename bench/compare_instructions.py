"""Compares two commits of Klamm by the instructions that their brokers execute, where time does not decide.

`make bench-instructions BEFORE=../old-clone` runs the broker of another clone and then that of this tree under
valgrind's callgrind, both made by their `bench/install.sh`, and counts what a unit of each cell costs. On a machine
whose host takes the cores away, the CPU time of one tree differs by 10 to 30 % from round to round; its instructions
hardly differ. They are the program's own: the kernel's, caches and waiting are not in them, so that this stands beside
`make bench-compare`, not in its place.

A broker under callgrind is about 50 times slower, its timers are not. What it executes while idle is measured, and
taken off each cell by the cell's length; what is left of time's part only adds, so that of several repeats of a cell
the least counts. Printed are the medians, and each round's ratios after/before. Both hash with the same seed and use
the embedded coordination.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from compare_commits import other_broker
from klammbench.drivers import confluent
from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.topics import make_topic
from klammbench.harness import BusyError, alone, end_on_signals, machine
from klammbench.paths import BROKER_COMMAND, SYSTEM_DATA
from klammbench.systems.klamm import Klamm

_PARTITIONS = 12
_IDLE_S = 20.0
_NAMES = ("before", "after")
IDLE, START = "idle, per second", "start, until ready"


@dataclass(slots=True)
class Counter:
    """The instructions of a process that callgrind runs; `outputs` is its --callgrind-out-file."""

    outputs: Path
    pid: int = 0
    _seen: set[Path] = field(default_factory=set)

    def command(self, command: Path) -> Path:
        """Returns a program that runs `command` under callgrind, in the same process id."""
        made = self.outputs.with_name(f"run-{self.outputs.name}")
        made.parent.mkdir(parents=True, exist_ok=True)
        callgrind = f"valgrind -q --tool=callgrind --callgrind-out-file={self.outputs}"
        made.write_text(f'#!/bin/sh\nexec {callgrind} {command.with_name("python")} {command} "$@"\n')
        made.chmod(0o755)
        return made

    def taken(self) -> int:
        """Returns the instructions since the last call, or since the start, of all threads."""
        subprocess.run(
            ["callgrind_control", "--dump", str(self.pid)], check=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        new = set(self.outputs.parent.glob(f"{self.outputs.name}.*")) - self._seen
        self._seen |= new
        found = [int(line.split()[1]) for one in new for line in one.read_text().splitlines() if line[:7] == "totals:"]
        if not found:
            raise RuntimeError(f"callgrind wrote no counts for process {self.pid} into {self.outputs.parent}")
        return sum(found)


@dataclass(frozen=True, slots=True)
class Cell:
    """`work(bootstrap, topic)` returns how many `unit`s it has done."""

    name: str
    unit: str
    work: Callable[[str, str], float]
    config: Mapping[str, str] = field(default_factory=dict)


def _raw(bootstrap: str, topic: str, *, batch: Batch, load: Load) -> float:
    got = drive(bootstrap, topic, _PARTITIONS, batch, load)
    return got.requests * got.all_bytes / got.bytes


def _client(bootstrap: str, topic: str, *, records: int) -> float:
    confluent.run(confluent.Task("produce", bootstrap, topic, _PARTITIONS, messages=records))
    confluent.run(confluent.Task("consume", bootstrap, topic, _PARTITIONS))
    return records / 1000


def cells(seconds: float, records: int) -> Sequence[Cell]:
    def requests(connections: int) -> Cell:
        name = "1 connection" if connections == 1 else f"{connections} connections"
        return Cell(
            f"{name}, one message", "request",
            partial(_raw, batch=Batch(1), load=Load(connections, warm_s=0, measure_s=seconds)),
        )  # fmt: skip

    def batches(name: str, batch: Batch, config: Mapping[str, str] | None = None) -> Cell:
        load = Load(4, depth=5, warm_s=0, measure_s=seconds)
        return Cell(name, "batch", partial(_raw, batch=batch, load=load), config or {})

    return [
        requests(1),
        requests(8),
        requests(64),
        batches("batches of 64 KB", Batch.of_size(65_536)),
        batches("1 KB messages", Batch.of_size(65_536, 1000)),
        batches("batches of 1 MB", Batch.of_size(1_000_000)),
        batches("zstd", Batch.of_size(65_536, codec="zstd")),
        batches("zstd, verified", Batch.of_size(65_536, codec="zstd"), {"verify.payload": "all"}),
        Cell("a producing and a consuming client", "1,000 records", partial(_client, records=records)),
    ]


@contextmanager
def running(name: str, folder: Path, command: Path) -> Iterator[tuple[Klamm, Counter]]:
    """Runs a broker under callgrind, from no data; its data are removed at the end."""
    counter = Counter(folder / "counts" / name)
    system = Klamm(name, folder / name, zookeeper=False, command=counter.command(command))
    system.wipe()
    try:
        system.start()
        counter.pid = system.pids()[0]
        yield system, counter
    finally:
        system.stop()
        system.wipe()
        for old in counter.outputs.parent.glob(f"{counter.outputs.name}*"):
            old.unlink()


def measure(
    system: Klamm, counter: Counter, wanted: Sequence[Cell], repeats: int, say: Callable[[str], None]
) -> Mapping[str, float]:
    """Returns the instructions of each cell's unit, and those of `START` and `IDLE`."""
    found = {START: float(counter.taken())}
    for cell in wanted:
        make_topic(system, _topic(cell), _PARTITIONS, cell.config)
        cell.work(system.bootstrap, _topic(cell))  # what is imported and allocated at the first one is done
    counter.taken()
    begin = time.monotonic()
    time.sleep(_IDLE_S)
    found[IDLE] = counter.taken() / (time.monotonic() - begin)
    for cell in wanted:
        costs: list[float] = []
        for _ in range(repeats):
            counter.taken()
            begin = time.monotonic()
            units = cell.work(system.bootstrap, _topic(cell))
            costs.append((counter.taken() - found[IDLE] * (time.monotonic() - begin)) / units)
        found[cell.name] = min(costs)
        each = ", ".join(f"{cost:,.0f}" for cost in costs)
        say(f"  {system.name}: {cell.name}: {each} instructions for each {cell.unit}")
    return found


def _topic(cell: Cell) -> str:
    return re.sub(r"[^a-z0-9]+", "-", cell.name.lower())


def main() -> int:
    given = _arguments()
    end_on_signals()
    os.environ["PYTHONHASHSEED"] = "0"
    before = other_broker(given.before)
    wanted = [cell for cell in cells(given.seconds, given.records) if re.search(given.cells, cell.name)]
    print(f"before {before}, after {BROKER_COMMAND}; {given.rounds} rounds; {machine()}", flush=True)
    say = partial(print, flush=True)
    rounds: list[tuple[Mapping[str, float], Mapping[str, float]]] = []
    try:
        with alone():
            for number in range(given.rounds):
                found: list[Mapping[str, float]] = []
                for name, command in zip(_NAMES, (before, BROKER_COMMAND), strict=True):
                    with running(name, given.data.resolve(), command) as (system, counter):
                        found.append(measure(system, counter, wanted, given.repeats, say))
                rounds.append((found[0], found[1]))
                say(f"round {number + 1} of {given.rounds} done")
    except BusyError as error:
        print(error, file=sys.stderr)
        return 2
    worse = 0
    for name in rounds[0][0]:
        ratios = sorted(new[name] / old[name] for old, new in rounds)
        median = statistics.median(ratios)
        worse += median > 1 + given.limit
        each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        old, new = (statistics.median(one[at][name] for one in rounds) for at in (0, 1))
        print(f"{name}: {old:,.0f} -> {new:,.0f}, after/before {median:.3f} ({each})")
    print(f"bench-instructions: {worse} of {len(rounds[0][0])} medians are worse by more than {given.limit:.0%}")
    return 1 if worse else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="compare_instructions", description=__doc__.partition("\n")[0] if __doc__ else None
    )
    parser.add_argument("before", type=Path, help="the other clone")
    parser.add_argument("--cells", default="", help="a pattern of the cells' names")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5, help="of each cell in a round; the least counts")
    parser.add_argument("--seconds", type=float, default=4.0, help="the length of a repeat")
    parser.add_argument("--records", type=int, default=200_000, help="what a client produces and consumes in a repeat")
    parser.add_argument("--data", type=Path, default=SYSTEM_DATA / "instructions", help="the folder of both's logs")
    parser.add_argument("--limit", type=float, default=0.03, help="the share by which a cell may be worse")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
