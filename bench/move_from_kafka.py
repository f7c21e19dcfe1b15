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
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from klamm.core.cli.groups import app as groups
from klamm.core.cli.mirror import app as mirror
from klamm.core.cli.offset_reset import read_file
from klamm.core.client.cluster_client import ClusterClient
from klammbench.systems.base import free_ports
from klammbench.systems.kafka import TUNED, KafkaNode, kafka_version
from klammtest.broker import running_broker
from klammtest.clients.moving import move
from klammtest.logs import codec_table

TOPIC, GROUP = "orders", "load.moving"


def committed(client: ClusterClient) -> dict[str, int]:
    return {str(tp): each.offset for tp, each in client.fetch_offsets(GROUP).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--records-per-second", type=int, default=500)
    parser.add_argument("--records", type=int, default=5000, help="that both clients process before each step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port, controller = free_ports(2)
        kafka = KafkaNode("kafka", folder / "kafka", folder / "kafka" / "data", TUNED, (port, controller))
        bootstrap = f"127.0.0.1:{port}"
        kafka.launch()
        try:
            kafka.wait()
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, options.partitions, 1)])[TOPIC].result(60)
            link = {"bootstrap.servers": bootstrap, "topics.regex": ".*", "groups.regex": ".*"}
            with (
                ClusterClient(bootstrap, codecs=codec_table()) as source,
                running_broker(folder / "klamm", mirrors={"kafka": link}) as broker,
                ClusterClient(broker.bootstrap, codecs=codec_table()) as target,
            ):

                def run(app: object, *arguments: str) -> None:
                    begin = time.monotonic()
                    command = [*arguments, "--config", str(broker.config_path)]
                    result = CliRunner().invoke(app, command)  # type: ignore[arg-type]
                    if result.exception is not None:
                        raise RuntimeError(f"{' '.join(arguments)}: {result.output}") from result.exception
                    print(f"{time.monotonic() - begin:6.2f} s  klamm {' '.join(arguments)}")

                run(mirror, "create", "kafka")
                run(mirror, "status", "kafka", "--wait", "60s")
                back = str(folder / "offsets")

                def promote() -> None:
                    run(groups, "offsets", GROUP, "--save", back)
                    run(groups, "reset", GROUP, "--file", back, "--bootstrap", bootstrap, "--yes")
                    ways.append(committed(source))
                    run(mirror, "promote", "kafka", "--drain", "--quiet", "1s")

                ways: list[dict[str, int]] = []
                moved = move(
                    bootstrap,
                    broker.bootstrap,
                    TOPIC,
                    lambda: committed(source) and committed(source) == committed(target),
                    promote,
                    per_second=options.records_per_second,
                    records=options.records,
                )
                problems = list(moved.problems)
                saved = read_file(Path(back))
                if ways[0] != {str(tp): offset for tp, offset in saved.items()}:
                    problems.append(f"the way back: {ways[0]} at Kafka, {saved} saved at Klamm")
        finally:
            kafka.kill()
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
