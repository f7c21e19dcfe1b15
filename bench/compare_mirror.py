"""Compares a mirror with the Apache Kafka that it copies, and continues a consumer's group at the mirror.

`python bench/compare_mirror.py` starts Kafka (from the jars that `bench/install.sh` fetches) and a broker of Klamm with
a link to it. Kafka gets batches of every codec in several partitions, a topic of 200 partitions, one that it compacts,
and transactions that commit, abort and stay open; some before the link, some while it copies, some after Kafka was
killed and has begun another leader epoch. The batches of both are compared byte for byte, and as Kafka's own dump tool
(kafka-dump-log.sh) prints them from the two directories. One group of confluent-kafka's consumer and one of Kafka's
console consumer read a part at Kafka; then the topics are promoted, and the groups go on at Klamm at the offsets that
the link has copied: each must read each record once. A reader of committed records must reach the end, though a
transaction was open. It prints one line for each difference and exits with 1 if there is one. `--seed` makes other
transactions.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import confluent_kafka

from compare_transactions import PARTITIONS, create, whole, write
from klamm.core.cli.mirror.commands import app
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.java import find_java
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klammbench.drivers.topics import make_topic
from klammbench.mirrored_kafka import MirroredKafka, committed, mirrored, running_kafka
from klammbench.paths import VAR
from klammbench.systems.kafka import kafka_version
from klammtest.kafka_transactions import by_librdkafka
from klammtest.waiting import eventually

GROUP, JAVA_GROUP, CODECS = "load.codecs", "load.java", ("none", "gzip", "snappy", "lz4", "zstd")
COPIED = [TopicPartition("codecs", number) for number in range(3)]
WIDE = [TopicPartition("wide", number) for number in range(200)]
POSITION = re.compile(r" position: \d+")
LINK = {
    "topics.regex": ".*",
    "groups.regex": r"load\..*",
    "groups.interval.ms": 200,
    "metadata.interval.ms": 500,
    "fetch.max.wait.ms": 100,
}


def write_codecs(bootstrap: str, rng: random.Random, first: int, count: int) -> None:
    """Writes values `first` to `first + count`, in batches of every codec."""
    for codec in CODECS:
        settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50, "log_level": 0}
        producer = confluent_kafka.Producer({**settings, "enable.idempotence": codec != "gzip"})
        for value in range(first, first + count):
            if CODECS[value % len(CODECS)] == codec:
                text = f"{value:08d} " + "x" * rng.randrange(200)
                producer.produce("codecs", text, partition=rng.randrange(len(COPIED)), headers=[("codec", codec)])
        producer.flush(60)


def read_group(bootstrap: str, count: int) -> list[tuple[int, int, int]]:
    """Reads `count` records as the group, and commits them: (partition, offset, value)."""
    settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False, "log_level": 0}
    consumer = confluent_kafka.Consumer({**settings, "auto.offset.reset": "error"})
    if not consumer.committed([confluent_kafka.TopicPartition("codecs", 0)], 60)[0].offset >= 0:
        consumer.commit(
            offsets=[confluent_kafka.TopicPartition(tp.topic, tp.partition, 0) for tp in COPIED], asynchronous=False
        )
    consumer.subscribe(["codecs"])
    found: list[tuple[int, int, int]] = []
    while len(found) < count:
        message = consumer.poll(60)
        assert message is not None, f"{len(found)} of {count} records within 60 s"
        assert message.error() is None, message.error()
        found.append((message.partition() or 0, message.offset() or 0, int((message.value() or b"")[:8])))
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def write_wide(bootstrap: str, rng: random.Random, count: int) -> None:
    """Writes so many records to the topic of many partitions."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 0})
    for value in range(count):
        producer.produce("wide", f"{value} " + "y" * rng.randrange(100), partition=rng.randrange(len(WIDE)))
        producer.poll(0)
    producer.flush(60)


