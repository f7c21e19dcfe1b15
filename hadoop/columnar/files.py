"""Writes the chunks of one directory as Parquet files, which are read back and counted.

Spark reads the files like its own: they have the same Parquet types, the configured codec, and Spark's metadata in
each footer.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
from pyspark.sql.pandas.types import from_arrow_schema

from klamm.core.errors import KlammError
from klamm.core.interfaces.audit import NO_WINDOW

from .chunks import Chunk, starts_of
from .tally import Offsets, OffsetTally, Tallies, add

GROUP_ROWS: Final = 262_144
_SCHEMA: Final = "org.apache.spark.sql.parquet.row.metadata"
_VERSION: Final = "org.apache.spark.version"
_COUNTED: Final = ("_partition", "_offset", "_timestamp", "_size")
_COUNT_ROWS: Final = 131_072


def spark_metadata(schema: pa.Schema) -> dict[str, str]:
    """Returns the schema as Spark writes it into footers, and the Spark version that determines the calendar of
    dates.
    """
    return {_SCHEMA: from_arrow_schema(schema).json(), _VERSION: pyspark.__version__}


@dataclass(frozen=True, slots=True)
class Window:
    """Records of one partition and one window of time."""

    partition: int
    window: int
    count: int
    bytes: int
    first: int
    last: int


Windows = dict[tuple[int, int], Window]
"""By partition and window."""


@dataclass(slots=True)
class Written:
    """A file, by its path below the load, and its content's counts."""

    name: str
    size: int
    windows: list[Window] = field(default_factory=list)
    tallies: Tallies = field(default_factory=dict)


class WriteFiles:
    """Writes the chunks of each given directory below `folder`; the function for `mapPartitions`."""

    def __init__(
        self, folder: str, codec: str, target_size: int, window_ms: int, metadata: Mapping[str, str] | None = None
    ) -> None:
        """`metadata`: further entries of each file's footer."""
        self._folder = folder
        self._metadata = dict(metadata or {})
        self._codec = codec
        self._target_size = target_size
        self._window_ms = window_ms

    def __call__(self, directories: Iterable[tuple[Chunk, ...]]) -> Iterator[Written]:
        """Writes and counts the files of each directory; its chunks are in the order of partition and offset."""
        for chunks in directories:
            for path in self._write(chunks):
                yield self._count(path)

    def _write(self, chunks: tuple[Chunk, ...]) -> Iterator[Path]:
        """Yields each file when it is complete."""
        writer: pq.ParquetWriter | None = None
        sink: Any = None
        for table in _groups(chunks):
            if writer is None:
                path = self._new_file(chunks[0].directory)
                sink = pa.OSFile(str(path), "wb")
                writer = pq.ParquetWriter(
                    sink, table.schema, compression=self._codec, store_schema=False, store_decimal_as_integer=True
                )
            writer.write_table(table, GROUP_ROWS)
            if sink.tell() >= self._target_size:
                self._close(writer, sink)
                writer = None
                yield path
        if writer is not None:
            self._close(writer, sink)
            yield path

    def _close(self, writer: pq.ParquetWriter, sink: pa.NativeFile) -> None:
        writer.add_key_value_metadata(self._metadata)
        writer.close()
        sink.close()

    def _new_file(self, directory: str) -> Path:
        folder = Path(self._folder, directory)
        folder.mkdir(parents=True, exist_ok=True)
        codec = "" if self._codec == "none" else f".{self._codec}"
        return folder / f"part-{uuid.uuid4().hex}{codec}.parquet"

    def _count(self, path: Path) -> Written:
        """Counts the rows of the file on disk. Raises `KlammError` if they are not in order, or occur twice."""
        written = Written(str(path.relative_to(self._folder)), path.stat().st_size)
        windows: Windows = {}
        before = (-1, -1)
        with pq.ParquetFile(path, memory_map=True) as file:
            for batch in file.iter_batches(_COUNT_ROWS, columns=list(_COUNTED), use_threads=False):
                partitions, offsets = (batch.column(name).to_numpy() for name in _COUNTED[:2])
                _check_order(path, before, partitions, offsets)
                before = int(partitions[-1]), int(offsets[-1])
                join(windows, _windows(batch, partitions, offsets, self._window_ms))
                for partition in np.unique(partitions).tolist():
                    add(written.tallies, {partition: OffsetTally.of(offsets[partitions == partition])})
        written.windows = list(windows.values())
        return written


def _groups(chunks: Iterable[Chunk]) -> Iterator[pa.Table]:
    """Yields tables of about one row group each."""
    held: list[pa.Table] = []
    rows = 0
    for chunk in chunks:
        table = _table(chunk)
        while table.num_rows:
            part = table.slice(0, GROUP_ROWS - rows)
            table = table.slice(part.num_rows)
            held.append(part)
            rows += part.num_rows
            if rows >= GROUP_ROWS:
                yield pa.concat_tables(held)
                held, rows = [], 0
    if held:
        yield pa.concat_tables(held)


def _table(chunk: Chunk) -> pa.Table:
    """Reads the chunk from the mapped file; its pages belong to the kernel."""
    source = pa.memory_map(chunk.file)
    source.seek(chunk.at)
    with pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False)) as stream:
        return stream.read_all()


def _check_order(path: Path, before: tuple[int, int], partitions: np.ndarray[Any, Any], offsets: Offsets) -> None:
    ahead = (int(partitions[0]), int(offsets[0])) > before
    same = partitions[1:] == partitions[:-1]
    ordered = np.where(same, offsets[1:] > offsets[:-1], partitions[1:] > partitions[:-1])
    if not (ahead and ordered.all()):
        raise KlammError(f"{path.name} holds rows that are duplicates or not in order")


def _windows(
    batch: pa.RecordBatch, partitions: np.ndarray[Any, Any], offsets: Offsets, window_ms: int
) -> Iterator[Window]:
    """Yields the counts for each partition and window; rows of one window need not be adjacent."""
    stamps = pc.fill_null(batch.column("_timestamp").cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    millis = np.floor_divide(stamps, 1000)
    windows = np.where(millis >= 0, millis - millis % window_ms, NO_WINDOW)
    sizes = batch.column("_size").to_numpy().astype(np.int64)
    starts = starts_of(partitions, windows)
    if len(set(zip(partitions[starts].tolist(), windows[starts].tolist(), strict=True))) < len(starts):
        order = np.lexsort((offsets, windows, partitions))
        partitions, windows, offsets, sizes = (a[order] for a in (partitions, windows, offsets, sizes))
        starts = starts_of(partitions, windows)
    ends = np.concatenate([starts[1:], [len(offsets)]])
    sums = np.add.reduceat(sizes, starts)
    for start, end, size in zip(starts.tolist(), ends.tolist(), sums.tolist(), strict=True):
        yield Window(
            int(partitions[start]), int(windows[start]), end - start, size, int(offsets[start]), int(offsets[end - 1])
        )


def join(to: Windows, more: Iterable[Window]) -> None:
    """Adds the counts of more windows."""
    for new in more:
        key = new.partition, new.window
        old = to.get(key, replace(new, count=0, bytes=0))
        first, last = min(old.first, new.first), max(old.last, new.last)
        to[key] = Window(*key, old.count + new.count, old.bytes + new.bytes, first, last)
