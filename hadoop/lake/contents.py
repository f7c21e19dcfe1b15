"""Reads a whole data file of a load without Spark, and returns the source of each row: its partition and offset.

Every column is decoded, and page checksums are verified, so that a truncated or changed file is detected; only the
lake's own columns are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, NamedTuple, cast

import fastavro
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import orc, parquet

from ..publishing.interface import LakeError
from .files import LakeFiles

Longs = npt.NDArray[np.int64]
NONE: Final = np.iinfo(np.int64).min
"""The number that represents null."""
_NEEDED: Final = {
    "_partition": pa.int64(),
    "_offset": pa.int64(),
    "_timestamp": pa.timestamp("us"),
    "_size": pa.int64(),
}
END_OFFSET: Final = "_end_offset"
LOAD: Final = "load"
_MORE: Final = {END_OFFSET: pa.int64(), LOAD: pa.int64()}
"""Columns that only some files have: files below `_bad`, and files of generations."""
_BATCH_ROWS: Final = 65_536
_TOO_FAR: Final = "out of range for nanosecond resolution"
"""The text of pyarrow's error for an ORC timestamp that it cannot represent."""


class FileRows(NamedTuple):
    """A file's rows, column by column; null is `NONE`. `timestamp` in microseconds. `end_offset` is set for a batch
    that could not be opened, which is no record. `load` is set in the files of a generation."""

    partition: Longs
    offset: Longs
    timestamp: Longs
    size: Longs
    end_offset: Longs
    load: Longs

    def where(self, wanted: npt.NDArray[np.bool_]) -> FileRows:
        return FileRows(*(column[wanted] for column in self))

    @property
    def number(self) -> int:
        return len(self.offset)


def read_rows(files: LakeFiles, path: str, more: str | None = None) -> FileRows:
    """Returns the rows. Raises `LakeError` in one line if the file cannot be read to its end, or lacks a column.
    `more`: `END_OFFSET`, `LOAD`, or neither.
    """
    reader = _READERS.get(path.rpartition(".")[2])
    if reader is None:
        raise LakeError(f"{path} is not a .parquet, .orc or .avro file")
    wanted = {**_NEEDED, **({more: _MORE[more]} if more else {})}
    try:
        with files.open(path) as file:
            columns = [_columns(batch, wanted) for batch in reader(file)]
    except LakeError:
        raise
    except KeyError as error:
        raise LakeError(f"{path} has no column {error.args[0]}") from error
    except Exception as error:  # fastavro may raise any exception on damaged data
        raise LakeError(
            f"{path} cannot be read: {str(error).strip().splitlines()[0][:200] or type(error).__name__}"
        ) from error
    if not columns:
        return FileRows(*([np.empty(0, np.int64)] * len(FileRows._fields)))
    return FileRows(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))


def _columns(batch: pa.RecordBatch | pa.Table, wanted: dict[str, pa.DataType]) -> list[Longs]:
    found = {name: np.full(batch.num_rows, NONE) for name in (*_NEEDED, *_MORE)}
    for name, kind in wanted.items():
        if name not in batch.schema.names:
            raise KeyError(name)
        column = batch.column(name)
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
        found[name] = np.asarray(column.cast(pa.int64()).fill_null(NONE), np.int64)
    return list(found.values())


def _parquet(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    opened = parquet.ParquetFile(file, page_checksum_verification=True)
    yield from opened.iter_batches(batch_size=_BATCH_ROWS)


def _orc(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    opened = orc.ORCFile(file)
    for stripe in range(opened.nstripes):
        try:
            yield opened.read_stripe(stripe)
        except pa.ArrowInvalid as error:
            if _TOO_FAR not in str(error):
                raise
            yield _near_columns(opened, stripe)


def _near_columns(opened: orc.ORCFile, stripe: int) -> pa.RecordBatch:
    """Reads the file without columns that have a timestamp beyond the range of pyarrow's nanoseconds, such as
    9999-12-31; the lake's own columns are required."""
    columns: dict[str, pa.Array] = {}
    for name in opened.schema.names:
        try:
            columns[name] = opened.read_stripe(stripe, columns=[name]).column(0)
        except pa.ArrowInvalid as error:
            if _TOO_FAR not in str(error):
                raise
            if name in _NEEDED:
                raise ValueError(f"ORC timestamps can be read only from 1677-09-22 to 2262-04-11; {error}") from error
    return pa.RecordBatch.from_pydict(columns)


def _avro(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, object]] = []
    names = [*_NEEDED, *_MORE]
    for record in cast("Iterator[dict[str, object]]", fastavro.reader(file)):
        rows.append({name: record[name] for name in names if name in record})
        if len(rows) == _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(rows)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows)


_READERS: Final[dict[str, Callable[[BinaryIO], Iterator[pa.RecordBatch]]]] = {
    "parquet": _parquet,
    "orc": _orc,
    "avro": _avro,
}
