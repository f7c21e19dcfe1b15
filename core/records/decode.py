"""Reading the records of a batch, every length checked.

What a batch claims (its count, lengths, deltas) is believed only as far as its bytes bear it out; anything else is a
`CorruptRecordError` that names the partition, where the caller gave it, and the batch's base offset.
"""

from __future__ import annotations

from itertools import starmap
from typing import Final, NamedTuple

from klamm.core.errors import CorruptRecordError
from klamm.core.records.codecs import CodecTable
from klamm.core.records.header import HEADER_SIZE, BatchHeader, Buffer, crc_matches
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Headers, Record
from klamm.core.records.varint import read_varint, read_varlong

MAX_DECOMPRESSED: Final = 128 * 1024 * 1024
"""Bytes that one batch may grow to unless the caller says otherwise."""

_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)


class RecordColumns(NamedTuple):
    """The records of one batch, column by column; all five lists have the same length."""

    offsets: list[int]
    timestamps_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers]

    def part(self, first: int, last: int) -> RecordColumns:
        """Records [first, last)."""
        return RecordColumns(
            self.offsets[first:last],
            self.timestamps_ms[first:last],
            self.keys[first:last],
            self.values[first:last],
            self.headers[first:last],
        )

    def extend(self, more: RecordColumns) -> None:
        """Append another batch's records in place."""
        self.offsets.extend(more.offsets)
        self.timestamps_ms.extend(more.timestamps_ms)
        self.keys.extend(more.keys)
        self.values.extend(more.values)
        self.headers.extend(more.headers)


def decode_batch(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    codecs: CodecTable,
    max_size: int = MAX_DECOMPRESSED,
    partition: TopicPartition | None = None,
) -> list[Record]:
    """The records of the batch at `pos`. Checks the CRC; `UnsupportedCodecError` for an unknown codec."""
    return list(starmap(Record, zip(*decode_columns(buf, pos, header, codecs, max_size, partition), strict=True)))


def decode_columns(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    codecs: CodecTable,
    max_size: int = MAX_DECOMPRESSED,
    partition: TopicPartition | None = None,
) -> RecordColumns:
    """As `decode_batch`, without an object per record."""
    if not crc_matches(buf, pos, header):
        raise _corrupt(header, partition, "the CRC does not match the bytes")
    if header.record_count < 0:
        raise _corrupt(header, partition, f"it says that it holds {header.record_count} records")
    payload = memoryview(buf)[pos + HEADER_SIZE : pos + header.size]
    try:
        data = codecs.by_id(header.codec_id).decompress(payload, max_size)
        columns = _parse(data, header)
    except CorruptRecordError as error:
        raise type(error)(_where(header, partition) + str(error)) from error
    except IndexError as error:
        raise _corrupt(header, partition, "the records end early") from error
    except UnicodeDecodeError as error:
        raise _corrupt(header, partition, "a header's name is not UTF-8") from error
    stamps = columns.timestamps_ms
    if header.log_append_time:
        stamps[:] = [header.max_timestamp] * len(stamps)
    elif stamps and not _INT64_MIN <= min(stamps) <= max(stamps) <= _INT64_MAX:
        raise _corrupt(header, partition, "a timestamp is longer than 64 bits")
    return columns


def _where(header: BatchHeader, partition: TopicPartition | None) -> str:
    return f"{partition} offset {header.base_offset}: " if partition else f"batch at offset {header.base_offset}: "


def _corrupt(header: BatchHeader, partition: TopicPartition | None, what: str) -> CorruptRecordError:
    return CorruptRecordError(_where(header, partition) + what)


def _parse(data: bytes, header: BatchHeader) -> RecordColumns:
    """The loop over records. One-byte varints are read in place: most are, and a call costs as much as the record.

    Positions only grow (a negative length is refused), so one comparison with the record's end finds every overrun.
    """
    columns = RecordColumns([], [], [], [], [])
    add_offset, add_timestamp = columns.offsets.append, columns.timestamps_ms.append
    add_key, add_value, add_headers = columns.keys.append, columns.values.append, columns.headers.append
    base_offset, base_timestamp, last_delta = header.base_offset, header.base_timestamp, header.last_offset_delta
    size = len(data)
    pos, previous = 0, -1
    for _ in range(header.record_count):
        n = data[pos]
        if n < 0x80:
            n, pos = (n >> 1) ^ -(n & 1), pos + 1
        else:
            n, pos = read_varint(data, pos)
        end = pos + n
        if n < 0 or end > size:
            raise CorruptRecordError(f"a record has the length {n}, {size - pos} bytes are left")
        pos += 1  # the record's attributes, unused
        n = data[pos]
        if n < 0x80:
            n, pos = (n >> 1) ^ -(n & 1), pos + 1
        else:
            n, pos = read_varlong(data, pos)
        add_timestamp(base_timestamp + n)
        n = data[pos]
        if n < 0x80:
            n, pos = (n >> 1) ^ -(n & 1), pos + 1
        else:
            n, pos = read_varint(data, pos)
        if not previous < n <= last_delta:
            raise CorruptRecordError(f"a record has the offset delta {n} after {previous}, the last is {last_delta}")
        previous = n
        add_offset(base_offset + n)
        n = data[pos]
        if n < 0x80:
            n, pos = (n >> 1) ^ -(n & 1), pos + 1
        else:
            n, pos = read_varint(data, pos)
        if n >= 0:
            add_key(data[pos : pos + n])
            pos += n
        else:
            add_key(_null(n, "key"))
        n = data[pos]
        if n < 0x80:
            n, pos = (n >> 1) ^ -(n & 1), pos + 1
        else:
            n, pos = read_varint(data, pos)
        if n >= 0:
            add_value(data[pos : pos + n])
            pos += n
        else:
            add_value(_null(n, "value"))
        if data[pos]:
            headers, pos = _read_headers(data, pos, end)
            add_headers(headers)
        else:
            pos += 1
            add_headers(())
        if pos != end:
            raise CorruptRecordError(f"a record's fields end {abs(pos - end)} bytes off its length")
    if pos != size:
        raise CorruptRecordError(f"{size - pos} bytes are left over after {header.record_count} records")
    return columns


def _null(length: int, what: str) -> bytes | None:
    if length != -1:
        raise CorruptRecordError(f"a {what} has the length {length}")
    return None


def _read_headers(data: bytes, pos: int, end: int) -> tuple[Headers, int]:
    count, pos = read_varint(data, pos)
    if not 0 <= count <= end - pos:
        raise CorruptRecordError(f"a record has {count} headers in {end - pos} bytes")
    found: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        n, pos = read_varint(data, pos)
        if not 0 <= n <= end - pos:
            raise CorruptRecordError(f"a header's name has the length {n}")
        name = data[pos : pos + n].decode()
        n, pos = read_varint(data, pos + n)
        if not -1 <= n <= end - pos:
            raise CorruptRecordError(f"a header's value has the length {n}")
        found.append((name, None if n < 0 else data[pos : pos + n]))
        pos += max(n, 0)
    return tuple(found), pos
