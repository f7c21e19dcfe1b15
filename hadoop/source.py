"""`klamm`, a Spark data source: topics as a DataFrame, with the options and columns of Spark's Kafka source.

    spark.dataSource.register(KlammDataSource)
    spark.read.format("klamm").option("kafka.bootstrap.servers", "…").option("subscribe", "flights").load()

A record without a timestamp, or with one that microseconds since the epoch cannot hold, has a null `timestamp`.

With `onBadRecord` quarantine there are two more columns, null for a record: a batch that cannot be opened is one row,
with the reason in `error`, the offsets [`offset`, `endOffset`) and the batch's bytes in `value`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from klamm.core.client.cluster_client import EARLIEST, LATEST, ClusterClient, FetchedPartition
from klamm.core.errors import ConfigError
from klamm.core.plugins import plugin_host
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.fetch import FETCH_BYTES, DataLossError, RangeReader, ReadBatch
from klamm.hadoop.options import Offsets, ReadOptions, SourceOptions, parse_options
from klamm.hadoop.plan import OffsetRange, capped, split

COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
HEADERS: Final = ", headers array<struct<key: string, value: binary>>"
QUARANTINED: Final = ", error string, endOffset long"
ROWS_PER_BATCH: Final = 20_000
BYTES_PER_BATCH: Final = 16 * 1024 * 1024
_MICROS: Final = 1000
_MAX_MS: Final = (2**63 - 1) // _MICROS


class KlammDataSource(DataSource):
    """Batch reads. Options are checked when the DataFrame is made, and offsets resolved once."""

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> str:
        options = parse_options(self.options)
        return COLUMNS + (HEADERS if options.headers else "") + (QUARANTINED if options.quarantine else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        return KlammReader(parse_options(self.options), schema)


class RangePartition(InputPartition):
    """A task."""

    def __init__(self, range_: OffsetRange) -> None:
        super().__init__(range_)


class KlammReader(DataSourceReader):
    """Plans in the driver, reads in the tasks; what is pickled is the options alone."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with connect(options.bootstrap, options.plugins) as client:
            ranges = planned(client, options)
        tasks = split(capped(ranges, options.limit), options.min_tasks, options.max_offsets_per_task)
        # Spark makes a task of "no partitions", with the value None.
        return [RangePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: OffsetRange | None = partition.value
        if task is not None:
            yield from read_range(self._options.reading, task, to_arrow_schema(self._schema, timezone="UTC"))


def read_range(options: ReadOptions, task: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All records of one range, in the columns of `schema`, which are some of the source's."""
    with connect(options.bootstrap, options.plugins) as client:
        reader = RangeReader(
            TaskClient(client),
            task,
            fail_on_data_loss=options.fail_on_data_loss,
            poll_timeout_s=options.poll_timeout_s,
            quarantine=options.quarantine,
        )
        yield from to_arrow(reader.batches(), task.partition, schema)


class TaskClient:
    """`klamm.hadoop.fetch.FetchClient` over a cluster client."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self.codecs = client.codecs

    def leader_of(self, partition: TopicPartition) -> int:
        return next(iter(self._client.by_leader([partition])))

    def forget(self, topic: str) -> None:
        self._client.cluster.forget([topic])

    def fetch_one(self, node_id: int, partition: TopicPartition, offset: int) -> FetchedPartition:
        fetched = self._client.fetch(
            node_id, {partition: offset}, max_bytes=FETCH_BYTES, partition_max_bytes=FETCH_BYTES
        )
        return fetched[partition]


def connect(bootstrap: str, plugins: tuple[str, ...] = ()) -> ClusterClient:
    """A client that knows every codec of the process's plugins."""
    codecs = plugin_host(plugins).codecs
    table = CodecTable(codecs.create(name) for name in codecs.names())
    return ClusterClient(bootstrap, codecs=table, client_id="klamm-spark")


def planned(client: ClusterClient, options: SourceOptions) -> list[OffsetRange]:
    """The ranges that the options ask for, as the log is now. `DataLossError` when they begin before the log does."""
    partitions = [tp for topic in options.topics for tp in client.partitions(topic)] or list(options.assigned)
    client.by_leader(partitions)  # unknown topics and partitions are named here
    earliest = edges(client, partitions, EARLIEST)
    latest = edges(client, partitions, LATEST)
    ranges = []
    for tp in partitions:
        start = _offset(options.starting, tp, "startingOffsets", earliest[tp], latest[tp])
        end = _offset(options.ending, tp, "endingOffsets", earliest[tp], latest[tp])
        if options.fail_on_data_loss and not earliest[tp] <= start <= max(start, end) <= latest[tp]:
            raise DataLossError(
                f"{tp}: asked for the offsets {start} to {end}, the log has {earliest[tp]} to {latest[tp]}; "
                "failOnDataLoss=false reads what is there"
            )
        ranges.append(OffsetRange(tp, max(start, earliest[tp]), min(end, latest[tp])))
    return ranges


def edges(client: ClusterClient, partitions: list[TopicPartition], edge: int) -> dict[TopicPartition, int]:
    """`EARLIEST` or `LATEST` of each partition."""
    return {tp: offset for tp, (offset, _) in client.list_offsets(dict.fromkeys(partitions, edge)).items()}


def _offset(given: Offsets, tp: TopicPartition, name: str, earliest: int, latest: int) -> int:
    asked = given if isinstance(given, int) else given.get(tp)
    if asked is None:
        raise ConfigError(f"klamm source: {name} says nothing of {tp}; it must name every partition that is read")
    return {EARLIEST: earliest, LATEST: latest}.get(asked, asked)


def to_arrow(batches: Iterator[ReadBatch], partition: TopicPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Record batches of a useful size: small log batches are put together."""
    pending: list[ReadBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows += len(batch.columns.offsets)
        size += sum(len(value) for value in batch.columns.values if value)
        if rows >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
            yield _arrow_batch(pending, partition, schema)
            pending, rows, size = [], 0, 0
    if rows:
        yield _arrow_batch(pending, partition, schema)


def _arrow_batch(batches: list[ReadBatch], partition: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    def every(index: int) -> list[Any]:
        return [item for batch in batches for item in batch.columns[index]]

    offsets = every(0)
    columns: Mapping[str, list[Any]] = {
        "key": every(2),
        "value": every(3),
        "topic": [partition.topic] * len(offsets),
        "partition": [partition.partition] * len(offsets),
        "offset": offsets,
        "timestamp": [ms * _MICROS if 0 <= ms <= _MAX_MS else None for ms in every(1)],
        "timestampType": [int(b.log_append_time) for b in batches for _ in b.columns.offsets],
        "headers": [[{"key": k, "value": v} for k, v in found] for found in every(4)]
        if "headers" in schema.names
        else [],
        "error": [b.unreadable.reason if b.unreadable else None for b in batches for _ in b.columns.offsets],
        "endOffset": [b.unreadable.end if b.unreadable else None for b in batches for _ in b.columns.offsets],
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)
