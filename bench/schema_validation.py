"""Measures the cost of validation on the broker: the raw driver of `make bench` writes Avro records to topics that ask
for no schema, for the id of one (`klamm.value.schema.validation=id`) and for values of it (`full`), in turns.

    python bench/schema_validation.py [--rounds 5] [--codecs none,zstd]

The records are of 10 longs and a string of 100 characters. Prints a line for each load and codec: messages/s and broker
CPU in us for each message, as medians of the rounds, and the medians of the ratios within rounds to a topic that asks
for nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.schemas.names import SCHEMA_TOPIC
from klamm.schemas.registry.log import TOPIC_CONFIGS
from klamm.schemas.store.records import SchemaRecord, encode
from klamm.schemas.store.schema import SchemaText
from klammbench.drivers.raw import Batch, Load, drive
from klammbench.process import cpu_seconds
from klammtest.broker import RunningBroker, running_broker

MODES: Final = ("none", "id", "full")
PARTITIONS: Final = 4
TEXT: Final = 100
NAMES: Final = [f"n{index}" for index in range(10)]
SCHEMA: Final = json.dumps(
    {
        "type": "record", "name": "Measured",
        "fields": [*({"name": name, "type": "long"} for name in NAMES), {"name": "text", "type": "string"}],
    }
)  # fmt: skip
PREFIX: Final = b"\0\0\0\0\1" + b"\x80\x01" * len(NAMES) + b"\xc8\x01"
"""Schema id 1, ten longs, the length of the text."""
LOADS: Final = {
    "64 KB batches": (500, Load(4, depth=5, measure_s=2.0)),
    "one message": (1, Load(8, measure_s=2.0)),
}


def register(client: ClusterClient, topics: list[str]) -> None:
    schema = SchemaText(SCHEMA)
    rows = [(1, *encode(SchemaRecord(f"{topic}-value", 1, 1, schema)), ()) for topic in topics]
    client.produce({TopicPartition(SCHEMA_TOPIC, 0): encode_batch(rows)})


def measure(broker: RunningBroker, topic: str, batch: Batch, load: Load) -> tuple[float, float]:
    """Returns messages/s and broker CPU in us for each."""
    before = cpu_seconds([broker.pid])
    got = drive(broker.bootstrap, topic, PARTITIONS, batch, load)
    spent = cpu_seconds([broker.pid]) - before
    sent = got.requests * batch.messages * got.all_bytes / got.bytes
    return got.requests * batch.messages / got.seconds, spent / sent * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--codecs", default="none,zstd")
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.python_version()}, {options}")
    print("load, codec            | messages/s none, id, full; ratios | broker CPU us a message; ratios")
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        running_broker(Path(folder)) as broker,
        ClusterClient(broker.bootstrap, codecs=CodecTable()) as client,
    ):
        client.create_topics({SCHEMA_TOPIC: NewTopic(1, configs=TOPIC_CONFIGS)})
        for codec in options.codecs.split(","):
            for name, (messages, load) in LOADS.items():
                found: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
                for number in range(options.rounds):
                    topics = {mode: f"{codec}-{messages}-{mode}-{number}" for mode in MODES}
                    register(client, list(topics.values()))
                    for mode in MODES if number % 2 else MODES[::-1]:
                        configs = {"klamm.value.schema.validation": mode, "file.delete.delay.ms": "0"}
                        client.create_topics({topics[mode]: NewTopic(PARTITIONS, configs=configs)})
                        batch = Batch(messages, TEXT, codec, PREFIX)
                        found[mode].append(measure(broker, topics[mode], batch, load))
                        client.delete_topics([topics[mode]])
                print(line(f"{name}, {codec}", found), flush=True)


def line(name: str, found: dict[str, list[tuple[float, float]]]) -> str:
    columns = [f"{name:22}"]
    for index, digits in ((0, 0), (1, 2)):
        each = {mode: [one[index] for one in rows] for mode, rows in found.items()}
        ratios = [statistics.median(b / a for a, b in zip(each["none"], each[mode], strict=True)) for mode in MODES[1:]]
        medians = [f"{statistics.median(each[mode]):10,.{digits}f}" for mode in MODES]
        columns.append(" ".join([*medians, *(f"{ratio:6.2f}" for ratio in ratios)]))
    return " | ".join(columns)


if __name__ == "__main__":
    main()
