"""From rows to chunks to Parquet files, without a broker; Spark only reads what was written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.errors import CorruptRecordError, KlammError
from klamm.core.interfaces.audit import NO_WINDOW
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.columnar import chunks as chunks_module
from klamm.hadoop.columnar.chunks import Chunk, Read, ReadRanges
from klamm.hadoop.columnar.files import GROUP_ROWS, WriteFiles, Written, spark_metadata
from klamm.hadoop.columnar.job import ColumnarJob, ReadTasks, packed, pieces_of
from klamm.hadoop.columnar.tally import OffsetTally
from klamm.hadoop.load.progress import Progress
from klamm.hadoop.load.rows import TIMESTAMP, RowFormat
from klamm.hadoop.load.spark_writer import FileFormat
from klamm.hadoop.options import ReadOptions
from klamm.hadoop.publishing.interface import LakeError
from klamm.hadoop.publishing.local import LocalPublisher

HOUR_US = 3_600_000_000
WINDOW_MS = 600_000
FORMAT = RowFormat("t", ("dt", "hr"), None, {}, "", (), 0, 10**16, quarantine=False)


def records(partition: int, offsets: range, instants_us: list[int | None]) -> pa.RecordBatch:
    rows = len(offsets)
    columns = [
        pa.nulls(rows, pa.binary()),
        pa.array([b"%d" % n for n in offsets], pa.binary()),
        pa.array([partition] * rows, pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array(instants_us, TIMESTAMP),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value", "partition", "offset", "timestamp"])


def range_of(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition("t", partition), start, end)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads batches as one range each."""

    def made(*batches: list[pa.RecordBatch]) -> list[Read]:
        ranges = [range_of(b[0].column("partition")[0].as_py(), 0, 10**9) for b in batches]
        given = {id(range_): found for range_, found in zip(ranges, batches, strict=True)}
        monkeypatch.setattr(chunks_module, "read_records", lambda options, range_, quarantine: iter(given[id(range_)]))
        folder = tmp_path / "chunks"
        folder.mkdir(exist_ok=True)
        options = ReadOptions("nowhere", (), fail_on_data_loss=True, quarantine=False)
        return list(ReadRanges(options, ranges, FORMAT, str(folder))(range(len(ranges))))

    return made


def written(tmp_path: Path, reads: list[Read], target_size: int = 2**27) -> list[Written]:
    pieces = pieces_of([chunk for r in reads for chunk in r.chunks], target_size)
    return list(WriteFiles(str(tmp_path / "lake"), "snappy", target_size, WINDOW_MS)(pieces))


def rows_of(tmp_path: Path, file: Written) -> list[tuple[int, int, bytes]]:
    table = pq.ParquetFile(tmp_path / "lake" / file.name).read()
    return [(r["_partition"], r["_offset"], r["value"]) for r in table.to_pylist()]


