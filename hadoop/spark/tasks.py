"""The task of a batch or of a micro-batch: it reads one range of offsets."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.errors import DataLossError
from klamm.core.client.reader.range_reader import OffsetRange

from ..options import SourceOptions
from .cluster import connect_source
from .ranges import read_batches

_log = logging.getLogger(__name__)


def read_task(options: SourceOptions, columns: StructType, task: OffsetRange | None) -> Iterator[pa.RecordBatch]:
    """Reads the range of one task of the source. Spark makes a task of "no partitions", with the value None."""
    if task is None:
        return
    schema = to_arrow_schema(columns, timezone="UTC")
    with connect_source(options) as client:
        if not _is_same_topic(client, task, options.fail_on_data_loss):
            return
        values = None
        if options.typing is not None:
            from .typed import RegisteredSchemas, ValueReader  # its imports cost each worker time

            values = ValueReader(RegisteredSchemas(client, options.typing, options.plugins), task.partition, columns)
        yield from read_batches(client, options.reading, task, schema, values)
        # A Fetch identifies a topic by its name alone: the records may be of a topic that replaced it meanwhile.
        _is_same_topic(client, task, strict=True)


def _is_same_topic(client: ClusterClient, task: OffsetRange, strict: bool) -> bool:
    topic = task.partition.topic
    if task.topic_id is None or client.topic_ids([topic]).get(topic) == task.topic_id:
        return True
    error = replaced(topic)
    if strict:
        raise error
    _log.warning("%s", error)
    return False


def replaced(topic: str) -> DataLossError:
    """Returns the error for offsets of a topic that no longer exists."""
    return DataLossError(
        f"topic {topic!r} was deleted, or deleted and created again: its offsets are not those of the plan or the "
        "checkpoint; failOnDataLoss=false continues with the present topic, from its beginning"
    )
