"""Moves a running producer and a running consumer from Apache Kafka to Klamm, and prints their pauses.

`python bench/move_from_kafka.py` (after `bench/install.sh`) does what docs/mirror.md describes ("Move a running Kafka
cluster to Klamm"): it starts Kafka with a topic that confluent-kafka's clients write and read, then Klamm with a link
to it; moves the consumer, sets its offsets at Kafka as for the way back, promotes the topic, moves the producer, and
checks that every acknowledged record was processed once. It exits with 1 if a record is lost or doubled.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import typer

from klamm.core.cli.admin.groups import app as groups
from klamm.core.cli.admin.offset_reset import read_file
from klamm.core.cli.mirror.commands import app as mirror
from klamm.core.records.partition import TopicPartition
from klammbench.drivers.topics import make_topic
from klammbench.mirrored_kafka import committed, mirrored, running_kafka
from klammbench.systems.kafka import kafka_version
from klammtest.clients.moving import move

TOPIC, GROUP = "orders", "load.moving"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--records-per-second", type=int, default=500)
    parser.add_argument("--records", type=int, default=5000, help="that both clients process before each step")
    options = parser.parse_args()
    link = {"topics.regex": ".*", "groups.regex": ".*"}
    with (
        tempfile.TemporaryDirectory() as name,
        running_kafka(Path(name, "kafka")) as kafka,
        mirrored(kafka, Path(name, "klamm"), "kafka", link) as klamm,
    ):
        make_topic(kafka, TOPIC, options.partitions)

        def run(app: typer.Typer, *arguments: str) -> None:
            print(f"{klamm.run(app, *arguments):6.2f} s  klamm {' '.join(arguments)}")

        run(mirror, "create", "kafka")
        run(mirror, "status", "kafka", "--wait", "60s")
        back = Path(name, "offsets")
        ways: list[dict[TopicPartition, int]] = []

        def promote() -> None:
            run(groups, "offsets", GROUP, "--save", str(back))
            run(groups, "reset", GROUP, "--file", str(back), "--bootstrap", kafka.bootstrap, "--yes")
            ways.append(committed(klamm.source, GROUP))
            run(mirror, "promote", "kafka", "--drain", "--quiet", "1s")

        moved = move(
            kafka.bootstrap,
            klamm.broker.bootstrap,
            TOPIC,
            lambda: committed(klamm.source, GROUP) and committed(klamm.source, GROUP) == committed(klamm.target, GROUP),
            promote,
            per_second=options.records_per_second,
            records=options.records,
        )
        problems, saved = list(moved.problems), read_file(back)
        if ways[0] != saved:
            problems.append(f"the way back: {ways[0]} at Kafka, {saved} saved at Klamm")
    for line in problems:
        print(line)
    print(
        f"Apache Kafka {kafka_version()}: {moved.acknowledged} records acknowledged, each processed once: "
        f"{'no' if problems else 'yes'}; pause of the consumer {moved.consumer_pause_s:.2f} s, of the producer "
        f"{moved.producer_pause_s:.2f} s"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