def read_java(bootstrap: str, count: int) -> list[tuple[int, int, int]]:
    """Reads `count` records as the group of Kafka's console consumer and commits them: (partition, offset, value)."""
    tool = ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", "codecs"]
    shown = ["--formatter-property", "print.partition=true", "--formatter-property", "print.offset=true"]
    # Of a delivery that has more records than are wanted, only those that were printed are committed with max.poll 1.
    settings = ["--group", JAVA_GROUP, "--max-messages", str(count), "--timeout-ms", "60000"]
    properties = ["max.poll.records=1", "auto.offset.reset=earliest"]
    more = [word for each in properties for word in ("--command-property", each)]
    found = []
    for line in java(*tool, *shown, *settings, *more).splitlines():
        if match := re.fullmatch(r"Partition:(\d+)\tOffset:(\d+)\t(\d{8}) x*", line):
            found.append((int(match[1]), int(match[2]), int(match[3])))
    assert len(found) == count, f"the console consumer has read {len(found)} of {count} records"
    return found


def java(*arguments: str) -> str:
    """Runs a tool of Kafka; returns its output."""
    command = [find_java(), "-Xmx256m", "-cp", f"{VAR / 'kafka'}/*", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments[0]}: {done.stdout}\n{done.stderr}")
    return done.stdout


