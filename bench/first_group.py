"""Times the first group of a new broker, and the second: `python bench/first_group.py --help`.

In each round a system starts without data. A topic gets a record, and a consumer of confluent-kafka that subscribes to
it is timed to that record; then a second group does the same. The first group's coordinator makes `__consumer_offsets`.
The CPU time is the system's, in steps of a nanosecond, of threads that live at the end.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "bench")]

from klammbench.drivers.topics import make_topic  # noqa: E402
from klammbench.harness import end_on_signals  # noqa: E402
from klammbench.paths import BROKER_COMMAND  # noqa: E402
from klammbench.process import cpu_seconds, pss_bytes  # noqa: E402
from klammbench.systems.base import System  # noqa: E402
from klammbench.systems.kafka import kafka_default  # noqa: E402
from klammbench.systems.klamm import Klamm  # noqa: E402

_TOPIC = "first"
_PARTITIONS = 12
_PATIENCE_S = 60.0
_SETTLE_S = 0.5


def group_s(system: System, group: str) -> float:
    """Returns the seconds from `subscribe` of a new consumer to its first record."""
    consumer = Consumer(
        {"bootstrap.servers": system.bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 2}
    )
    begin = time.monotonic()
    consumer.subscribe([_TOPIC])
    while time.monotonic() - begin < _PATIENCE_S:
        found = consumer.poll(0.05)
        if found is not None and found.error() is None:
            taken = time.monotonic() - begin
            consumer.close()
            return taken
    raise RuntimeError(f"no record within {_PATIENCE_S:g} s")


def one_round(system: System) -> dict[str, float]:
    begin = time.monotonic()
    system.start()
    found = {"start ms": (time.monotonic() - begin) * 1000}
    try:
        make_topic(system, _TOPIC, _PARTITIONS)
        producer = Producer({"bootstrap.servers": system.bootstrap, "log_level": 2})
        producer.produce(_TOPIC, b"first")
        producer.flush()
        for group in ("first", "second"):
            time.sleep(_SETTLE_S)
            before = cpu_seconds(system.pids())
            found[f"{group} group ms"] = group_s(system, group) * 1000
            time.sleep(_SETTLE_S)
            found[f"{group} group CPU ms"] = (cpu_seconds(system.pids()) - before) * 1000
        found["PSS MB"] = pss_bytes(system.pids()) / 1e6
    finally:
        system.stop()
        system.wipe()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--system", choices=("klamm", "klamm-embedded", "kafka"), default="klamm-embedded")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--command",
        type=Path,
        action="append",
        help="a `klamm` command (default: this tree's); several take turns, as of two commits",
    )
    parser.add_argument(
        "--data", type=Path, help="where the systems keep their logs (default: the temporary directory)"
    )
    arguments = parser.parse_args()
    end_on_signals()
    commands = arguments.command or [BROKER_COMMAND]
    with tempfile.TemporaryDirectory(prefix="klamm-first-group-", dir=arguments.data) as name:
        systems: dict[str, System] = {}
        if arguments.system == "kafka":
            systems["kafka"] = kafka_default(Path(name))
        else:
            zookeeper = arguments.system == "klamm"
            for number, command in enumerate(commands):
                systems[str(command)] = Klamm(
                    arguments.system, Path(name, str(number)), zookeeper=zookeeper, command=command
                )
        rounds: dict[str, list[dict[str, float]]] = {system: [] for system in systems}
        for turn in range(arguments.rounds):
            for system in list(systems)[:: 1 if turn % 2 else -1]:
                rounds[system].append(one_round(systems[system]))
    for system, found in rounds.items():
        print(f"{system}: median (longest) of {len(found)} rounds")
        for what in found[0]:
            values = [one[what] for one in found]
            print(f"  {what} {statistics.median(values):,.0f} ({max(values):,.0f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
