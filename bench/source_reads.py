"""What the Spark source costs from fetched bytes to Spark's columns: as lists, record by record, and as Arrow.

`python bench/source_reads.py` prints a line for each size of record: rows per CPU second both ways, the median of the
rounds taken in turns, and their ratio. No broker and no Spark: the bytes are in memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from klamm.core.client.cluster_client import EpochEnd, FetchedPartition
from klamm.core.client.network.metadata import ClusterMetadata, ClusterView
from klamm.core.client.reader.batch_decoder import ReadBatch
from klamm.core.client.reader.range_reader import OffsetRange, RangeReader
from klamm.core.errors import ErrorCode
from klamm.core.records import native
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.spark.columns import source_columns, spark_batches

SHAPES = ((20, 2_000), (100, 1_000), (1_000, 100))
"""Bytes of a record, records of a batch."""
PARTITION = TopicPartition("bench", 0)


class Memory:
    """`FetchClient` that answers each fetch with the same number of batches."""

    codecs = CodecTable()

    def __init__(self, record: int, records: int, answers: int, batches: int) -> None:
        rows = [(1_700_000_000_000 + i, b"k%d" % i, os.urandom(record), ()) for i in range(records)]
        self.cluster = ClusterMetadata()
        self.answers: dict[int, bytes] = {}
        base = 0
        for _ in range(answers):
            parts = [encode_batch(rows, base_offset=base + i * records) for i in range(batches)]
            self.answers[base] = b"".join(map(bytes, parts))
            base += records * batches
        self.end = base

    def metadata(self, topics: Iterable[str]) -> ClusterView:  # noqa: ARG002
        return self.cluster.view

    def by_leader(self, partitions: Iterable[TopicPartition]) -> Mapping[int, list[TopicPartition]]:
        return {0: list(partitions)}

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:  # noqa: ARG002
        return {}

    def fetch(
        self,
        node_id: int,  # noqa: ARG002
        offsets: Mapping[TopicPartition, int],
        **_: int,
    ) -> Mapping[TopicPartition, FetchedPartition]:
        return {p: FetchedPartition(ErrorCode.none, self.end, 0, self.answers[at]) for p, at in offsets.items()}


def rows_per_second(log: Memory, schema: pa.Schema, arrow: bool) -> float:
    reader = RangeReader(log, OffsetRange(PARTITION, 0, log.end), fail_on_data_loss=True, poll_timeout_s=5.0)
    read: Iterator[ReadBatch] = reader.arrow_batches() if arrow else reader.batches()
    before = time.process_time()
    rows = sum(batch.num_rows for batch in spark_batches(read, PARTITION, schema))
    return rows / (time.process_time() - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--headers", action="store_true")
    args = parser.parse_args()
    schema = to_arrow_schema(source_columns(headers=args.headers, quarantine=False), timezone="UTC")
    print(f"records module: {native.IMPLEMENTATION}")
    for record, records in SHAPES:
        log = Memory(record, records, answers=4, batches=max(4_000_000 // (record * records), 1))
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(args.rounds):
            for arrow in (False, True):
                found[arrow].append(rows_per_second(log, schema, arrow))
        lists, columns = statistics.median(found[False]), statistics.median(found[True])
        print(f"{record} bytes: lists {lists:,.0f} rows/s, Arrow {columns:,.0f} rows/s, {columns / lists:.1f} x")


if __name__ == "__main__":
    main()
