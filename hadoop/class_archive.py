"""`python -m klamm.hadoop.class_archive`: makes the archive of Spark's classes (see `klamm.core.spark_jvm`).

A small job uses the parts of Spark that a load and a reader use: Python workers, a shuffle, writing and reading Parquet
by directory, and Hadoop's client.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.errors import KlammError
from klamm.core.records.partition import TopicPartition
from klamm.core.spark_jvm import archive_file, recording_options

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark import SparkContext

_END_S = 300.0
_NOWHERE = "hdfs://127.0.0.1:1/"
"""A port on which no process listens."""


def make_archive() -> Path | None:
    """Returns the archive's path; None without Java. Raises `KlammError` if no archive was written."""
    archive = archive_file()
    if archive is None or archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="spark-") as folder:
        made = Path(folder, "classes.jsa")
        _run_job(Path(folder, "lake"), recording_options(made))
        if not made.exists():
            raise KlammError(f"Java wrote no archive of Spark's classes to {made}")
        made.rename(archive)  # replaced atomically: another process may make one too
    return archive


def _run_job(path: Path, options: str) -> None:
    # Imported late: usually the archive exists, and importing Spark takes longer than checking that.
    from pyspark import SparkContext
    from pyspark.sql import functions as sf

    from .lake_session import configured_session
    from .load.spark_writer import FileFormat, count, write
    from .session import SparkSettings, start_session

    settings = SparkSettings("klamm class archive", "local[2]", "1g", {"spark.driver.extraJavaOptions": options})
    spark = start_session(settings)
    files = FileFormat("parquet", ("dt",), 128 << 20)
    session = configured_session(spark, files.target_size, {})
    schema = "_partition INT, _offset LONG, _timestamp TIMESTAMP, _size INT, text STRING, dt STRING"
    rows = session.range(0, 100, 1, 2).select(
        sf.lit(0).alias("_partition"),
        sf.col("id").alias("_offset"),
        sf.timestamp_millis("id").alias("_timestamp"),
        sf.lit(1).alias("_size"),
        sf.col("id").cast("string").alias("text"),
        sf.concat(sf.lit("day-"), sf.col("id") % 3).alias("dt"),
    )
    write(rows.mapInArrow(_same, schema), str(path), files, quarantine=False)
    count(
        session,
        str(path),
        files,
        has_bad=False,
        window_ms=600_000,
        ranges=[OffsetRange(TopicPartition("any", 0), 0, 100)],
    )
    session.read.parquet(str(path)).select(sf.concat_ws("/", "dt", "text")).toArrow()
    spark.sparkContext.parallelize([1, 2], 2).mapPartitions(_all).collect()
    _use_hdfs_client(spark.sparkContext)
    gateway = SparkContext._gateway
    spark.stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(_END_S)


def _use_hdfs_client(context: SparkContext) -> None:
    """Connects to a port where no NameNode listens: that fails, but loads most of the client's classes."""
    from py4j.protocol import Py4JJavaError

    jvm = context._jvm
    assert jvm is not None
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    for name in ("ipc.client.connect.max.retries", "dfs.client.retry.max.attempts"):
        configuration.set(name, "0")
    root = jvm.org.apache.hadoop.fs.Path(_NOWHERE)
    with suppress(Py4JJavaError):
        jvm.org.apache.hadoop.fs.FileContext.getFileContext(root.toUri(), configuration)
        jvm.org.apache.hadoop.fs.FileSystem.newInstance(root.toUri(), configuration).exists(root)


def _all(items: Iterable[int]) -> Iterator[int]:
    yield from items


def _same(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    yield from batches


if __name__ == "__main__":
    try:
        make_archive()
    except KlammError as error:
        sys.exit(f"klamm: {error}")
