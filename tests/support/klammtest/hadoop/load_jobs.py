"""Topics in memory for load jobs, and a lake read back with plain Spark."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID
from zlib import crc32

import fastavro
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.interfaces.envelope import SchemaKey
from klamm.core.records.epoch_end import EpochEnd
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.lake.generations.compact import CompactJob, CompactSpec
from klamm.hadoop.lake.manifest import BatchMark
from klamm.hadoop.load.job import LoadJob, LoadSpec, LogEnds
from klamm.hadoop.load.planning.plan import Densities
from klamm.hadoop.load.rows import TIMESTAMP, RowFormat, RowMaker
from klamm.hadoop.load.spark_writer import FileFormat
from klamm.hadoop.publishing.local import LocalPublisher

TOPIC = "flights"
DAY_MS = 86_400_000
SOURCE = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "number", "type": "int"}, {"name": "carrier", "type": ["null", "string"], "default": None}],
}


def payload(schema_id: int, schema: Any, value: Any) -> bytes:
    """Returns the value in Confluent's envelope."""
    out = io.BytesIO()
    out.write(b"\0" + schema_id.to_bytes(4, "big"))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def flight(number: int, carrier: str | None = "UA") -> bytes:
    return payload(1, FLIGHT, {"number": number, "carrier": carrier})


