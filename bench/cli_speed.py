"""CPU time of commands of `klamm`: `python bench/cli_speed.py [--rounds 15] [LABEL=SRC ...]` prints one row a command.

User and system time of the process and its children, in ms, median (minimum) over the rounds; `python -c pass` beside
it, which no command can be below. Each round runs every command once, so that a busy machine slows all of them alike. A
broker with one topic runs in the background. `LABEL=SRC` compares other trees: SRC is the folder `src` of a clone, of
which this interpreter then runs the package; the first column is this tree.

A second table has the broker of `klamm.testing`, of this tree: the time until it serves its topic, that of a reset, and
the CPU time of both.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from klamm.testing import KlammBroker

SRC = Path(__file__).resolve().parents[1] / "src"
COMMANDS = (
    "--help",
    "--version",
    "topics --help",
    "topics list",
    "topics describe hello",
    "groups list",
    "cluster status",
    "config check",
    "plugins",
)
PASS = "python -c pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", metavar="LABEL=SRC")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    trees = {"this tree": SRC} | {label: Path(src) for label, _, src in (t.partition("=") for t in arguments.trees)}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        klamm("this tree", trees, folder, "init")
        file = folder / "klamm.yaml"
        file.write_text(file.read_text().replace("127.0.0.1:9092", f"127.0.0.1:{free_port()}"))
        klamm("this tree", trees, folder, "broker --background")
        try:
            klamm("this tree", trees, folder, "topics create hello")
            report(list(trees), measure(trees, folder, arguments.rounds))
        finally:
            klamm("this tree", trees, folder, "broker stop")
    report_testing([testing_broker() for _ in range(arguments.rounds + 1)][1:])


def measure(trees: dict[str, Path], folder: Path, rounds: int) -> dict[tuple[str, str], list[float]]:
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds + 1):  # the first one writes `.pyc` files, and does not count
        for label in trees:
            found.setdefault((PASS, label), []).append(cpu_ms([sys.executable, "-c", "pass"], folder, SRC))
            for command in COMMANDS:
                found.setdefault((command, label), []).append(klamm(label, trees, folder, command))
    return {key: times[1:] for key, times in found.items()}


def klamm(label: str, trees: dict[str, Path], folder: Path, command: str) -> float:
    return cpu_ms([sys.executable, "-P", "-m", "klamm", *command.split()], folder, trees[label])


def cpu_ms(command: list[str], folder: Path, src: Path) -> float:
    before = children_ms()
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(src)}, stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}")
    return children_ms() - before


def children_ms() -> float:
    """Returns the CPU time, user and system, of the processes that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (used.ru_utime + used.ru_stime)


def testing_broker() -> tuple[float, float, float]:
    """Returns the ms until a broker serves, of its reset, and of CPU for both."""
    cpu, began = children_ms(), time.monotonic()
    with KlammBroker(topics={"t": 1}) as broker:
        serves = time.monotonic()
        broker.reset()
        done = time.monotonic()
    return 1000 * (serves - began), 1000 * (done - serves), children_ms() - cpu


def report_testing(found: list[tuple[float, float, float]]) -> None:
    print("\n| `KlammBroker`, ms | |\n|---|---|")
    names = "until it serves", "`reset`", "CPU of both"
    for name, times in zip(names, zip(*found, strict=True), strict=True):
        print(f"| {name} | {statistics.median(times):.0f} ({min(times):.0f}) |")


def report(labels: list[str], found: dict[tuple[str, str], list[float]]) -> None:
    print("| command, ms of CPU |", " | ".join(labels), "|")
    print("|---|" + "---|" * len(labels))
    for command in (PASS, *COMMANDS):
        cells = (f"{statistics.median(found[command, at]):.0f} ({min(found[command, at]):.0f})" for at in labels)
        print(f"| `{command}` |", " | ".join(cells), "|")


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
