"""Reads ranges of offsets into chunks on disk: each has the rows of one directory in the order of their offsets.

A chunk is an Arrow stream in a file of its task; readers map the file and copy nothing. A task keeps at most
`BUFFER_BYTES` of rows in memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.errors import CorruptRecordError

from ..lake.layout import INVALID, NO_VALUE
from ..load.reading import read_records
from ..load.rows import RowFormat, RowMaker
from ..options import ReadOptions
from .tally import Offsets, OffsetTally, Tallies, add

BUFFER_BYTES: Final = 64 * 1024 * 1024
_FEW_ROWS: Final = 1_000
"""Batches smaller than this are joined: each column of a batch has a fixed cost equal to that of some hundred
values."""
_INVALID_PLACE: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one directory, given as `dt=2013-01-01/hr=05`, and one partition, in `file` from the position `at`."""

    directory: str
    partition: int
    first: int
    rows: int
    size: int
    file: str
    at: int


@dataclass(slots=True)
class Read:
    """The chunks that a task has written, and the ranges that it has read."""

    chunks: list[Chunk] = field(default_factory=list)
    tallies: Tallies = field(default_factory=dict)


class ReadRanges:
    """Reads the ranges with the given numbers; the function for `mapPartitions`. Chunks are written to files in
    `folder`."""

    def __init__(self, options: ReadOptions, ranges: Sequence[OffsetRange], format_: RowFormat, folder: str) -> None:
        self._options = options
        self._ranges = ranges
        self._format = format_
        self._folder = folder

    def __call__(self, numbers: Iterable[int]) -> Iterator[Read]:
        maker = RowMaker(self._format)
        for number in numbers:
            range_ = self._ranges[number]
            rows = _Rows(self._format, range_, Path(self._folder))
            for batch in read_records(self._options, range_, quarantine=False):
                rows.add(*maker.placed(batch))
            rows.flush()
            yield rows.read


class _Rows:
    """The rows of one range, separated by day or hour."""

    def __init__(self, format_: RowFormat, range_: OffsetRange, folder: Path) -> None:
        self._format = format_
        self._range = range_
        self._folder = folder
        self._held: dict[int, list[pa.RecordBatch]] = {}
        self._size = 0
        self._next = range_.start
        self.read = Read()

    def add(self, rows: pa.RecordBatch, places: pa.Array) -> None:
        offsets = rows.column("_offset").to_numpy()
        if not len(offsets):
            return
        if offsets[0] < self._next or offsets[-1] >= self._range.end or np.any(offsets[1:] <= offsets[:-1]):
            raise CorruptRecordError(f"{self._range.partition}: offsets are not in order from {self._next} on")
        self._next = int(offsets[-1]) + 1
        add(self.read.tallies, {self._range.partition.partition: OffsetTally.of(offsets)})
        for place, part in _split(rows, places):
            self._held.setdefault(place, []).append(part)
        self._size += rows.nbytes
        if self._size >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the rows in memory."""
        if not self._held:
            return
        path = self._folder / f"{uuid.uuid4().hex}.arrow"
        directories = _directories(self._format, list(self._held))
        with pa.OSFile(str(path), "wb") as sink:
            for directory, batches in zip(directories, self._held.values(), strict=True):
                self.read.chunks.append(self._write(sink, str(path), directory, batches))
        self._held, self._size = {}, 0

    def _write(self, sink: pa.NativeFile, path: str, directory: str, batches: list[pa.RecordBatch]) -> Chunk:
        table = pa.Table.from_batches(batches)
        if len(batches) > 1 and table.num_rows < _FEW_ROWS * len(batches):
            table = table.combine_chunks()
        at = sink.tell()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        first = batches[0].column("_offset")[0].as_py()
        return Chunk(
            directory, self._range.partition.partition, first, table.num_rows, sink.tell() - at, path, at
        )  # fmt: skip


def _split(rows: pa.RecordBatch, places: pa.Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields the rows of each place, in their order. Usually a batch has few places, each with adjacent rows."""
    codes = places.view(pa.int64()).fill_null(_INVALID_PLACE).to_numpy(zero_copy_only=False)
    starts = starts_of(codes)
    if len(set(codes[starts].tolist())) < len(starts):
        order = np.argsort(codes, kind="stable")
        rows, codes = rows.take(pa.array(order)), codes[order]
        starts = starts_of(codes)
    ends = [*starts[1:].tolist(), len(codes)]
    for start, end in zip(starts.tolist(), ends, strict=True):
        yield int(codes[start]), rows.slice(start, end - start)


def starts_of(*columns: Offsets) -> Offsets:
    """Returns the positions at which the value of a column changes."""
    changes = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def _directories(format_: RowFormat, places: Sequence[int]) -> list[str]:
    """Returns the directory names as Spark writes them."""
    known = pa.array([None if p == _INVALID_PLACE else p for p in places], pa.int64()).view(pa.timestamp("us"))
    absent = {"dt": INVALID}
    columns = [
        [f"{name}={absent.get(name, NO_VALUE) if value is None else value}" for value in column.to_pylist()]
        for name, column in zip(format_.partition_by, format_.directories(known), strict=True)
    ]
    return ["/".join(parts) for parts in zip(*columns, strict=True)]