@dataclass
class MemoryTopics:
    """A `klamm.hadoop.load.job.Topics` with one topic; `add` appends records, whose offsets are those of a log."""

    partitions: int = 2
    row_format: RowFormat = field(
        default_factory=lambda: RowFormat(
            topic=TOPIC,
            partition_by=("dt",),
            reader=json.dumps(FLIGHT),
            writers={SchemaKey(schema_id=1): json.dumps(FLIGHT)},
            envelope="confluent",
            plugins=(),
            min_us=0,
            max_us=253_402_300_799_000_000,
            quarantine=False,
        )
    )
    records: list[dict[str, Any]] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)
    cluster: str = "c1"
    topic_uuid: UUID | None = field(default_factory=lambda: UUID(int=1))
    epochs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By partition: the leader epochs and the first offset of each."""
    compacted: bool = False

    def add(self, partition: int, value: bytes | None, ts_ms: int | None = 0, key: bytes | None = None) -> None:
        offset = self.ends(TOPIC)[partition].latest
        stamp = None if ts_ms is None else ts_ms * 1000
        row = {"key": key, "value": value, "topic": TOPIC, "partition": partition, "offset": offset}
        self.records.append({**row, "timestamp": stamp, "timestampType": 0})

    def configure(self, **changes: Any) -> None:
        self.row_format = replace(self.row_format, **changes)

    def cluster_id(self) -> str:
        return self.cluster

    def topic_id(self, topic: str) -> UUID | None:
        return self.topic_uuid

    def last_batches(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, BatchMark]:
        """Returns the last batch of each partition; each record is a batch of its own."""
        found = {}
        for r in self.records:
            tp = TopicPartition(TOPIC, r["partition"])
            if ends.get(tp) == r["offset"] + 1 and r["offset"] >= self.started.get(tp.partition, 0):
                epoch = max((e for e, start in self.epochs.get(tp.partition, [(0, 0)]) if start <= r["offset"]))
                found[tp] = BatchMark(leader_epoch=epoch, base_offset=r["offset"], crc=crc32(r["value"] or b""))
        return found

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
        ends, latest = {}, self.ends(TOPIC)
        for tp, epoch in epochs.items():
            known = self.epochs.get(tp.partition, [(0, 0)])
            later = [start for e, start in known if e > epoch]
            ends[tp] = EpochEnd(epoch, min(later, default=latest[tp.partition].latest))
            if epoch > max(e for e, _ in known):
                ends[tp] = EpochEnd(-1, -1)
        return ends

    def densities(self, ranges: Sequence[OffsetRange]) -> Densities:
        sizes = {(r["partition"], r["offset"]): len(r["value"] or b"") for r in self.records}
        return {
            r.partition: [sizes.get((r.partition.partition, n)) for n in range(r.start, r.end)]
            for r in ranges
            if r.size
        }

    def is_compacted(self, topic: str) -> bool:
        return self.compacted

    def ends(self, topic: str) -> dict[int, LogEnds]:
        ends = {}
        for number in range(self.partitions):
            first = self.started.get(number, 0)
            last = max((r["offset"] + 1 for r in self.records if r["partition"] == number), default=0)
            ends[number] = LogEnds(first, max(last, first))
        return ends

    def format(self, topic: str) -> RowFormat:
        return self.row_format

    def rows(self, session: SparkSession, ranges: list[OffsetRange], format_: RowFormat) -> DataFrame:
        columns = ["key", "value", "partition", "offset", "timestamp"]
        wanted = self.read(session, ranges).select(*columns, *(["error", "endOffset"] if format_.quarantine else []))

        def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from map(RowMaker(format_).rows, batches)

        return wanted.mapInArrow(made, from_arrow_schema(format_.schema()))

    def read(self, session: SparkSession, ranges: list[OffsetRange]) -> DataFrame:
        """Reads the columns of the `klamm` source."""
        spans: Mapping[int, OffsetRange] = {r.partition.partition: r for r in ranges}
        rows = [
            r for r in self.records
            if r["partition"] in spans and spans[r["partition"]].start <= r["offset"] < spans[r["partition"]].end
        ]  # fmt: skip
        schema = SOURCE
        if self.row_format.quarantine:
            schema = pa.schema([*SOURCE, ("error", pa.string()), ("endOffset", pa.int64())])
        frame = session.createDataFrame(pa.Table.from_pylist(rows, schema))
        return frame.repartition(3)


def job(spark: SparkSession, topics: MemoryTopics, root: str, **changes: Any) -> LoadJob:
    """Makes a load job on the lake at `root`; `changes` are fields of its spec, or `new_id`."""
    given = {name: changes.pop(name) for name in ("new_id", "auditor", "publisher", "warn") if name in changes}
    files = FileFormat("parquet", topics.row_format.partition_by, changes.pop("target_size", 128 * 2**20))
    spec = replace(LoadSpec(root=root, files=files, owner="lake"), **changes)
    return LoadJob(lambda: spark, topics, given.pop("publisher", LocalPublisher()), spec, **given)


def compactor(spark: SparkSession, root: str, **changes: Any) -> CompactJob:
    """Makes a compaction of the lake at `root`; `changes` are fields of its spec, or a publisher."""
    publisher = changes.pop("publisher", LocalPublisher())
    return CompactJob(lambda: spark, publisher, replace(CompactSpec(root, 128 * 2**20), **changes))


def coordinates(spark: SparkSession, root: str, topic: str = TOPIC) -> list[tuple[int, int]]:
    """Returns (partition, offset) of every row that a plain reader sees, sorted."""
    rows = spark.read.parquet(f"{root}/{topic}").select("_partition", "_offset").collect()
    return sorted((row[0], row[1]) for row in rows)


def everything(topics: MemoryTopics) -> list[tuple[int, int]]:
    return sorted((r["partition"], r["offset"]) for r in topics.records)


def ranges(*spans: Sequence[int]) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition(TOPIC, p), start, end) for p, start, end in spans]


LOAD_POINTS = ["load.planned", "load.written", "load.staged", "load.published"]
"""The fault points between a load's steps."""


def filled(rows: int) -> MemoryTopics:
    """Returns topics that hold flights of three days."""
    topics = MemoryTopics()
    add_flights(topics, range(rows))
    return topics


def add_flights(topics: MemoryTopics, numbers: range) -> None:
    for number in numbers:
        topics.add(number % 2, flight(number), ts_ms=number % 3 * DAY_MS)
