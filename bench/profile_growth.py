"""Measures shape (g) on a small scale: CPU of a 64 KB batch at a fixed rate, by thread, cells in turn.

    python bench/profile_growth.py [--cells 1:1,1:2000,100:0] [--rounds 5] [--seconds 2] [--rate 500] [--touch 0]

A cell is PARTITIONS:MEGABYTES, where MEGABYTES are in its topic beforehand. All topics are filled first and written to
the disk, so that the cells differ only in these numbers; each round measures all of them, every other round in reverse.
Prints for each cell the median (minimum to maximum) of CPU µs per batch, the kernel's share, and the threads that used
them.

`--touch MB` writes and removes a file before each measurement: on a virtual machine that returns its free pages to the
host, a page that is new to the guest costs several times the copy into it, and which cell gets one is chance.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.topics import make_topic
from klammbench.shapes.growth import touch
from klammbench.systems.klamm import Klamm

_BATCH = Batch.of_size(65_536)
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def threads(pid: int) -> dict[str, float]:
    """Returns CPU seconds so far, by the thread's name and id."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            found[f"{name}-{task.name}"] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
    return found


def system_share(pid: int) -> tuple[float, float]:
    """Returns the user and system seconds of the process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) * _TICK_S, int(fields[12]) * _TICK_S


def fill(bootstrap: str, topic: str, partitions: int, size: float) -> None:
    done = 0
    while done < size:
        load = Load(1, depth=4, warm_s=0, measure_s=30, max_bytes=min(1e9, size - done))
        done += drive(bootstrap, topic, partitions, _BATCH, load).all_bytes


class Cell:
    def __init__(self, number: int, text: str) -> None:
        partitions, megabytes = text.split(":")
        self.name = f"{partitions} partitions, {megabytes} MB"
        self.partitions, self.bytes = int(partitions), max(float(megabytes) * 1e6, int(partitions) * 66_000)
        self.topic = f"cell-{number}-{partitions}-{megabytes}"
        self.cpu: list[float] = []
        self.user: list[float] = []
        self.system: list[float] = []
        self.threads: Counter[str] = Counter()
        self.requests = 0

    def measure(self, bootstrap: str, pid: int, options: argparse.Namespace) -> None:
        before, (user, system) = threads(pid), system_share(pid)
        load = Load(2, warm_s=0, measure_s=options.seconds, rate=options.rate)
        got = drive(bootstrap, self.topic, self.partitions, _BATCH, load)
        after, (user_after, system_after) = threads(pid), system_share(pid)
        used = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
        self.cpu.append(sum(used.values()) / got.requests * 1e6)
        self.user.append((user_after - user) / got.requests * 1e6)
        self.system.append((system_after - system) / got.requests * 1e6)
        self.threads.update(used)
        self.requests += got.requests

    def line(self) -> str:
        low, middle, high = min(self.cpu), statistics.median(self.cpu), max(self.cpu)
        by_thread = ", ".join(
            f"{name.rpartition('-')[0]} {seconds / self.requests * 1e6:.1f}"
            for name, seconds in self.threads.most_common(4)
        )
        split = f"user {statistics.median(self.user):.0f}, kernel {statistics.median(self.system):.0f}"
        return f"{self.name:>24}: {middle:6.1f} us ({low:.1f} to {high:.1f}); {split}; threads: {by_thread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="1:1,1:2000,100:0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--touch", type=int, default=0)
    options = parser.parse_args()
    cells = [Cell(number, text) for number, text in enumerate(options.cells.split(","))]
    with tempfile.TemporaryDirectory() as folder:
        broker = Klamm("klamm-embedded", Path(folder), zookeeper=False)
        broker.start()
        try:
            for cell in cells:
                make_topic(broker, cell.topic, cell.partitions)
                fill(broker.bootstrap, cell.topic, cell.partitions, cell.bytes)
            os.sync()
            pid = broker.pids()[0]
            for number in range(options.rounds):
                for cell in cells if number % 2 == 0 else cells[::-1]:  # so that a drift affects all cells alike
                    touch(Path(folder), options.touch)
                    cell.measure(broker.bootstrap, pid, options)
        finally:
            broker.stop()
    for cell in cells:
        print(cell.line())


if __name__ == "__main__":
    main()
