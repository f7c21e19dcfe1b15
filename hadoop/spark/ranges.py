"""Reads one range of offsets as Arrow batches: in a worker of a load, and in a task of the source.

Kept apart from `tasks` because a worker of a load needs no typed values, whose imports cost it CPU time at each
start.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from klamm.core.client.cluster_client import ClusterClient, FetchedPartition
from klamm.core.client.consumer.range_reader import FETCH_BYTES, OffsetRange, RangeReader
from klamm.core.records.partition import TopicPartition

from ..options import ReadOptions
from .cluster import connect
from .columns import Values, spark_batches


class TaskClient:
    """`klamm.core.client.consumer.range_reader.FetchClient` over a cluster client."""

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


def read_range(options: ReadOptions, task: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All records of one range, in the columns of `schema`, which are some of the source's."""
    with connect(options.bootstrap, options.plugins) as client:
        yield from read_batches(client, options, task, schema, None)


def read_batches(
    client: ClusterClient, options: ReadOptions, task: OffsetRange, schema: pa.Schema, values: Values | None
) -> Iterator[pa.RecordBatch]:
    """As `read_range`, with the caller's client. `values` converts their values, which otherwise stay bytes."""
    reader = RangeReader(
        TaskClient(client),
        task,
        fail_on_data_loss=options.fail_on_data_loss,
        poll_timeout_s=options.poll_timeout_s,
        quarantine=options.quarantine,
    )
    return spark_batches(reader.arrow_batches(), task.partition, schema, values)