def dumped(data_dir: Path, partitions: list[TopicPartition]) -> dict[str, list[str]]:
    """Returns each partition's batches as Kafka's dump tool prints them, without their positions in the files."""
    files = [str(path) for tp in partitions for path in sorted((data_dir / str(tp)).glob("*.log"))]
    found: dict[str, list[str]] = {str(tp): [] for tp in partitions}
    name = ""
    for line in java("org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(files)).splitlines():
        if line.startswith("Dumping "):
            name = Path(line.removeprefix("Dumping ").strip()).parent.name
        elif line.startswith("baseOffset:"):
            found[name].append(POSITION.sub("", line))
    return found


def dump_differences(kafka: Path, klamm: Path, partitions: list[TopicPartition]) -> tuple[list[str], int]:
    """Compares what the dump tool prints; returns the differences and the number of batches."""
    there, here = dumped(kafka, partitions), dumped(klamm, partitions)
    found = [f"{tp}: the dump tool prints other batches" for tp in there if there[tp] != here[tp]]
    return found, sum(map(len, there.values()))


def settled(client: ClusterClient, tp: TopicPartition) -> bytes:
    """Returns the log, once Kafka has left it unchanged for a while."""
    before: list[bytes] = []

    def unchanged() -> bool:
        before.append(whole(client, tp))
        return len(before) > 3 and len(set(before[-4:])) == 1

    eventually(unchanged, f"{tp} is compacted")
    return before[-1]


def ends(client: ClusterClient, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    return {tp: client.list_offsets({tp: -1})[tp][0] for tp in partitions}


def differences(mirror: MirroredKafka, partitions: list[TopicPartition], when: str) -> list[str]:
    """Waits until the mirror has everything, and compares the batches."""
    end = ends(mirror.source, partitions)
    eventually(lambda: ends(mirror.target, partitions) == end, f"the mirror has everything {when}")
    found = []
    for tp in partitions:
        here, there = whole(mirror.target, tp), whole(mirror.source, tp)
        if here != there:
            at = next((n for n, pair in enumerate(zip(here, there, strict=False)) if pair[0] != pair[1]), -1)
            found.append(f"{tp} {when}: {len(here)} bytes here, {len(there)} at Kafka, equal up to byte {at}")
    return found


def newest(bootstrap: str, tp: TopicPartition) -> dict[str, tuple[int, str]]:
    """Returns the newest committed record of each key: Kafka's cleaner removes aborted ones."""
    return {key: (offset, value) for offset, key, value in by_librdkafka(bootstrap, tp, "read_committed")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transactions", type=int, default=40)
    parser.add_argument("--records", type=int, default=3000)
    options = parser.parse_args()
    rng, third = random.Random(options.seed), options.records // 3
    plain, keyed = [*COPIED, *PARTITIONS[:2], *WIDE], PARTITIONS[2]
    with tempfile.TemporaryDirectory() as name, running_kafka(Path(name, "kafka")) as kafka:
        create(kafka.bootstrap)
        make_topic(kafka, "codecs", len(COPIED))
        make_topic(kafka, "wide", len(WIDE))
        write_codecs(kafka.bootstrap, rng, 0, third)
        write_wide(kafka.bootstrap, rng, options.records)
        write(kafka.bootstrap, options.seed, options.transactions).abort_transaction(60)
        with mirrored(kafka, Path(name, "klamm"), "berlin", LINK) as mirror:
            source, target, broker = mirror.source, mirror.target, mirror.broker
            before = settled(source, keyed)
            mirror.run(app, "create", "berlin")
            mirror.run(app, "status", "berlin", "--wait", "60s")
            found = differences(mirror, plain, "of what was there before the link")
            compacted = differences(mirror, [keyed], "of what was there before the link")
            if whole(source, keyed) == before:
                found += compacted
            else:
                print(f"{keyed}: Kafka has compacted it meanwhile, so its bytes are not compared")
            write_wide(kafka.bootstrap, rng, options.records)
            write_codecs(kafka.bootstrap, rng, third, third)
            write(kafka.bootstrap, options.seed + 1, options.transactions).abort_transaction(60)
            found += differences(mirror, plain, "of what was copied at once")
            kafka.kill_and_start()
            write_codecs(kafka.bootstrap, rng, 2 * third, third)
            producer = write(kafka.bootstrap, options.seed + 2, options.transactions)
            found += differences(mirror, plain, "of the next leader epoch")
            differences(mirror, [keyed], "of the compacted topic")
            if newest(kafka.bootstrap, keyed) != newest(broker.bootstrap, keyed):
                found.append(f"{keyed}: the newest record of a key is another one than at Kafka")
            read = read_group(kafka.bootstrap, options.records // 2)
            java_read = read_java(kafka.bootstrap, options.records // 2)
            for group in (GROUP, JAVA_GROUP):
                wanted = committed(source, group)
                eventually(lambda: committed(target, group) == wanted, f"the offsets of {group} are copied")  # noqa: B023
            size = sum(len(whole(target, tp)) for tp in [*plain, keyed])
            epochs = {header.leader_epoch for tp in plain for _, header in iter_headers(whole(target, tp))}
            lines, batches = dump_differences(kafka.data_dir, broker.log_dir, plain)
            found += lines
            mirror.run(app, "promote", "berlin", "--drain", "--quiet", "1s")
            read += read_group(broker.bootstrap, 3 * third - len(read))
            java_read += read_java(broker.bootstrap, 3 * third - len(java_read))
            for group, rows in ((GROUP, read), (JAVA_GROUP, java_read)):
                if len(set(rows)) != len(rows) or {value for _, _, value in rows} != set(range(3 * third)):
                    found.append(f"{group} has read {len(set(rows))} records, {len(rows) - len(set(rows))} twice")
            for tp in PARTITIONS:
                rows = by_librdkafka(broker.bootstrap, tp, "read_committed")
                if not any(value == "behind the open one" and row > 0 for row, _, value in rows[-1:]):
                    found.append(f"{tp}: a reader of committed records ends at {rows[-1:]}")
            del producer
    for line in found:
        print(line)
    print(
        f"Apache Kafka {kafka_version()}: {len(plain) + 1} partitions, {size} bytes in {len(epochs)} leader epochs, "
        f"{batches} batches as the dump tool prints them, a group of confluent-kafka read {len(read)} records at both, "
        f"one of Kafka's consumer {len(java_read)}: {len(found)} differences"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
