"""Reads one range of offsets as Arrow batches: in a worker of a load, and in a task of the source.

Kept apart from `tasks` because a worker of a load needs no typed values, whose imports cost it CPU time at each
start.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from klamm.core.client.reader.partition_reader import FetchClient
from klamm.core.client.reader.range_reader import OffsetRange, RangeReader

from ..options import ReadOptions
from .arrow import Values, spark_batches
from .cluster import connect


def read_range(options: ReadOptions, task: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields all records of one range, in the columns of `schema`, which are some of the source's."""
    with connect(options.bootstrap, options.plugins) as client:
        yield from read_batches(client, options, task, schema, None)


def read_batches(
    client: FetchClient, options: ReadOptions, task: OffsetRange, schema: pa.Schema, values: Values | None
) -> Iterator[pa.RecordBatch]:
    """Yields records as `read_range` does, with the caller's client. `values` converts the values, which otherwise stay
    bytes.
    """
    reader = RangeReader(
        client,
        task,
        fail_on_data_loss=options.fail_on_data_loss,
        poll_timeout_s=options.poll_timeout_s,
        quarantine=options.quarantine,
        isolation=options.isolation,
    )
    return spark_batches(reader.arrow_batches(), task.partition, schema, values)
