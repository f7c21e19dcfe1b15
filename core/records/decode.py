"""Reads the records of a batch and checks every length.

The claims of a batch (its count, lengths, deltas) are checked against its bytes; a wrong one is a
`CorruptRecordError` that names the partition, if the caller passed it, and the batch's base offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from operator import add
from typing import Final, NamedTuple, Protocol, cast

from ..errors import CorruptRecordError
from ..interfaces.codec import DecompressionBombError
from . import native
from .codecs import CodecTable
from .header import HEADER_SIZE, BatchHeader, Buffer, crc_matches
from .partition import TopicPartition
from .record import Headers, Record

__all__ = ["MAX_DECOMPRESSED", "Columns", "RecordArea", "RecordColumns", "decode_batch", "decode_columns", "read_area"]

MAX_DECOMPRESSED: Final = 128 * 1024 * 1024
"""The most bytes to which one batch may decompress, unless the caller passes another limit."""


class Columns(Protocol):
    """The records of a batch, or of several, column by column; all columns have the same length."""

    @property
    def offsets(self) -> Sequence[int]: ...

    @property
    def timestamps_ms(self) -> Sequence[int]: ...

    @property
    def keys(self) -> Sequence[bytes | None]: ...

    @property
    def values(self) -> Sequence[bytes | None]: ...

    @property
    def headers(self) -> Sequence[Headers]: ...

    @property
    def sizes(self) -> Sequence[int]:
        """Key plus value of each record, in bytes."""
        ...

    def part(self, first: int, last: int, /) -> Columns:
        """Records [first, last)."""
        ...


class RecordColumns(NamedTuple):
    """The records of one batch, column by column; all five lists have the same length."""

    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]

    @property
    def sizes(self) -> list[int]:
        values = _lengths(self.values)
        return list(map(add, _lengths(self.keys), values)) if any(self.keys) else values

    def part(self, first: int, last: int, /) -> RecordColumns:
        """Records [first, last)."""
        return RecordColumns(
            self.offsets[first:last],
            self.timestamps_ms[first:last],
            self.keys[first:last],
            self.values[first:last],
            self.headers[first:last],
        )

    def extend(self, more: RecordColumns) -> None:
        """Appends another batch's records in place."""
        self.offsets.extend(more.offsets)
        self.timestamps_ms.extend(more.timestamps_ms)
        self.keys.extend(more.keys)
        self.values.extend(more.values)
        self.headers.extend(more.headers)


def _lengths(items: list[bytes | None]) -> list[int]:
    """Returns the length of each item, 0 for null; usually few are null."""
    try:
        return list(map(len, cast("list[bytes]", items)))
    except TypeError:
        return [len(item or b"") for item in items]


def decode_batch(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    codecs: CodecTable,
    max_size: int = MAX_DECOMPRESSED,
    partition: TopicPartition | None = None,
) -> list[Record]:
    """Returns the records of the batch at `pos`. Checks the CRC; raises `UnsupportedCodecError` for an unknown
    codec.
    """
    return list(starmap(Record, zip(*decode_columns(buf, pos, header, codecs, max_size, partition), strict=True)))


def decode_columns(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    codecs: CodecTable,
    max_size: int = MAX_DECOMPRESSED,
    partition: TopicPartition | None = None,
) -> RecordColumns:
    """Returns the records as `decode_batch` does, without an object per record."""
    area = read_area(buf, pos, header, codecs, max_size, partition)
    try:
        return RecordColumns(*native.lists(*area))
    except CorruptRecordError as error:
        raise type(error)(_where(header, partition) + str(error)) from error


class RecordArea(NamedTuple):
    """A batch's uncompressed records, and the fields of its header that `native.lists` needs."""

    data: Buffer
    records: int
    base_offset: int
    last_delta: int
    base_timestamp: int
    fixed: bool
    """Every record's timestamp is `base_timestamp` (LogAppendTime)."""


def read_area(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    codecs: CodecTable,
    max_size: int = MAX_DECOMPRESSED,
    partition: TopicPartition | None = None,
) -> RecordArea:
    """Returns the records' bytes of the batch at `pos`, its CRC checked; raises the errors of `decode_batch`."""
    if not crc_matches(buf, pos, header):
        raise _corrupt(header, partition, "the CRC does not match the bytes")
    if header.record_count < 0:
        raise _corrupt(header, partition, f"it says that it holds {header.record_count} records")
    payload = memoryview(buf)[pos + HEADER_SIZE : pos + header.size]
    try:
        data = _unpacked(payload, header.codec_id, codecs, max_size)
    except CorruptRecordError as error:
        raise type(error)(_where(header, partition) + str(error)) from error
    fixed = header.log_append_time
    stamp = header.max_timestamp if fixed else header.base_timestamp
    return RecordArea(data, header.record_count, header.base_offset, header.last_offset_delta, stamp, fixed)


def _unpacked(payload: memoryview, codec_id: int, codecs: CodecTable, max_size: int) -> Buffer:
    if codec_id:
        return codecs.by_id(codec_id).decompress(payload, max_size)
    if len(payload) > max_size:
        raise DecompressionBombError(f"{len(payload)} bytes of records, more than the bound of {max_size}")
    return payload


def _where(header: BatchHeader, partition: TopicPartition | None) -> str:
    return f"{partition} offset {header.base_offset}: " if partition else f"batch at offset {header.base_offset}: "


def _corrupt(header: BatchHeader, partition: TopicPartition | None, what: str) -> CorruptRecordError:
    return CorruptRecordError(_where(header, partition) + what)
