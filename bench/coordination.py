"""Compares the coordinations: what a write, a change of 500 partitions and 2,000 reads cost.

    python bench/coordination.py [--rounds 5] [--writes 200]

Each is measured in turns, with one client and a server of its own on this machine. Prints a table in Markdown: the
least and the median over the rounds of the median in a round, in ms. `ensemble` is three ZooKeeper servers.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from klamm.core.interfaces.coordination import Check, Coordination, Create, Set
from klamm.core.plugins import plugin_host
from klamm.plugins.coordination.etcd.server import EtcdServer
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammtest.zookeeper_ensemble import ZooKeeperEnsemble

PARTITIONS = 500
READS = 2000
STATE = b"s" * 300
CHANGE = b"c" * 150_000
"""The entry of a change: all new states."""


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def opened(folder: Path) -> Iterator[dict[str, Coordination]]:
    """Starts each server and yields a coordination on it, by name."""
    with ExitStack() as running:
        zookeeper = running.enter_context(ZooKeeperServer(folder / "zookeeper", unused_port()))
        ensemble = running.enter_context(ZooKeeperEnsemble(folder / "ensemble"))
        etcd = running.enter_context(EtcdServer(folder / "etcd", unused_port()))
        of = {
            "embedded": ("embedded", {"path": str(folder / "tree.db")}),
            "zookeeper": (
                "zookeeper",
                {"zookeeper.connect": zookeeper.connect, "zookeeper.session.timeout.ms": 60_000},
            ),
            "ensemble": ("zookeeper", {"zookeeper.connect": ensemble.connect, "zookeeper.session.timeout.ms": 60_000}),
            "etcd": ("etcd", {"etcd.endpoints": etcd.url, "etcd.session.timeout.ms": 60_000}),
        }
        made = {}
        for name, (plugin, keys) in of.items():
            made[name] = plugin_host().coordinations.create(plugin, keys)
            made[name].start()
            running.callback(made[name].close)
        yield made


class Tree:
    """What is measured, on one coordination."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._version = 0
        self._states = [f"/topics/t/partitions/{number}/state" for number in range(PARTITIONS)]
        self._paths = [f"/many/{number}" for number in range(READS)]
        for path in ("/guard", "/one", "/change", "/topics/t/partitions", "/many"):
            coordination.create(path, make_parents=True)
        coordination.transaction([Create(state.rpartition("/")[0]) for state in self._states])
        coordination.transaction([Create(state, STATE) for state in self._states])
        for first in range(0, READS, 500):
            coordination.transaction([Create(path, STATE) for path in self._paths[first : first + 500]])
        self._seen = threading.Event()
        coordination.watch("/one", self._seen.set)

    def write(self) -> None:
        self._coordination.set("/one", STATE)

    def guarded_write(self) -> None:
        """As a leader changes one ISR."""
        self._coordination.transaction([Check("/guard", 0), Set("/one", STATE), Set("/topics/t/partitions/0", b"")])

    def change(self) -> None:
        """As the controller changes 500 partitions."""
        sets = [Set(state, STATE, self._version) for state in self._states]
        self._coordination.transaction([Check("/guard", 0), *sets, Set("/change", CHANGE, self._version)])
        self._version += 1

    def read_many(self) -> None:
        assert None not in self._coordination.get_many(self._paths)

    def read(self) -> None:
        self._coordination.get("/one")

    def watched_write(self) -> None:
        self._seen.clear()
        self._coordination.set("/one", STATE)
        self._seen.wait(60)


def median_ms(measured: Callable[[], None], times: int) -> float:
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        measured()
        took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took)


def _cell(rounds: list[float]) -> str:
    return f"{min(rounds):.3g}, {statistics.median(rounds):.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--writes", type=int, default=200, help="writes and single reads of a round")
    options = parser.parse_args()
    few = max(1, options.writes // 40)
    shapes: dict[str, tuple[Callable[[Tree], Callable[[], None]], int]] = {
        "a write of 300 bytes": (lambda tree: tree.write, options.writes),
        "the same until its watch fires": (lambda tree: tree.watched_write, options.writes),
        "a guarded transaction of 3 operations": (lambda tree: tree.guarded_write, options.writes),
        f"a change of {PARTITIONS} partitions": (lambda tree: tree.change, few),
        "one read": (lambda tree: tree.read, options.writes),
        f"{READS:,} reads by `get_many`": (lambda tree: tree.read_many, few),
    }
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as coordinations:
        trees = {name: Tree(coordination) for name, coordination in coordinations.items()}
        found: dict[tuple[str, str], list[float]] = {(shape, name): [] for shape in shapes for name in trees}
        for _ in range(options.rounds):
            for shape, (of, times) in shapes.items():
                for name, tree in trees.items():
                    found[shape, name].append(median_ms(of(tree), times))
    load = os.getloadavg()[0]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores ({platform.machine()}), load {load:.1f}\n")
    print(f"| ms, least and median of {options.rounds} rounds | {' | '.join(trees)} |")
    print("|---|" + "---:|" * len(trees))
    for shape in shapes:
        print(f"| {shape} | " + " | ".join(_cell(found[shape, name]) for name in trees) + " |")


if __name__ == "__main__":
    main()
