"""Opens the record batches of a Fetch response: as lists, as Arrow columns, or not at all.

A batch that cannot be opened although its CRC matches (its bytes are as its producer sent them, and hold no records)
is an error, or is passed on unopened if the caller asks for that. A batch whose CRC does not match is always an
error: another replica's copy may be good.

Does no I/O. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...errors import CorruptRecordError
from ...records.codecs import CodecTable
from ...records.decode import Columns, RecordArea, RecordColumns, decode_columns, read_area
from ...records.header import BatchHeader, crc_matches, iter_headers
from ...records.partition import TopicPartition

__all__ = ["JOINED_BYTES", "NO_END", "BatchDecoder", "Cursor", "RawBatch", "ReadBatch", "Unreadable"]

JOINED_BYTES: Final = 16 * 1024 * 1024
"""The number of bytes of uncompressed records after which `arrow_batches` starts another table."""
NO_END: Final = 2**63 - 1
"""An end of the wanted offsets that means no limit."""


@dataclass(slots=True)
class Cursor:
    """The next offset to read, and the leader epoch of the batch before it or a later one (-1: unknown)."""

    offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The reason why a batch cannot be opened, and one past its last offset within the range."""

    reason: str
    end: int


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """The wanted records of one batch or of several, and whether the broker set their timestamps. With `unreadable`
    the columns have one row for an unreadable batch: its first wanted offset, its base timestamp, and as value the
    batch's bytes."""

    columns: Columns
    log_append_time: bool
    unreadable: Unreadable | None = None


class RawBatch(NamedTuple):
    """An unopened batch: the data that contains it, its position in it, and its header."""

    data: bytes
    pos: int
    header: BatchHeader


class BatchDecoder:
    """Decodes the batches of one partition.

    Each method reads whole batches from the cursor's offset up to `end`, leaves out control batches, and moves the
    cursor past a batch when the caller asks for what follows it. A trailing partial batch is ignored.

    `quarantine`: a batch that cannot be opened is passed on as `Unreadable`. `hint` ends the error that is raised
    otherwise: what the user can do.
    """

    def __init__(
        self, partition: TopicPartition, codecs: CodecTable, *, quarantine: bool = False, hint: str = ""
    ) -> None:
        self._partition = partition
        self._codecs = codecs
        self._quarantine = quarantine
        self._hint = hint

    def batches(self, data: bytes, cursor: Cursor, end: int = NO_END) -> Iterator[ReadBatch]:
        """Yields each batch by itself, as lists. Raises `CorruptRecordError`, which names the partition and the
        offset.
        """
        for pos, header, first in _wanted(data, cursor, end):
            yield self._open(data, pos, header, first, end)

    def arrow_batches(self, data: bytes, cursor: Cursor, end: int = NO_END) -> Iterator[ReadBatch]:
        """Yields many batches joined as one `ArrowColumns`, without a Python object for each record. Needs pyarrow.

        Batches are joined up to `JOINED_BYTES`, if the broker has set the timestamps of all or of none; one that
        cannot be opened is returned alone.
        """
        joined = _Joined(end)
        for pos, header, first in _wanted(data, cursor, end):
            if not joined.takes(header):
                yield from self._flush(joined, data)
                joined = _Joined(end)
            try:
                area = read_area(data, pos, header, self._codecs, partition=self._partition)
            except CorruptRecordError:
                yield from self._flush(joined, data)
                joined = _Joined(end)
                yield self._open(data, pos, header, first, end)
            else:
                joined.add(area, pos, header, first)
        yield from self._flush(joined, data)

    def raw_batches(self, data: bytes, cursor: Cursor, end: int = NO_END) -> Iterator[RawBatch]:
        """Yields the batches that overlap the wanted offsets, unopened."""
        for pos, header, _ in _wanted(data, cursor, end):
            yield RawBatch(data, pos, header)

    def _flush(self, joined: _Joined, data: bytes) -> Iterator[ReadBatch]:
        if not joined.sources:
            return
        try:
            columns = joined.columns()
        except CorruptRecordError:  # one batch's records: opened alone, it is named in the error or passed on
            yield from (self._open(data, pos, header, first, joined.end) for pos, header, first in joined.sources)
        else:
            yield ReadBatch(columns, joined.log_append_time)

    def _open(self, data: bytes, pos: int, header: BatchHeader, first: int, end: int) -> ReadBatch:
        try:
            columns = decode_columns(data, pos, header, self._codecs, partition=self._partition)
            return ReadBatch(_within(columns, header, first, end), header.log_append_time)
        except CorruptRecordError as error:
            begin, last = max(first, header.base_offset), min(header.next_offset, end)
            if not crc_matches(data, pos, header):
                raise
            if not self._quarantine:
                raise type(error)(
                    f"{error}; the batch of the offsets {begin} to {last} cannot be opened{self._hint}"
                ) from error
            row = RecordColumns([begin], [header.base_timestamp], [None], [data[pos : pos + header.size]], [()])
            return ReadBatch(row, header.log_append_time, Unreadable(str(error), last))


class _Joined:
    """Batches that become one table."""

    def __init__(self, end: int) -> None:
        self.end = end
        self._areas: list[RecordArea] = []
        self._size = 0
        self.sources: list[tuple[int, BatchHeader, int]] = []
        self.log_append_time = False

    def takes(self, header: BatchHeader) -> bool:
        return not self.sources or (self._size < JOINED_BYTES and header.log_append_time == self.log_append_time)

    def add(self, area: RecordArea, pos: int, header: BatchHeader, first: int) -> None:
        self._areas.append(area)
        self._size += len(area.data)
        self.sources.append((pos, header, first))
        self.log_append_time = header.log_append_time

    def columns(self) -> Columns:
        from ...records.arrow import arrow_columns  # pyarrow is an extra

        return arrow_columns(self._areas, self.sources[0][2], self.end)


def _wanted(data: bytes, cursor: Cursor, end: int) -> Iterator[tuple[int, BatchHeader, int]]:
    """Yields the batches with wanted offsets: position in `data`, header, and the first wanted offset. Nothing is
    left once the cursor is at or beyond `end`."""
    for pos, header in iter_headers(data):
        if header.base_offset >= end:
            cursor.offset = header.base_offset  # the hole before this batch extends past the end
            return
        first, following = cursor.offset, header.next_offset
        if following > first:
            cursor.leader_epoch = header.leader_epoch
            if not header.is_control:
                yield pos, header, first
            cursor.offset = following


def _within(columns: RecordColumns, header: BatchHeader, first: int, end: int) -> RecordColumns:
    """Returns the records with offsets in [first, end)."""
    if header.base_offset >= first and header.next_offset <= end:
        return columns
    kept = [i for i, offset in enumerate(columns.offsets) if first <= offset < end]
    return RecordColumns(
        [columns.offsets[i] for i in kept],
        [columns.timestamps_ms[i] for i in kept],
        [columns.keys[i] for i in kept],
        [columns.values[i] for i in kept],
        [columns.headers[i] for i in kept],
    )
