"""The imports of the Python processes that Spark starts for a stream: each process pays for them again."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from klamm.core.records.arrow import scalar

_READER = """
import pickle, sys
from klamm.hadoop.source import KlammDataSource
source = KlammDataSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"})
reader = pickle.loads(pickle.dumps(source.streamReader(source.schema())))
print(*sorted(sys.modules))
"""
_COLUMNS = """
import sys
from klamm.core.records.arrow import columns_to_arrow, arrow_columns
from klamm.hadoop.spark.columns import source_columns
from klamm.hadoop.spark.arrow import spark_batches
from klamm.core.client.reader.batch_decoder import ReadBatch
from klamm.core.records.partition import TopicPartition
from pyspark.sql.pandas.types import to_arrow_schema
schema = to_arrow_schema(source_columns(headers=False, quarantine=True), timezone="UTC")
read = ReadBatch(arrow_columns([]), False)
batches = list(spark_batches(iter([read]), TopicPartition("t", 0), schema))
print(*sorted(sys.modules))
"""


def loaded(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


def test_a_stream_reader_is_made_and_pickled_without_what_only_planning_and_reading_need() -> None:
    heavy = {"pyarrow", "pydantic", "numpy", "klamm.core.client.cluster_client", "klamm.hadoop.spark.sink"}
    assert not heavy & loaded(_READER)


def test_the_columns_of_a_batch_are_made_without_pandas() -> None:
    assert "pandas" not in loaded(_COLUMNS)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("flüge", pa.string()),
        ("", pa.string()),
        (None, pa.string()),
        (-1, pa.int32()),
        (2**31 - 1, pa.int32()),
        (-(2**63), pa.int64()),
        (None, pa.int64()),
    ],
)
def test_a_scalar_is_pyarrows(value: str | int | None, kind: pa.DataType) -> None:
    made = scalar(value, kind)
    assert made.type == kind
    assert made.equals(pa.scalar(value, kind))
    assert pa.repeat(made, 3).to_pylist() == [value] * 3
