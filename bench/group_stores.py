"""What a classic group costs with each offset store, and what a restart of its coordinator costs its members:
`python bench/group_stores.py --help`.

In each round and with each store a broker starts without data, with the embedded coordination. A member of a group
joins and syncs again and again, each time in a new generation; then it commits. The broker is killed and started again,
and the member's heartbeat shows whether it is still a member, or has to join again. The stores take turns, so that
another load of the machine meets both. CPU time is the broker's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "bench")]

from klamm.core.errors import ErrorCode  # noqa: E402
from klammbench.process import cpu_seconds  # noqa: E402
from klammtest.broker import KLAMM, RunningBroker, running_broker  # noqa: E402
from klammtest.clients.grouping import commit, heartbeat, join, joined, once_loaded, sync  # noqa: E402
from klammtest.wire import WireClient  # noqa: E402

_GROUP = "measured"
_STORES = ("coordination", "topic")


def rebalances(broker: RunningBroker, count: int) -> tuple[Any, list[float], float]:
    """Returns the member of the last generation, the milliseconds of each JoinGroup with its SyncGroup, and the
    broker's CPU milliseconds for one."""
    with WireClient(broker.bootstrap) as wire:
        member = joined(wire, _GROUP)
        sync(wire, _GROUP, member)
        times, before = [], cpu_seconds([broker.pid])
        for _ in range(count):
            begin = time.perf_counter()
            member = join(wire, _GROUP, member_id=member.member_id)
            assert sync(wire, _GROUP, member).error_code is ErrorCode.none
            times.append((time.perf_counter() - begin) * 1000)
        return member, times, (cpu_seconds([broker.pid]) - before) * 1000 / count


def commits(broker: RunningBroker, member: Any, count: int) -> tuple[list[float], float]:
    """Returns the milliseconds of each commit of one partition, and the broker's CPU milliseconds for one."""
    with WireClient(broker.bootstrap) as wire:
        times, before = [], cpu_seconds([broker.pid])
        for offset in range(count):
            begin = time.perf_counter()
            assert set(commit(wire, _GROUP, {("t", 0): offset}, member).values()) == {ErrorCode.none}
            times.append((time.perf_counter() - begin) * 1000)
        return times, (cpu_seconds([broker.pid]) - before) * 1000 / count


def one_round(store: str, command: str, count: int) -> dict[str, list[float]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_broker(
            Path(folder), topics={"t": {"partitions": 1}}, offsets={"plugin": store}, command=command
        ) as broker,
    ):  # fmt: skip
        member, joins, join_cpu = rebalances(broker, count)
        taken, commit_cpu = commits(broker, member, count)
        broker.kill()
        broker.start()
        with WireClient(broker.bootstrap) as wire:
            known = once_loaded(lambda: heartbeat(wire, _GROUP, member))
        return {
            "rebalance ms": joins,
            "rebalance CPU ms": [join_cpu],
            "commit ms": taken,
            "commit CPU ms": [commit_cpu],
            "still a member": [float(known is ErrorCode.none)],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=200, help="rebalances, and commits, of one round")
    parser.add_argument("--klamm", default=KLAMM, help="the command, of this tree or another")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(options.rounds):
        for store in _STORES:
            for name, values in one_round(store, options.klamm, options.count).items():
                found[store, name] += values
    print(f"{'store':<13} {'what':<17} {'p50':>8} {'p99':>8}")
    for (store, name), values in sorted(found.items()):
        ordered = sorted(values)
        print(f"{store:<13} {name:<17} {statistics.median(values):8.2f} {ordered[len(ordered) * 99 // 100]:8.2f}")


if __name__ == "__main__":
    main()
