"""Compares Klamm with Apache Kafka over logs with transactions that Kafka's broker and librdkafka's producers write.

`python bench/compare_transactions.py` starts Kafka (from the jars that `bench/install.sh` fetches), writes transactions
to it (several producers, commits, aborts, plain records between them, one left open; a topic that is compacted), and
reads them: by confluent-kafka's consumer, and by Klamm's consumer (records, Arrow, batches) and range reader, with both
isolation levels. Then it puts the bytes of each log into a broker of Klamm and compares ListOffsets, the answer to a
Fetch at each offset, the transaction index with Kafka's files, and what both consumers read. It prints one line for
each difference and exits with 1 if there is one. `--seed` makes other transactions; `--save FILE` records Kafka's logs
and answers, which the suite compares with (`tests/core/broker/transactions`).
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klammbench.mirrored_kafka import running_kafka
from klammtest.brokers.inprocess import broker_thread
from klammtest.kafka_transactions import Partition, by_librdkafka, fetch, latest, save, served
from klammtest.logs import codec_table
from klammtest.transactional_reads import differences
from klammtest.wire import WireClient

SIZES = (1, 700, 1 << 20)
PARTITIONS = [TopicPartition("mixed", 0), TopicPartition("mixed", 1), TopicPartition("keyed", 0)]
INDEX = struct.Struct(">hqqqq")


def create(bootstrap: str) -> None:
    common = {"internal.segment.bytes": "16384", "index.interval.bytes": "256"}
    keyed = {**common, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "100"}
    topics = [NewTopic("mixed", 2, 1, config=common), NewTopic("keyed", 1, 1, config=keyed)]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(topics).values():
        made.result(60)


def write(bootstrap: str, seed: int, transactions: int) -> confluent_kafka.Producer:
    """Writes the transactions; returns the producer of the one that stays open."""
    rng = random.Random(seed)
    producers = []
    for number in range(3):
        settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"judge-{number}",
            "linger.ms": 0,
            "log_level": 0,
        }
        producers.append(
            confluent_kafka.Producer({**settings, "compression.type": rng.choice(["none", "lz4", "zstd"])})
        )
        producers[-1].init_transactions(60)
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    running: set[int] = set()
    done = 0
    while done < transactions or running:
        number = rng.randrange(3)
        producer = producers[number]
        if number not in running:
            if done < transactions:
                producer.begin_transaction()
                running.add(number)
        elif rng.random() < 0.6:
            for _ in range(rng.randrange(1, 6)):
                tp = rng.choice(PARTITIONS)
                value = f"{number}-{rng.randrange(10_000)}" * rng.randrange(1, 20)
                producer.produce(tp.topic, value, f"k{rng.randrange(9)}", tp.partition)
            producer.flush(60)
        else:
            producer.commit_transaction(60) if rng.random() < 0.5 else producer.abort_transaction(60)
            running.discard(number)
            done += 1
        if rng.random() < 0.3:
            tp = rng.choice(PARTITIONS)
            plain.produce(tp.topic, f"plain {rng.randrange(1000)}", f"k{rng.randrange(9)}", tp.partition)
            plain.flush(60)
    producers[0].begin_transaction()
    for tp in PARTITIONS:
        producers[0].produce(tp.topic, "open", "open", tp.partition)
    producers[0].flush(60)
    for tp in PARTITIONS:
        plain.produce(tp.topic, "behind the open one", "behind", tp.partition)
    plain.flush(60)
    return producers[0]


def transaction_index(folder: Path) -> list[list[int]]:
    """Returns the entries of Kafka's `.txnindex` files of a partition."""
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.txnindex")))
    return [list(row[1:]) for row in INDEX.iter_unpack(data)]


def whole(client: ClusterClient, tp: TopicPartition) -> bytes:
    """Returns the batches of the log."""
    start, end = (client.list_offsets({tp: edge})[tp][0] for edge in (-2, -1))
    data, node = b"", next(iter(client.by_leader([tp])))
    while start < end:
        piece = client.fetch(node, {tp: start}, partition_max_bytes=1 << 24)[tp].records
        data += piece
        start = max(header.next_offset for _, header in iter_headers(piece))
    return data


def from_kafka(
    bootstrap: str, data_dir: Path, client: ClusterClient, tp: TopicPartition
) -> tuple[Partition, list[str]]:
    """Returns the partition, and the differences between what Klamm's clients and librdkafka read of it. Begins again
    if Kafka has compacted it meanwhile."""
    while True:
        data = whole(client, tp)
        found = read(bootstrap, data_dir, client, tp, data)
        lines = differences(bootstrap, found)
        if whole(client, tp) == data:
            return found, [f"from Kafka: {line}" for line in lines]


def read(bootstrap: str, data_dir: Path, client: ClusterClient, tp: TopicPartition, data: bytes) -> Partition:
    start, _ = client.list_offsets({tp: -2})[tp]
    with WireClient(bootstrap) as wire:
        ends = [latest(wire, tp, isolation) for isolation in (0, 1)]
        fetches = [fetch(wire, tp, offset, size) for offset in range(start, ends[1]) for size in SIZES]
    return Partition(
        tp.topic, tp.partition, data, transaction_index(data_dir / str(tp)), ends, fetches,
        by_librdkafka(bootstrap, tp, "read_uncommitted"), by_librdkafka(bootstrap, tp, "read_committed"),
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transactions", type=int, default=60)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    found: list[str] = []
    logs: list[Partition] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_kafka(folder / "kafka") as kafka:
            create(kafka.bootstrap)
            producer = write(kafka.bootstrap, options.seed, options.transactions)
            with ClusterClient(kafka.bootstrap, codecs=codec_table()) as client:
                for tp in PARTITIONS:
                    log, lines = from_kafka(kafka.bootstrap, kafka.data_dir, client, tp)
                    logs.append(log)
                    found += lines
            producer.abort_transaction(60)
        coordination = {"plugin": "embedded", "path": str(folder / "coordination.db")}
        with broker_thread(folder / "klamm", coordination) as broker, served(broker, logs, codec_table()):
            bootstrap = f"127.0.0.1:{broker.advertised[0].port}"
            for log in logs:
                found += [f"from Klamm: {line}" for line in differences(bootstrap, log, broker)]
    for line in found:
        print(line)
    rows = sum(len(log.uncommitted) for log in logs)
    kept = sum(len(log.committed) for log in logs)
    aborted = sum(len(log.index) for log in logs)
    print(
        f"{len(logs)} partitions, {rows} records, {kept} of them committed, {aborted} aborted transactions, "
        f"{sum(len(log.fetches) for log in logs)} fetches: {len(found)} differences"
    )
    if options.save:
        save(logs, options.save)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
