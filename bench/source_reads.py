"""Measures the Spark source from fetched bytes to Spark's columns: as lists, record by record, and as Arrow.

`python bench/source_reads.py` prints a line for each size of record: rows per CPU second both ways, as medians of
alternating rounds, and their ratio. No broker and no Spark: the bytes are in memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from klamm.core.client.reader.batch_decoder import ReadBatch
from klamm.core.records import native
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.spark.arrow import spark_batches
from klamm.hadoop.spark.columns import source_columns
from klammbench.stored_answers import StoredAnswers

SHAPES = ((20, 2_000), (100, 1_000), (1_000, 100))
"""(bytes of a record, records of a batch)."""
PARTITION = TopicPartition("bench", 0)


def stored(record: int, records: int, answers: int, batches: int) -> StoredAnswers:
    """Returns answers with `batches` batches each; `record` is in bytes, `records` are those of a batch."""
    rows = [(1_700_000_000_000 + i, b"k%d" % i, os.urandom(record), ()) for i in range(records)]
    found: dict[int, bytes] = {}
    base = 0
    for _ in range(answers):
        parts = [encode_batch(rows, base_offset=base + i * records) for i in range(batches)]
        found[base] = b"".join(map(bytes, parts))
        base += records * batches
    return StoredAnswers(found, base, CodecTable())


def rows_per_second(log: StoredAnswers, schema: pa.Schema, arrow: bool) -> float:
    reader = log.reader(PARTITION)
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
        log = stored(record, records, answers=4, batches=max(4_000_000 // (record * records), 1))
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(args.rounds):
            for arrow in (False, True):
                found[arrow].append(rows_per_second(log, schema, arrow))
        lists, columns = statistics.median(found[False]), statistics.median(found[True])
        print(f"{record} bytes: lists {lists:,.0f} rows/s, Arrow {columns:,.0f} rows/s, {columns / lists:.1f} x")


if __name__ == "__main__":
    main()
