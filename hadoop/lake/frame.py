"""Reads a topic of a lake as a DataFrame: its loads, or a generation and the loads after it, as of a load or an
instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from ..jvm_zone import check_zone
from ..publishing.interface import LakeError
from .columns import aligned, merged, quoted
from .files import lake_files
from .layout import TopicLayout
from .lineage import Chain
from .selection import DIRECTORIES, LOAD, AsOf, Part, Which, chains_of, select

_THREADS: Final = 8
"""The number of schemas that are read concurrently; each read is a small Spark job."""


def read_lake(
    spark: SparkSession,
    root: str,
    topic: str,
    as_of: AsOf = None,
    *,
    generation: Which = None,
    webhdfs_url: str | None = None,
) -> DataFrame:
    """Returns the rows of a topic's loads that are published now: all of each load or nothing, each row once.

    `as_of`: the number of the newest load to be read, or an instant, which leaves out loads made later; an instant
    without a zone is UTC. `generation`: read the loads that it contains from its larger files, and later loads from
    their own; "latest" is the newest one, or none if there is none. The rows are the same.

    Columns are those of the newest schema, then those that only older loads have; `dt` and `hr` are text. Loads
    published after this call are not read. The format is detected from the files; for avro the session needs spark-avro
    (`spark.jars`), for orc JVMs in UTC. Raises `ConfigError` when there is nothing to read.
    """
    selected = select(lake_files(root, webhdfs_url), TopicLayout(root, topic), as_of, generation)
    rows = frame(spark, selected.parts)
    return rows if selected.newest is None else rows.where(sf.col(LOAD) <= selected.newest)


def frame(spark: SparkSession, parts: Sequence[Part]) -> DataFrame:
    """Returns the rows of all parts, in the order of their loads, with the columns of all: `load`, `dt` and `hr`
    last.
    """
    check_zone(spark, {part.format for part in parts})
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda part: _schema(spark, part), parts))
    chains = chains_of(parts)
    target = merged(reversed(found), reversed(chains))
    directories = DIRECTORIES if any(part.partition_by == DIRECTORIES for part in parts) else DIRECTORIES[:1]
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, (part, schema) in enumerate(zip(parts, found, strict=True)):
        group = (part.base, part.format, part.partition_by, bool(part.files), schema.json(), part.avro_schema)
        alike.setdefault(group, []).append(index)
    frames = [
        _read(spark, [parts[index] for index in group], found[group[0]], (target, chains[group[0]]), directories)
        for group in alike.values()
    ]
    return reduce(DataFrame.unionAll, frames)


def _load(reader: DataFrameReader, parts: Sequence[Part]) -> DataFrame:
    """Returns the rows of parts of one kind. Raises `LakeError` if a file of a generation does not exist."""
    try:
        return reader.load([path for part in parts for path in part.sources])
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise LakeError(
            f"{parts[0].path} lacks a file that its manifest names: `klamm lake gc` removed it meanwhile (read again), "
            "or it is damaged (`klamm lake verify` says more)"
        ) from error


def _schema(spark: SparkSession, part: Part) -> StructType:
    """Returns the columns of the rows, without `load`."""
    schema = _load(spark.read.format(part.format), [replace(part, files=(part.sample,))]).schema
    return StructType([StructField(f.name, f.dataType) for f in schema if f.name != LOAD])


def _read(
    spark: SparkSession,
    parts: Sequence[Part],
    have: StructType,
    want: tuple[StructType, Chain],
    directories: tuple[str, ...],
) -> DataFrame:
    first = parts[0]
    # Set here, so that their types do not depend on the values.
    places: Mapping[str, StructField] = {
        LOAD: StructField(LOAD, IntegerType()),
        **{name: StructField(name, StringType()) for name in first.partition_by},
    }
    reader = spark.read.schema(StructType([*have.fields, *places.values()])).format(first.format)
    rows = _load(reader.option("basePath", first.base), parts)
    placed = [
        sf.col(quoted(name)) if name in places else sf.lit(None).cast("string").alias(name)
        for name in (LOAD, *directories)
    ]
    return rows.select(*aligned(have, *want), *placed)
