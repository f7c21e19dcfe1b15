"""Compares what a fetch costs in two commits of Klamm, more finely than `make bench-compare` can.

    make bench-reads BEFORE=../old-clone

Two starts of one commit differ by up to 5 % until they end, so a difference of 1 % needs many starts. Each round starts
the broker of the other clone and that of this tree and fills a topic without transactions on each. Then one connection
reads both in turns, in slices of 0.2 s, one fetch after the other, in each cell: batches of three sizes, read
uncommitted and read committed. Of a cell and a round the ratio after/before is that of the sums of all slices.

Printed is, for the rate and for the broker's CPU time per GB, the median of the rounds' ratios and the 95 % confidence
interval of that median (from the order of the rounds' ratios, without an assumption on how they are spread). A cell is
WORSE if the whole interval is worse by more than `--limit`, `ok` if the whole interval is better than that, and open
otherwise: then more rounds are needed. Exit 1 if one is WORSE.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.reader import Source
from klammbench.drivers.topics import make_topic
from klammbench.harness import BusyError, alone, end_on_signals, machine
from klammbench.paths import BROKER_COMMAND, VAR
from klammbench.process import cpu_seconds
from klammbench.systems.klamm import Klamm

ROUNDS, LIMIT = 30, 0.01
_SLICE_S, _SLICES = 0.2, 5
_BYTES = {"batches of 64 KB": 64_000_000, "batches of 4 KB": 16_000_000, "batches of one record": 2_000_000}
_BATCHES = {"batches of 64 KB": Batch.of_size(65_536), "batches of 4 KB": Batch.of_size(4_096),
            "batches of one record": Batch(1)}  # fmt: skip
_ISOLATIONS = {"read_uncommitted": 0, "read_committed": 1}


@dataclass(slots=True)
class Sum:
    """What the slices of one broker in one cell and round have read and cost."""

    bytes: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def add(self, broker: Klamm, source: Source) -> None:
        pids = broker.pids()
        before = cpu_seconds(pids)
        got = source.read(_SLICE_S, sys.maxsize, again=True)
        self.cpu += cpu_seconds(pids) - before
        self.bytes += got.bytes
        self.seconds += got.seconds

    @property
    def rate(self) -> float:
        return self.bytes / self.seconds

    @property
    def cost(self) -> float:
        return self.cpu / self.bytes


def one_round(brokers: Sequence[Klamm], turn: int) -> dict[tuple[str, str], float]:
    """Starts both brokers (before, after), reads them and returns after/before by cell and metric."""
    ratios: dict[tuple[str, str], float] = {}
    with ExitStack() as stack:
        for broker in brokers:
            broker.wipe()
            stack.callback(broker.wipe)
            stack.callback(broker.stop)
            broker.start()
            for topic, (batches, size) in enumerate(_BYTES.items()):
                make_topic(broker, f"t{topic}", 1)
                load = Load(2, depth=2, warm_s=0, measure_s=20, max_bytes=size)
                drive(broker.bootstrap, f"t{topic}", 1, _BATCHES[batches], load)
        for topic, batches in enumerate(_BYTES):
            for isolation, level in _ISOLATIONS.items():
                sources = [Source(broker.bootstrap, f"t{topic}", level) for broker in brokers]
                for source in sources:
                    stack.callback(source.close)
                    source.read(_SLICE_S, sys.maxsize, again=True)
                sums = [Sum(), Sum()]
                for step in range(2 * _SLICES):
                    at = (step // 2 + step + turn) % 2  # 0 1 1 0 0 1 1 0 ...: neither is always the second
                    sums[at].add(brokers[at], sources[at])
                cell = f"{batches}, {isolation}"
                ratios[cell, "rate"] = sums[1].rate / sums[0].rate
                ratios[cell, "broker CPU per GB"] = sums[1].cost / sums[0].cost
    return ratios


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the bounds of the median with a confidence of at least 95 %: order statistics by the binomial
    distribution. With fewer than 6 values no bounds are that sure: (-inf, inf).
    """
    ordered, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    while (outside := outside + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else (-math.inf, math.inf)


def verdict(metric: str, low: float, high: float, limit: float) -> str:
    worst, best = (1 - low, 1 - high) if metric == "rate" else (high - 1, low - 1)
    if best > limit:
        return "WORSE"
    return "ok" if worst <= limit else "open"


def main() -> int:
    parser = argparse.ArgumentParser(prog="compare_reads", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("before", type=Path, help="the other clone, in which bench/install.sh was run")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--limit", type=float, default=LIMIT, help="the share by which a cell may be worse")
    parser.add_argument("--data", type=Path, default=Path("/dev/shm/compared-reads"), help="the folder of both logs")
    given = parser.parse_args()
    end_on_signals()
    os.environ["PYTHONHASHSEED"] = "0"
    command = given.before / BROKER_COMMAND.relative_to(VAR.parents[1])
    if not command.exists():
        print(f"compare_reads: {command} does not exist: run bench/install.sh in that clone", file=sys.stderr)
        return 2
    brokers = [
        Klamm("klamm", given.data / name, zookeeper=False, command=one)
        for name, one in (("before", command), ("after", BROKER_COMMAND))
    ]
    print(f"before {command}, after {BROKER_COMMAND}; {given.rounds} rounds; {machine()}", flush=True)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    try:
        with alone():
            for turn in range(given.rounds):
                for key, ratio in one_round(brokers, turn).items():
                    found[key].append(ratio)
                print(f"round {turn + 1} of {given.rounds} done", flush=True)
    except BusyError as error:
        print(error, file=sys.stderr)
        return 2
    verdicts = []
    for (cell, metric), ratios in found.items():
        low, high = interval(ratios)
        verdicts.append(verdict(metric, low, high, given.limit))
        print(f"{cell}: {metric}: after/before {statistics.median(ratios):.4f} (95 %: {low:.4f} to {high:.4f}) "
              f"{verdicts[-1]}")  # fmt: skip
    print(f"bench-reads: {verdicts.count('WORSE')} worse by more than {given.limit:.1%}, {verdicts.count('open')} open")
    return 1 if "WORSE" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
