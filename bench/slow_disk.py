"""Measures what others wait while a disk holds writers up: `python bench/slow_disk.py [--delay 50] [--seconds 10]`.

A broker whose writes to segments take `--delay` ms (a preloaded library, `klammtest.replicated.disk`). Four producers
send batches of 64 KB, each to a partition of its own; meanwhile another connection asks for ApiVersions every 5 ms.
Prints how long it waited, and how many batches were stored. `--command` is another broker's `klamm`; `--brokers 3` has
two followers with such a disk, and acks=all.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "bench")]

from klamm import Producer  # noqa: E402
from klammbench.paths import BROKER_COMMAND  # noqa: E402
from klammtest.broker import RunningBroker  # noqa: E402
from klammtest.replicated.cluster import running_cluster  # noqa: E402
from klammtest.replicated.disk import Disk, build  # noqa: E402

PARTITIONS = 4
EVERY_S = 0.005
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


class Load(threading.Thread):
    """Sends one batch after the other to a partition."""

    def __init__(self, bootstrap: str, partition: int, acks: str) -> None:
        super().__init__(daemon=True)
        self.stored = 0
        self._partition = partition
        self._producer = Producer({"producer": {"bootstrap.servers": bootstrap, "acks": acks, "linger.ms": 0}})
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.is_set():
            self._producer.send("slow", os.urandom(65_000), partition=self._partition).result(60)
            self.stored += 1

    def end(self) -> None:
        self._ends.set()
        self.join()
        self._producer.close()


def waits(broker: RunningBroker, seconds: float) -> list[float]:
    """Returns the seconds of each answer, counted from when the request was due, the shortest first."""
    found = []
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        begun = time.monotonic()
        for number in range(int(seconds / EVERY_S)):
            due = begun + number * EVERY_S
            if time.monotonic() - begun > seconds:
                break  # the answers take longer than the time between two requests
            time.sleep(max(due - time.monotonic(), 0))
            connection.sendall(API_VERSIONS)
            stream.read(struct.unpack(">i", stream.read(4))[0])
            found.append(time.monotonic() - due)
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--delay", type=int, default=50, help="ms that a write takes (default 50)")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long it is measured (default 10)")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1, help="and replicas (default 1)")
    parser.add_argument(
        "--command", type=Path, default=BROKER_COMMAND, help="the `klamm` command (default %(default)s)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="klamm-slow-disk-") as name:
        folder = Path(name)
        library, own = build(folder), range(given.brokers)
        disks = [Disk(library, folder / f"disk-{i}", folder / f"data-{i}") for i in own]
        with running_cluster(
            folder,
            {"plugin": "embedded", "path": str(folder / "coordination.db")},
            size=given.brokers,
            environments={i: disks[i].environment for i in own},
            disks={i: disks[i].under for i in own},
            command=str(given.command.absolute()),
        ) as cluster:
            if given.brokers == 1:
                cluster.brokers[0].create_topics({"slow": {"partitions": PARTITIONS}})
            else:
                cluster.create_topic("slow", PARTITIONS)
            acks = "all" if given.brokers > 1 else "1"
            loads = [Load(cluster.bootstrap, partition, acks) for partition in range(PARTITIONS)]
            for load in loads:
                load.start()
            time.sleep(1)
            for disk in disks:
                disk.control(write_delay_ms=given.delay)
            time.sleep(1)
            before = sum(load.stored for load in loads)
            begun = time.monotonic()
            found = waits(cluster.brokers[0], given.seconds)
            stored = (sum(load.stored for load in loads) - before) / (time.monotonic() - begun)
            for disk in disks:
                disk.control()
            for load in loads:
                load.end()
    at = {share: found[min(int(share * len(found)), len(found) - 1)] * 1000 for share in (0.5, 0.99, 0.999)}
    print(
        f"others waited: p50 {at[0.5]:.1f} ms, p99 {at[0.99]:.1f} ms, p99.9 {at[0.999]:.1f} ms, "
        f"longest {found[-1] * 1000:.1f} ms; {stored:.0f} batches/s stored"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
