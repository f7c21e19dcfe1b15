"""Measures how long a client waits when the leader of its partition ends: `python bench/fail_over.py --help`.

Three brokers with replication factor 3 and min.insync.replicas 2, of Klamm or of Apache Kafka (both as
`bench/install.sh` installs them). In each round the leader is killed, stopped or paused in mid-stream and brought back;
`--partitions` more are led by the same brokers meanwhile.
`klammbench/drivers/stream.py` says what is measured; `make bench ONLY=h` measures both systems in one run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "bench")]

from klammbench.drivers.stream import How, end_leaders, median, p99  # noqa: E402
from klammbench.drivers.topics import make_topic  # noqa: E402
from klammbench.harness import end_on_signals  # noqa: E402
from klammbench.paths import BROKER_COMMAND  # noqa: E402
from klammbench.shapes.cluster import leaders  # noqa: E402
from klammbench.systems.base import Cluster  # noqa: E402
from klammbench.systems.clusters import KlammCluster, kafka_cluster  # noqa: E402


def run(cluster: Cluster, how: How, rounds: int, every_s: float) -> int:
    found = end_leaders(cluster, how, rounds, every_s, lambda line: print(line, flush=True))
    for what, gaps in (("acknowledgements", found.acknowledgements), ("records", found.records)):
        print(f"{what}: p50 {median(gaps) * 1000:.0f} ms, p99 {p99(gaps) * 1000:.0f} ms of {len(gaps)} leaders")
    print(f"{found.acknowledged} acknowledged, {found.read} read, {len(found.failed)} failed "
          f"{found.failed[:3] if found.failed else ''}".rstrip())  # fmt: skip
    for problem in found.problems:
        print(problem)
    return 1 if found.problems or found.failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--system", choices=("klamm", "klamm-embedded", "kafka"), default="klamm")
    parser.add_argument(
        "--how", choices=("kill", "stop", "pause"), default="kill", help="SIGKILL, a controlled shutdown, or SIGSTOP"
    )
    parser.add_argument("--partitions", type=int, default=0, help="that lie idle on the same brokers (default 0)")
    parser.add_argument("--rounds", type=int, default=20, help="leaders (default 20)")
    parser.add_argument("--every", type=float, default=5.0, help="milliseconds between two records (default 5)")
    parser.add_argument(
        "--command", type=Path, default=BROKER_COMMAND, help="the `klamm` command (default %(default)s)"
    )
    arguments = parser.parse_args()
    end_on_signals()
    with tempfile.TemporaryDirectory(prefix="klamm-fail-over-") as name:
        folder = Path(name)
        cluster: Cluster
        if arguments.system == "kafka":
            cluster = kafka_cluster(folder)
        else:
            zookeeper = arguments.system == "klamm"
            cluster = KlammCluster(arguments.system, folder, zookeeper=zookeeper, command=arguments.command)
        try:
            cluster.start()
            if arguments.partitions:
                make_topic(cluster, "beside", arguments.partitions, replicas=len(cluster.brokers))
                leaders(cluster, "beside", arguments.partitions)
            return run(cluster, arguments.how, arguments.rounds, arguments.every / 1000)
        finally:
            cluster.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
