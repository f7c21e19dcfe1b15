"""Writes a load's rows with Spark, clustered by directory, and counts the written rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as sf

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.interfaces.audit import NO_WINDOW, RangeCount, WindowCount

from ..lake.layout import BAD
from ..lake.manifest import UnopenedBatch
from ..publishing.interface import LakeError

_NO_MARKS: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
_COUNTED: Final = "_partition INT, _offset LONG, _timestamp TIMESTAMP, _size INT"


@dataclass(frozen=True, slots=True)
class FileFormat:
    """The files of the rows: `name` is the format's in Spark, `partition_by` the directories, `target_size` in
    bytes.
    """

    name: str
    partition_by: tuple[str, ...]
    target_size: int


def write(rows: DataFrame, path: str, files: FileFormat, quarantine: bool) -> None:
    """Writes all rows below `path`, in one job; with `quarantine`, those with an `_error` below `path`/_bad.

    Rows are clustered by directory first: without that each of n tasks writes a file into each of m directories. The
    shuffle splits a directory again if it would exceed the target size.
    """
    if not quarantine:
        write_clustered(rows, path, files)
        return
    kept = rows.persist()
    try:
        good = kept.filter(sf.col("_error").isNull()).drop("_error", "_value", "_end_offset")
        write_clustered(good, path, files)
        bad = kept.filter(sf.col("_error").isNotNull())
        if not bad.isEmpty():
            columns = ["_error", "_value", "_key", "_partition", "_offset", "_end_offset", "_timestamp", "_size"]
            _writer(bad.select(*columns).coalesce(1), files).save(f"{path}/{BAD}")
    finally:
        kept.unpersist()


def write_clustered(rows: DataFrame, path: str, files: FileFormat) -> None:
    """Writes rows below `path` into the directories of their columns `files.partition_by`."""
    clustered = rows.hint("rebalance", *files.partition_by)
    ordered = clustered.sortWithinPartitions(*files.partition_by, "_partition", "_offset")
    _writer(ordered, files).partitionBy(*files.partition_by).save(path)


def _writer(rows: DataFrame, files: FileFormat) -> DataFrameWriter:
    return rows.write.mode("append").format(files.name).options(**_NO_MARKS)


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of the written rows: the records of each range, the first offset of each partition with records, the
    batches that could not be opened (which are not records), the number of records set aside, and the first of
    these."""

    ranges: list[RangeCount]
    first: dict[int, int]
    unopened: list[UnopenedBatch]
    bad: int = 0
    first_bad: str | None = None

    @property
    def bad_share(self) -> tuple[int, int]:
        """Returns the numbers of unreadable and of all records; a batch that could not be opened counts by its
        offsets.
        """
        unopened = sum(batch.end - batch.start for batch in self.unopened)
        return self.bad + unopened, total_rows(self.ranges) + unopened


def count(
    session: SparkSession, path: str, files: FileFormat, has_bad: bool, window_ms: int, ranges: Iterable[OffsetRange]
) -> Counts:
    """Counts the written files by range and window; they are read back, so that only stored rows count.

    Raises `LakeError` if a row is outside its range, or occurs twice.
    """
    rows, set_aside = _records(session, path, files, has_bad)
    unopened: list[UnopenedBatch] = []
    records_aside, first_bad = 0, None
    if set_aside is not None:
        unopened = _unopened(set_aside)
        records_aside, first_bad = _set_aside(set_aside)
    millis = sf.unix_millis("_timestamp")
    window = sf.when(millis >= 0, millis - millis % window_ms).otherwise(NO_WINDOW)
    grouped = rows.groupBy(sf.col("_partition").alias("partition"), window.alias("window")).agg(
        sf.count("*").alias("count"),
        sf.sum("_size").alias("bytes"),
        sf.min("_offset").alias("first"),
        sf.max("_offset").alias("last"),
        sf.count_distinct("_offset").alias("offsets"),
    )
    counts, first = by_range(grouped.toArrow().to_pylist(), ranges, path)
    return Counts(counts, first, unopened, records_aside, first_bad)


