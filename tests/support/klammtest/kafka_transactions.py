"""Logs with transactions that Apache Kafka wrote, and its answers about them: recorded by
`bench/compare_transactions.py --save`, and put into a log of Klamm byte for byte.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import confluent_kafka

from klamm.core.broker.replication.replica import Replica
from klamm.core.broker.server import Broker
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.codecs import CodecTable
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klammtest.requests import fetch_fields
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

FETCH, LIST_OFFSETS = 12, 7
RECORDED = Path(__file__).parents[2] / "core" / "broker" / "transactions" / "recorded.json.gz"
Row = tuple[int, str, str]
"""Offset, key and value of a record."""


@dataclass(frozen=True)
class FetchAnswer:
    """The answer to a Fetch of one partition with read_committed: `aborted` are pairs of producer id and first offset,
    sorted; `end` is the offset after its last whole batch."""

    offset: int
    max_bytes: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[list[int]]
    end: int

    def begun_before(self, end: int) -> list[list[int]]:
        return [one for one in self.aborted if one[1] < end]


@dataclass(frozen=True)
class Partition:
    """A partition as Kafka has it. `data`: the batches of its log. `index`: the entries of its transaction indexes:
    producer id, first offset, last offset, last stable offset. `ends`: ListOffsets' latest by isolation level."""

    topic: str
    partition: int
    data: bytes
    index: list[list[int]]
    ends: list[int]
    fetches: list[FetchAnswer]
    uncommitted: list[Row]
    committed: list[Row]

    @property
    def is_compacted(self) -> bool:
        return self.topic == "keyed"

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def save(partitions: list[Partition], path: Path) -> None:
    rows = [{**asdict(one), "data": base64.b64encode(one.data).decode()} for one in partitions]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(rows).encode(), mtime=0))


def recorded(path: Path = RECORDED) -> list[Partition]:
    found = []
    for row in json.loads(gzip.decompress(path.read_bytes())):
        row["data"] = base64.b64decode(row["data"])
        row["fetches"] = [FetchAnswer(**one) for one in row["fetches"]]
        for name in ("uncommitted", "committed"):
            row[name] = [(offset, key, value) for offset, key, value in row[name]]
        found.append(Partition(**row))
    return found


def fetch(wire: WireClient, tp: TopicPartition, offset: int, max_bytes: int) -> FetchAnswer:
    fields = fetch_fields({(tp.topic, tp.partition): offset}, version=FETCH, partition_max_bytes=max_bytes)
    answer = wire.call(ApiKey.FETCH, FETCH, **{**fields, "isolation_level": 1}).responses[0].partitions[0]
    assert answer.error_code == 0, answer
    aborted = sorted([one.producer_id, one.first_offset] for one in answer.aborted_transactions or ())
    end = max((header.next_offset for _, header in iter_headers(bytes(answer.records or b""))), default=offset)
    return FetchAnswer(offset, max_bytes, answer.high_watermark, answer.last_stable_offset, aborted, end)


def latest(wire: WireClient, tp: TopicPartition, isolation: int) -> int:
    asked = part(ApiKey.LIST_OFFSETS, LIST_OFFSETS, "ListOffsetsPartition", partition_index=tp.partition, timestamp=-1)
    topics = (part(ApiKey.LIST_OFFSETS, LIST_OFFSETS, "ListOffsetsTopic", name=tp.topic, partitions=(asked,)),)
    answer = wire.call(ApiKey.LIST_OFFSETS, LIST_OFFSETS, replica_id=-1, isolation_level=isolation, topics=topics)
    return int(answer.topics[0].partitions[0].offset)


def by_librdkafka(bootstrap: str, tp: TopicPartition, isolation: str) -> list[Row]:
    """Returns what confluent-kafka's consumer reads up to the end that the isolation shows."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": isolation,
            "enable.auto.commit": False, "auto.offset.reset": "earliest", "enable.partition.eof": True,
        }
    )  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, confluent_kafka.OFFSET_BEGINNING)])
    rows: list[Row] = []
    while True:
        message = consumer.poll(60.0)
        assert message is not None, f"{tp}: neither a record nor the end within 60 s"
        if (error := message.error()) is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            consumer.close()
            return rows
        rows.append((message.offset() or 0, (message.key() or b"").decode(), (message.value() or b"").decode()))


def led(broker: Broker, tp: TopicPartition) -> Replica:
    """Waits until the broker leads the partition."""
    assert broker._services is not None
    partitions = broker._services.partitions
    eventually(lambda: (found := partitions.replica(tp)) is not None and found.leader is not None, f"{tp} is led")
    replica = partitions.replica(tp)
    assert replica is not None
    return replica


@contextmanager
def served(broker: Broker, partitions: list[Partition], codecs: CodecTable) -> Iterator[ClusterClient]:
    """Creates the topics in a broker and puts the bytes into their logs, as a follower stores them."""
    with ClusterClient(f"127.0.0.1:{broker.advertised[0].port}", codecs=codecs) as client:
        counts = {one.topic: 1 + max(p.partition for p in partitions if p.topic == one.topic) for one in partitions}
        client.create_topics({topic: NewTopic(count, 1, {"segment.bytes": "16384"}) for topic, count in counts.items()})
        for one in partitions:
            log = led(broker, one.tp).log
            log.follow(0)
            log.append_as_follower(one.data, 0)
            log.lead(0)
            log.advance_high_watermark(log.log_end_offset)
        yield client