def test_a_directorys_rows_of_all_partitions_are_one_file_by_partition_and_offset(tmp_path: Path, read: Any) -> None:
    times: list[int | None] = [n * HOUR_US // 4 for n in range(8)]
    reads = read([records(1, range(8), times)], [records(0, range(4, 12), times)])
    files = {file.name.rpartition("/")[0]: file for file in written(tmp_path, reads)}
    assert sorted(files) == ["dt=1970-01-01/hr=00", "dt=1970-01-01/hr=01"]
    assert rows_of(tmp_path, files["dt=1970-01-01/hr=01"]) == [
        *((0, n, b"%d" % n) for n in range(8, 12)),
        *((1, n, b"%d" % n) for n in range(4, 8)),
    ]


def test_times_that_go_to_and_fro_and_none_at_all(tmp_path: Path, read: Any) -> None:
    times = [HOUR_US, 0, None, HOUR_US, 0, None]
    files = written(tmp_path, read([records(0, range(6), times)]))
    assert {file.name.rpartition("/")[0]: [row[1] for row in rows_of(tmp_path, file)] for file in files} == {
        "dt=1970-01-01/hr=00": [1, 4],
        "dt=1970-01-01/hr=01": [0, 3],
        "dt=__invalid__/hr=__HIVE_DEFAULT_PARTITION__": [2, 5],
    }


def test_a_file_is_counted_by_partition_and_window(tmp_path: Path, read: Any) -> None:
    times = [0, 700_000_000, 1, None]
    files = written(tmp_path, read([records(0, range(4), times)]))
    windows = sorted((w.window, w.count, w.bytes, w.first, w.last) for file in files for w in file.windows)
    assert windows == [(NO_WINDOW, 1, 1, 3, 3), (0, 2, 2, 0, 2), (600_000, 1, 1, 1, 1)]


def test_what_is_written_has_the_tally_of_what_was_read(tmp_path: Path, read: Any) -> None:
    reads = read([records(0, range(0, 100, 3), [0] * 34)], [records(2, range(7), [0] * 7)])
    (file,) = written(tmp_path, reads)
    assert file.tallies == {0: reads[0].tallies[0], 2: reads[1].tallies[2]}


def test_a_tally_tells_sets_of_offsets_apart() -> None:
    whole = OffsetTally.of(np.arange(1000))
    assert whole == OffsetTally.of(np.arange(400, 1000)) + OffsetTally.of(np.arange(400))
    assert whole != OffsetTally.of(np.concatenate([np.arange(999), [998]]))
    assert OffsetTally.of(np.array([1, 4])) != OffsetTally.of(np.array([2, 3]))


def test_a_task_keeps_no_more_in_memory_than_it_may(tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks_module, "BUFFER_BYTES", 1)
    reads = read([records(0, range(n, n + 5), [0] * 5) for n in range(0, 20, 5)])
    assert [chunk.first for chunk in reads[0].chunks] == [0, 5, 10, 15]
    (file,) = written(tmp_path, reads)
    assert [row[1] for row in rows_of(tmp_path, file)] == list(range(20))


def test_a_directory_that_passes_the_target_size_is_several_files(tmp_path: Path, read: Any) -> None:
    rows = GROUP_ROWS + 10
    reads = read([records(0, range(rows), [0] * rows)], [records(1, range(5), [0] * 5)])
    files = written(tmp_path, reads, target_size=1)
    held = [rows_of(tmp_path, file) for file in files]
    assert [len(found) for found in held] == [GROUP_ROWS, 10, 5]
    assert all(one < other for one, other in pairwise(row for found in held for row in found))


def test_offsets_out_of_order_or_of_another_range_are_refused(read: Any) -> None:
    with pytest.raises(CorruptRecordError, match="t-0: offsets are not in order"):
        read([records(0, range(5, 9), [0] * 4), records(0, range(8, 12), [0] * 4)])


def test_rows_that_are_there_twice_are_refused(tmp_path: Path, read: Any) -> None:
    reads = read([records(0, range(5), [0] * 5)])
    with pytest.raises(KlammError, match="duplicates or not in order"):
        list(WriteFiles(str(tmp_path / "lake"), "snappy", 2**27, WINDOW_MS)([tuple(reads[0].chunks * 2)]))


def test_bins_are_about_even_and_none_is_empty() -> None:
    assert packed({0: 5, 1: 1, 2: 4, 3: 2}, 2) == [[0, 1], [2, 3]]
    assert packed({0: 5}, 3) == [[0]]
    assert packed({}, 3) == []


def test_the_pieces_of_a_large_directory_can_be_written_at_once() -> None:
    made = [Chunk("dt=a", 0, first, 10, 100, "f", 0) for first in (30, 10, 20)] + [Chunk("dt=b", 0, 0, 1, 1, "f", 0)]
    assert [[c.first for c in piece] for piece in pieces_of(made, 60)] == [[10, 20], [30], [0]]
    assert [[c.first for c in piece] for piece in pieces_of(made, 600)] == [[10, 20, 30], [0]]


RICH = """{"type": "record", "name": "Rich", "fields": [
  {"name": "truth", "type": ["null", "boolean"]}, {"name": "long", "type": ["null", "long"]},
  {"name": "single", "type": "float"}, {"name": "double", "type": "double"},
  {"name": "text", "type": ["null", "string"]}, {"name": "raw", "type": "bytes"},
  {"name": "day", "type": {"type": "int", "logicalType": "date"}},
  {"name": "instant", "type": {"type": "long", "logicalType": "timestamp-micros"}},
  {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
  {"name": "small", "type": {"type": "bytes", "logicalType": "decimal", "precision": 7, "scale": 2}},
  {"name": "large", "type": {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}},
  {"name": "list", "type": ["null", {"type": "array", "items": ["null", "int"]}]},
  {"name": "map", "type": {"type": "map", "values": "string"}},
  {"name": "either", "type": ["int", "string"]},
  {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": ["null", "int"]}]}}
]}"""


def test_spark_reads_the_files_as_those_that_it_writes_itself(tmp_path: Path, spark: SparkSession) -> None:
    format_ = replace(FORMAT, reader=RICH)
    full = {
        "truth": True, "long": 2**40, "single": 1.5, "double": -2.25, "text": "Zürich", "raw": b"\x00\xff",
        "day": date(2013, 1, 1), "instant": datetime(2013, 1, 1, 12, tzinfo=UTC), "local": datetime(1905, 6, 30, 1),  # noqa: DTZ001
        "small": Decimal("12345.67"), "large": Decimal(10**37), "list": [1, None], "map": {"a": "b", "c": ""},
        "either": {"member0": None, "member1": "x"}, "inner": {"x": None}, "_key": b"k", "_partition": 0,
        "_offset": 0, "_timestamp": datetime(2013, 1, 1, tzinfo=UTC), "_size": 9,
    }  # fmt: skip
    nulls = {**dict.fromkeys(full), "_partition": 0, "_offset": 1, "_size": 0}
    table = pa.Table.from_pylist([full, nulls], format_.columns())
    held = chunks_module._Rows(format_, range_of(0, 0, 2), tmp_path)
    for batch in table.to_batches():
        held.add(batch, pa.array([0] * batch.num_rows, pa.timestamp("us")))
    held.flush()
    metadata = spark_metadata(format_.columns())
    (file,) = WriteFiles(str(tmp_path / "lake"), "snappy", 2**27, WINDOW_MS, metadata)([tuple(held.read.chunks)])
    ours = spark.read.parquet(str(tmp_path / "lake" / file.name))
    spark.createDataFrame(
        table.to_pylist(maps_as_pydicts="strict"), from_arrow_schema(format_.columns())
    ).write.parquet(str(tmp_path / "spark"))
    theirs = spark.read.parquet(str(tmp_path / "spark"))
    assert ours.schema == theirs.schema
    assert ours.orderBy("_offset").collect() == theirs.orderBy("_offset").collect()


@pytest.fixture
def columnar() -> ColumnarJob:
    files = FileFormat("parquet", ("dt", "hr"), 2**27)
    options = ReadOptions("nowhere", (), fail_on_data_loss=True, quarantine=False)
    return ColumnarJob(
        LocalPublisher(), files, lambda ranges: ReadTasks(options, ranges), window_ms=WINDOW_MS, progress=Progress()
    )


def test_a_file_that_no_task_has_written_ends_the_load(tmp_path: Path, read: Any, columnar: ColumnarJob) -> None:
    reads = read([records(0, range(5), [0] * 5)])
    files = written(tmp_path, reads)
    lake = str(tmp_path / "lake")
    ranges = [range_of(0, 0, 5)]
    counts = columnar._prove(lake, ranges, reads[0].tallies, files)
    assert (counts.first, counts.ranges[0].windows[0].count) == ({0: 0}, 5)
    with pytest.raises(LakeError, match="does not hold exactly the rows"):
        columnar._prove(lake, ranges, {0: OffsetTally.of(np.arange(6))}, files)
    with pytest.raises(LakeError, match="duplicates or outside"):
        columnar._prove(lake, [range_of(0, 1, 5)], reads[0].tallies, files)
    (tmp_path / "lake" / "part-other.parquet").write_bytes(b"")
    with pytest.raises(LakeError, match="other files than those that were written"):
        columnar._prove(lake, ranges, reads[0].tallies, files)


@pytest.mark.parametrize(
    ("master", "settings", "serves"),
    [
        ("local[2]", {}, True),
        ("local", {"spark.sql.parquet.compression.codec": "zstd"}, True),
        ("local[2]", {"spark.sql.parquet.compression.codec": "lz4_raw"}, False),
        ("local[2]", {"spark.hadoop.parquet.block.size": "1"}, False),
        ("local-cluster[2,1,1024]", {}, False),
        ("yarn", {}, False),
    ],
)
def test_who_writes(columnar: ColumnarJob, master: str, settings: dict[str, str], serves: bool) -> None:
    conf = SimpleNamespace(getAll=lambda: list(settings.items()))
    context = cast("SparkContext", SimpleNamespace(master=master, getConf=lambda: conf))
    assert columnar.serves(context, FORMAT) is serves