def count_below(
    session: SparkSession, path: str, files: FileFormat, has_bad: bool, bounds: Mapping[int, int]
) -> dict[int, int]:
    """Returns for each partition the number of records in the written files below its bound."""
    rows, _ = _records(session, path, files, has_bad)
    below = [(sf.col("_partition") == number) & (sf.col("_offset") < bound) for number, bound in bounds.items()]
    found = rows.where(reduce(Column.__or__, below)).groupBy("_partition").count().collect()
    return dict.fromkeys(bounds, 0) | {row["_partition"]: row["count"] for row in found}


def _records(session: SparkSession, path: str, files: FileFormat, has_bad: bool) -> tuple[DataFrame, DataFrame | None]:
    """Returns the places of the written records, including those set aside; and the rows set aside, including batches,
    if there are any.
    """
    columns = ("_partition", "_offset", "_timestamp", "_size")
    rows = session.read.schema(with_directories(_COUNTED, files)).format(files.name).load(path).select(*columns)
    if not has_bad:
        return rows, None
    bad = session.read.schema(f"{_COUNTED}, _end_offset LONG, _error STRING").format(files.name)
    set_aside = bad.load(f"{path}/{BAD}")
    return rows.union(set_aside.where("_end_offset is null").select(*columns)), set_aside


def with_directories(columns: str, files: FileFormat) -> str:
    """Returns columns with those of the directories as text. If Spark infers their types, hours that are all null get a
    type that its ORC reader cannot read.
    """
    return ", ".join((columns, *(f"{name} STRING" for name in files.partition_by)))


def _set_aside(rows: DataFrame) -> tuple[int, str | None]:
    """Returns the number of records among these rows, and the first row, as `0 offset 17: why`."""
    place = sf.struct("_partition", "_offset", "_error")
    (found,) = rows.agg(
        sf.count_if(sf.col("_end_offset").isNull()).alias("bad"), sf.min(place).alias("first")
    ).collect()
    first = found["first"]
    return found["bad"], f"{first[0]} offset {first[1]}: {first[2]}" if first is not None else None


def _unopened(set_aside: DataFrame) -> list[UnopenedBatch]:
    found = (
        set_aside.where("_end_offset is not null").select("_partition", "_offset", "_end_offset", "_error").toArrow()
    )
    batches = [
        UnopenedBatch(partition=row["_partition"], start=row["_offset"], end=row["_end_offset"], reason=row["_error"])
        for row in found.to_pylist()
    ]
    return sorted(batches, key=lambda batch: (batch.partition, batch.start))


def by_range(
    windows_found: Iterable[Mapping[str, int]], ranges: Iterable[OffsetRange], path: str
) -> tuple[list[RangeCount], dict[int, int]]:
    """Converts grouped rows to counts of the ranges, and returns the first offset of each partition that has any.

    The rows have `partition`, `window`, `count`, `bytes`, `first` and `last` offset; `offsets` is the number of
    distinct ones, if that is not proven. Raises `LakeError` if a row is outside its range, or occurs twice.
    """
    found: dict[int, list[Mapping[str, int]]] = {}
    for row in windows_found:
        found.setdefault(row["partition"], []).append(row)
    first = {number: min(row["first"] for row in rows) for number, rows in found.items()}
    counts = []
    for r in ranges:
        rows = found.pop(r.partition.partition, [])
        for row in rows:
            if not r.start <= row["first"] <= row["last"] < r.end or row.get("offsets", row["count"]) != row["count"]:
                raise LakeError(
                    f"{path} holds rows of {r.partition} that are duplicates or outside [{r.start}, {r.end})"
                )
        windows = sorted((row["window"], row["count"], row["bytes"]) for row in rows)
        counts.append(RangeCount(r.partition, r.start, r.end, tuple(WindowCount(*w) for w in windows)))
    if found:
        raise LakeError(f"{path} holds rows of partitions that were not read: {sorted(found)}")
    return counts, first


def total_rows(counts: Iterable[RangeCount]) -> int:
    return sum(window.count for c in counts for window in c.windows)
