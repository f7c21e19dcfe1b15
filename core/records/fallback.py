"""The twin in Python of the compiled module: the same functions, bytes and errors, some thirty times slower.

`native` chooses between the two. All arguments are positional. A buffer is any object with the buffer protocol;
numbers in the buffers of columns are in this machine's byte order, as Arrow's are. Bitmaps are Arrow's: a bit for
each row, lowest first, 1 if there is a value.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any, Final, NamedTuple

import crc32c as _crc32c

from ..errors import CorruptRecordError
from .murmur2 import murmur2
from .one_record import NO_HEADERS, RecordTuple, encode_headers, encode_record
from .record import Headers
from .strict import Lists, read_records
from .varint import encode_varint, read_varint, read_varlong

__all__ = [
    "HEADER_SIZE",
    "Area",
    "Binary",
    "Buffer",
    "ChainTuple",
    "Column",
    "Columns",
    "Lists",
    "PieceTuple",
    "WindowCounts",
    "add_headers",
    "chain",
    "columns",
    "crc32c",
    "encode_columns",
    "encode_records",
    "first_headers",
    "int64s",
    "lengths",
    "lists",
    "partitions",
    "pieces",
    "seal",
    "sizes",
    "tally",
    "validate",
    "window_counts",
]

Buffer = Any  # bytes, bytearray, memoryview, pyarrow.Buffer, array: whatever has the buffer protocol
ChainTuple = tuple[int, int, int, int, int, int, list[tuple[int, int]]]
PieceTuple = tuple[int, int, int, int, int, int, int, int, int, list[int]]
Area = tuple[Buffer, int, int, int, int, int, int, bool]
"""A batch's uncompressed records and what its header says: buffer, start, end, record count, base offset, last offset
delta, base timestamp, whether that is every record's timestamp."""
Binary = tuple[Buffer | None, Buffer, Buffer, int, int]
"""A binary column: bitmap or None, offsets, data, the index of the first row, bytes of one offset (4 or 8)."""
Column = tuple[bytes | None, bytes, bytes]
"""A binary column in a result: bitmap (None: no nulls), int32 offsets, data."""
Columns = tuple[int, Column, Column, bytes, bytes, bytes, Column, Column]
"""The columns of a result: the number of rows; keys; values; offsets (int64); timestamps in ms (int64); the index of
each row's first header (int32, rows + 1); header names; header values."""

WindowCounts = tuple[int, int, int, bytes]
"""The start of a window in ms (-1: without a timestamp); its records; the bytes of their keys and values; their
headers as in the batch, without their number."""

HEADER_SIZE: Final = 61
_LENGTH_OVERHEAD: Final = 12
_CRC_FROM: Final = 21
_MAX_EPOCHS: Final = 64
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)
_HEADER: Final = Struct(">qiibIhiqqqhii")
_ORDER: Final = sys.byteorder


def crc32c(data: Buffer, crc: int = 0, /) -> int:
    """Returns the CRC-32C (Castagnoli) of `data`, continued from `crc`."""
    return int(_crc32c.crc32c(data, crc))


def chain(data: Buffer, start: int, end: int, expected: int, dense: bool, verify: bool, /) -> ChainTuple:
    """Checks the headers of the whole batches in `data[start:end]`; stops at a trailing partial batch.

    The first batch starts at `expected` or later (-1: anywhere), each next one after the one before it; with `dense`
    exactly there. `verify` checks the CRCs too. Returns the number of batches, the position after the last, the
    first base offset (-1), the next offset (`expected` when there is none), the largest max timestamp (-1), the
    position of the last batch (-1), and [(leader epoch, first base offset), …] where the epoch changes.
    """
    if not 0 <= start <= end <= memoryview(data).nbytes:
        raise ValueError(f"[{start}, {end}) is not within {memoryview(data).nbytes} bytes")
    view = memoryview(data)
    pos, count, first, latest, last_at = start, 0, -1, -1, -1
    epochs: list[tuple[int, int]] = []
    while end - pos >= HEADER_SIZE:
        fields = _HEADER.unpack_from(view, pos)
        base, length, epoch, magic, crc, _, last_delta, _, max_timestamp, _, _, _, records = fields
        size = length + _LENGTH_OVERHEAD
        if magic != 2:
            raise CorruptRecordError(f"byte {pos}: the batch at offset {base} has magic {magic}, not 2")
        if size < HEADER_SIZE:
            raise CorruptRecordError(f"byte {pos}: the batch at offset {base} has the length {length}")
        if size > end - pos:
            break
        if base < 0 or (expected >= 0 and (base < expected or (dense and base != expected))):
            least = "" if dense and expected >= 0 else "at least "
            wanted = f"{least}{max(expected, 0)} is expected"
            raise CorruptRecordError(f"byte {pos}: a batch begins at offset {base}, {wanted}")
        if last_delta < 0 or records < 0 or records - 1 > last_delta or base > _INT64_MAX - 1 - last_delta:
            says = f"says that it holds {records} records, the last offset delta is {last_delta}"
            raise CorruptRecordError(f"byte {pos}: the batch at offset {base} {says}")
        if verify and _crc32c.crc32c(view[pos + _CRC_FROM : pos + size]) != crc:
            raise CorruptRecordError(f"byte {pos}: the CRC of the batch at offset {base} does not match its bytes")
        if not epochs or epochs[-1][0] != epoch:
            if len(epochs) == _MAX_EPOCHS:
                raise CorruptRecordError(f"byte {pos}: the leader epoch changes for the {_MAX_EPOCHS}th time")
            epochs.append((epoch, base))
        latest = max_timestamp if count == 0 else max(latest, max_timestamp)
        first = base if count == 0 else first
        count, last_at, expected = count + 1, pos, base + last_delta + 1
        pos += size
    return count, pos, first, expected, latest, last_at, epochs


def pieces(data: Buffer, room: int, /) -> list[PieceTuple]:
    """Returns the whole batches in `data` in pieces of at most `room` bytes, or of one larger batch; stops at a
    trailing partial batch.

    For each piece: start, end, first base offset, last offset; largest max timestamp, and the last offset of the
    first batch that has it; size, last offset and max timestamp of its first batch; the positions of its batches
    that have a producer id.
    """
    view = memoryview(data)
    found: list[PieceTuple] = []
    pos = start = base = last = latest = latest_last = 0
    first = (0, 0, 0)
    producers: list[int] = []
    while len(view) - pos >= HEADER_SIZE:
        fields = _HEADER.unpack_from(view, pos)
        begins, length, _, magic, _, _, last_delta, _, stamp, producer, _, _, _ = fields
        size = length + _LENGTH_OVERHEAD
        possible = magic == 2 and size >= HEADER_SIZE and begins >= 0 and last_delta >= 0
        if not possible or begins > _INT64_MAX - 1 - last_delta:
            raise CorruptRecordError(f"byte {pos}: no batch can have this header")
        if size > len(view) - pos:
            break
        if pos > start and pos + size - start > room:
            found.append((start, pos, base, last, latest, latest_last, *first, producers))
            start = pos
        last = begins + last_delta
        if pos == start:
            base, latest, latest_last, first, producers = begins, stamp, last, (size, last, stamp), []
        elif stamp > latest:
            latest, latest_last = stamp, last
        if producer != -1:
            producers.append(pos)
        pos += size
    if pos > start:
        found.append((start, pos, base, last, latest, latest_last, *first, producers))
    return found


# -- reading


def lists(data: Buffer, count: int, base_offset: int, last_delta: int, base_timestamp: int, fixed: bool, /) -> Lists:
    """Returns offsets, timestamps in ms, keys, values and headers of the `count` records in `data`, uncompressed.
    `fixed`: all have `base_timestamp`. Raises `CorruptRecordError`, which names record and byte.
    """
    return read_records(bytes(data), count, base_offset, last_delta, base_timestamp, fixed)


def validate(
    data: Buffer, count: int, base_offset: int, last_delta: int, base_timestamp: int, fixed: bool, /
) -> tuple[int, int]:
    """Checks the records as `lists` does, without making objects; returns the largest timestamp (-1 without records),
    and how many records have no key. Raises `CorruptRecordError`, which names record and byte.
    """
    _, timestamps, keys, _, _ = lists(data, count, base_offset, last_delta, base_timestamp, fixed)
    return max(timestamps, default=-1), keys.count(None)


def columns(areas: list[Area], from_offset: int, to_offset: int, /) -> Columns:
    """Returns the records of several batches with offsets in [from_offset, to_offset) as the buffers of Arrow columns.
    Raises `OverflowError` if a column grows beyond 2^31 - 1 bytes.
    """
    offsets, timestamps = array("q"), array("q")
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    all_headers: list[Headers] = []
    for buffer, start, end, count, base_offset, last_delta, base_timestamp, fixed in areas:
        view = memoryview(buffer)
        if not 0 <= start <= end <= view.nbytes:
            raise ValueError(f"[{start}, {end}) is not within {view.nbytes} bytes")
        try:
            found = lists(view[start:end], count, base_offset, last_delta, base_timestamp, fixed)
        except CorruptRecordError as error:
            raise CorruptRecordError(f"batch at offset {base_offset}: {error}") from None
        for offset, stamp, key, value, headers in zip(*found, strict=True):
            if from_offset <= offset < to_offset:
                offsets.append(offset)
                timestamps.append(stamp)
                keys.append(key)
                values.append(value)
                all_headers.append(headers)
    ends = array("i", accumulate(map(len, all_headers), initial=0))
    pairs = [pair for headers in all_headers for pair in headers]
    return (
        len(offsets),
        _column(keys),
        _column(values),
        offsets.tobytes(),
        timestamps.tobytes(),
        ends.tobytes(),
        _column([name.encode() for name, _ in pairs]),
        _column([value for _, value in pairs]),
    )


def window_counts(
    data: Buffer,
    count: int,
    base_offset: int,
    last_delta: int,
    base_timestamp: int,
    fixed: bool,
    from_offset: int,
    to_offset: int,
    window_ms: int,
    /,
) -> list[WindowCounts]:
    """Counts the records with offsets in [from_offset, to_offset) by the window of their timestamps and the bytes of
    their headers: one item for consecutive records that have both in common. Raises `CorruptRecordError` as `lists`
    does.
    """
    if window_ms <= 0:
        raise ValueError(f"a window of {window_ms} ms")
    raw = bytes(data)
    offsets, timestamps, keys, values, _ = lists(raw, count, base_offset, last_delta, base_timestamp, fixed)
    found: list[WindowCounts] = []
    for offset, stamp, key, value, headers in zip(offsets, timestamps, keys, values, _raw_headers(raw), strict=False):
        if from_offset <= offset < to_offset:
            start, size = (stamp - stamp % window_ms if stamp >= 0 else -1), len(key or b"") + len(value or b"")
            if found and (found[-1][0], found[-1][3]) == (start, headers):
                _, records, before, _ = found.pop()
                found.append((start, records + 1, before + size, headers))
            else:
                found.append((start, 1, size, headers))
    return found


def tally(timestamps: Buffer, sizes: Buffer, window_ms: int, /) -> list[tuple[int, int, int]]:
    """Counts rows of two columns of int64 by the window of their timestamps: (start, rows, sum of their sizes), one
    item for consecutive rows of one window.
    """
    if window_ms <= 0:
        raise ValueError(f"a window of {window_ms} ms")
    stamps, held = array("q"), array("q")
    length, other = memoryview(timestamps).nbytes, memoryview(sizes).nbytes
    if length % 8 or length != other:
        raise ValueError(f"columns of {length} and {other} bytes")
    stamps.frombytes(memoryview(timestamps).cast("B"))
    held.frombytes(memoryview(sizes).cast("B"))
    found: list[tuple[int, int, int]] = []
    for stamp, size in zip(stamps, held, strict=True):
        start = stamp - stamp % window_ms if stamp >= 0 else -1
        if found and found[-1][0] == start:
            _, rows, before = found.pop()
            found.append((start, rows + 1, before + size))
        else:
            found.append((start, 1, size))
    return found


def int64s(items: list[int], /) -> bytes:
    """Returns a column of int64 for `tally`, from a list. Raises `TypeError` or `OverflowError` for an item that is not
    an int64.
    """
    if not isinstance(items, list):
        raise TypeError("the numbers must be in a list")
    if not all(isinstance(item, int) for item in items):
        raise TypeError("an integer is required")
    return array("q", items).tobytes()


def sizes(keys: list[bytes | None], values: list[bytes | None], /) -> bytes:
    """Returns a column of int64 for `tally`: the bytes of each record's key and value, 0 for None."""
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys and {len(values)} values")
    if not all(item is None or isinstance(item, bytes) for items in (keys, values) for item in items):
        raise TypeError("keys and values must be bytes or None")
    return array("q", [len(key or b"") + len(value or b"") for key, value in zip(keys, values, strict=True)]).tobytes()


def lengths(key_offsets: Buffer, value_offsets: Buffer, /) -> bytes:
    """Returns the column of `sizes`, from the int32 offsets of two binary columns of Arrow (rows + 1 of each). A null
    row has no bytes.
    """
    size, other = memoryview(key_offsets).nbytes, memoryview(value_offsets).nbytes
    if size != other or size % 4 or not size:
        raise ValueError(f"offsets of {size} and {other} bytes")
    keys, values = (memoryview(column).cast("B").cast("i") for column in (key_offsets, value_offsets))
    ends = [key + value for key, value in zip(keys, values, strict=True)]
    return array("q", [after - before for before, after in pairwise(ends)]).tobytes()


def _raw_headers(data: bytes) -> Iterator[bytes]:
    """Yields for each record the bytes after the number of its headers; all records must be valid."""
    pos = 0
    while pos < len(data):
        n, pos = read_varint(data, pos)
        end = pos + n
        _, pos = read_varlong(data, pos + 1)
        _, pos = read_varint(data, pos)
        for _ in ("key", "value"):
            n, pos = read_varint(data, pos)
            pos += max(n, 0)
        _, pos = read_varint(data, pos)
        yield data[pos:end]
        pos = end


def _column(items: list[bytes | None] | list[bytes]) -> Column:
    data = b"".join(item for item in items if item is not None)
    if len(data) > _INT32_MAX:
        raise OverflowError("a column of more than 2^31 - 1 bytes or rows")
    ends = array("i", accumulate((len(item or b"") for item in items), initial=0))
    bitmap = None
    if None in items:
        bits = bytearray((len(items) + 7) // 8)
        for row, item in enumerate(items):
            if item is not None:
                bits[row >> 3] |= 1 << (row & 7)
        bitmap = bytes(bits)
    return bitmap, ends.tobytes(), data


# -- writing


class _Place(NamedTuple):
    """Positions in the first record of an area. `body`: after the record's length; `count_at`: of the number of
    headers, which is `number`; `headers`: of the first header."""

    body: int
    count_at: int
    number: int
    headers: int
    end: int


def _find_first(data: Buffer) -> _Place:
    """Raises `CorruptRecordError` for a length or number that no record has, `IndexError` past the end of `data`."""
    length, body = read_varint(data, 0)
    if length < 0:
        raise CorruptRecordError(f"the first record has the length {length}")
    _, at = read_varlong(data, body + 1)  # behind the attributes: the timestamp's delta
    _, at = read_varint(data, at)  # the offset's delta
    for part in ("key", "value"):
        size, at = read_varint(data, at)
        if not -1 <= size <= len(data) - at:
            raise CorruptRecordError(f"the first record's {part} has the length {size}")
        at += max(size, 0)
    number, headers = read_varint(data, at)
    if number < 0 or headers > body + length:
        raise CorruptRecordError(f"the first record, of {length} bytes, says that it has {number} headers")
    return _Place(body, at, number, headers, body + length)


def first_headers(data: Buffer, /) -> bytes | None:
    """Returns the bytes of the headers, without their number, of the first record in `data`; None if it is not whole.
    They are not checked."""
    raw = bytes(data)
    try:
        place = _find_first(raw)
    except (IndexError, CorruptRecordError):
        return None
    return raw[place.headers : place.end] if place.end <= len(raw) else None


def add_headers(batch: bytearray, room: int, headers: Headers, /) -> None:
    """Adds headers to the first record of `batch`, after its own, in place. The batch begins with `room` bytes, of
    which as many are removed as the record grows. Then follow zeroes in place of the batch's header, and
    uncompressed records. Raises `ValueError` if there is no whole record."""
    start = room + HEADER_SIZE
    try:
        if room < 0 or start > len(batch):
            raise IndexError(room)
        data = bytes(batch[start:])
        place = _find_first(data)
        if place.end > len(data) or place.number > _INT32_MAX - len(headers):
            raise IndexError(place.end)
    except (IndexError, CorruptRecordError) as error:
        raise ValueError("a batch begins with its room and a whole record") from error
    more = encode_headers(headers)[len(encode_varint(len(headers))) :]
    number = encode_varint(place.number + len(headers))
    body = b"".join((data[place.body : place.count_at], number, data[place.headers : place.end], more))
    record = encode_varint(len(body)) + body
    if len(record) > _INT32_MAX:
        raise OverflowError("a record batch is at most 2^31 - 1 bytes")
    batch[: start + place.end] = bytes(HEADER_SIZE) + record


def encode_records(
    records: list[RecordTuple], room: int = 0, window_ms: int = 0, /
) -> tuple[bytearray, int, int, list[tuple[int, int, int]]]:
    """Returns a batch of these records (at least one), the first record's timestamp, the latest, and, if `window_ms`
    is not 0, the records by window as `tally` counts them. The batch begins with `room` bytes for `add_headers` and
    space for the header that `seal` writes."""
    if not records:
        raise ValueError("a record batch holds at least one record")
    _check_room(room, window_ms)
    base = latest = records[0][0]
    batch = bytearray(HEADER_SIZE)
    for delta, (timestamp, key, value, headers) in enumerate(records):
        latest = max(latest, timestamp)
        if not _INT64_MIN <= timestamp - base <= _INT64_MAX:
            raise OverflowError("two timestamps of a batch are more than 64 bits apart")
        batch += encode_record(delta, timestamp - base, key, value, encode_headers(headers) if headers else NO_HEADERS)
    if len(batch) > _INT32_MAX:
        raise OverflowError("a record batch is at most 2^31 - 1 bytes")
    counted: list[tuple[int, int, int]] = []
    if window_ms:
        stamps = array("q", [record[0] for record in records])
        held = array("q", [len(key or b"") + len(value or b"") for _, key, value, _ in records])
        counted = tally(stamps, held, window_ms)
    return bytearray(room) + batch, base, latest, counted


def _check_room(room: int, window_ms: int) -> None:
    if not 0 <= room <= _INT32_MAX or window_ms < 0:
        raise ValueError(f"room of {room} bytes, a window of {window_ms} ms")


def encode_columns(
    keys: Binary | None,
    values: Binary | None,
    timestamps: Buffer | None,
    timestamp: int,
    prefix: Buffer,
    more: Buffer,
    first: int,
    last: int,
    max_size: int,
    room: int = 0,
    /,
) -> tuple[bytearray, int, int, int]:
    """Returns one batch of rows [first, n), n ≤ last, as many as `max_size` bytes hold (the first row however
    large); n; the first row's timestamp and the latest. The batch begins with `room` bytes for `add_headers` and
    space for the header that `seal` writes.

    A column None is all null; `timestamps` are int64 in ms, or None: all `timestamp`. `prefix` precedes each value
    that is not null; `more` (the result of `encode_headers`) are each record's headers. Raises `ValueError` for a
    row that is outside its buffers.
    """
    if first < 0 or first >= last or last > _INT64_MAX // 16:
        raise ValueError(f"rows [{first}, {last}) make no batch")
    if not 0 <= room <= _INT32_MAX:
        raise ValueError(f"room of {room} bytes")
    key_of, value_of = _cells(keys), _cells(values)
    stamps = None if timestamps is None else memoryview(timestamps).cast("B")
    front, tail = bytes(prefix), bytes(more)
    base = latest = _stamp(stamps, first, timestamp)
    batch = bytearray(HEADER_SIZE)
    row = first
    while row < last:
        key, value, stamp = key_of(row), value_of(row), _stamp(stamps, row, timestamp)
        if not _INT64_MIN <= stamp - base <= _INT64_MAX:
            raise ValueError(f"row {row}: its timestamp is more than 64 bits from the batch's first")
        record = encode_record(row - first, stamp - base, key, None if value is None else front + value, tail)
        if row > first and len(batch) + len(record) > max_size:
            break
        if len(batch) + len(record) > _INT32_MAX:
            raise ValueError(f"row {row}: a record of {len(record)} bytes is too large for a batch")
        batch += record
        latest = max(latest, stamp)
        row += 1
    return bytearray(room) + batch, row, base, latest


def _outside(row: int) -> ValueError:
    return ValueError(f"row {row} lies outside of its column's buffers")


def _stamp(stamps: memoryview | None, row: int, timestamp: int) -> int:
    if stamps is None:
        return timestamp
    if row >= len(stamps) // 8:
        raise _outside(row)
    return int.from_bytes(stamps[8 * row : 8 * row + 8], _ORDER, signed=True)


def _cells(column: Binary | None) -> Any:
    """Returns a function from a row to its bytes, or None if it is null."""
    if column is None:
        return lambda _: None
    bitmap, offsets, data, start, width = column
    if start < 0 or width not in (4, 8):
        raise ValueError("a column begins at row 0 or later, its offsets take 4 or 8 bytes")
    bits = None if bitmap is None else memoryview(bitmap).cast("B")
    ends, view = memoryview(offsets).cast("B"), memoryview(data).cast("B")

    def cell(row: int) -> bytes | None:
        index = start + row
        if bits is not None:
            if index >> 3 >= len(bits):
                raise _outside(row)
            if not bits[index >> 3] >> (index & 7) & 1:
                return None
        if index + 1 >= len(ends) // width:
            raise _outside(row)
        begin = int.from_bytes(ends[width * index : width * (index + 1)], _ORDER, signed=True)
        end = int.from_bytes(ends[width * (index + 1) : width * (index + 2)], _ORDER, signed=True)
        if begin < 0 or end < begin or end > len(view):
            raise _outside(row)
        return bytes(view[begin:end])

    return cell


def seal(
    batch: bytearray | memoryview,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
    /,
) -> None:
    """Writes the header before a batch's records, with the CRC of the present content."""
    size = len(batch)
    if size < HEADER_SIZE or size - _LENGTH_OVERHEAD > _INT32_MAX:
        raise ValueError(f"a record batch has {HEADER_SIZE} bytes of header and at most 2^31 in all, not {size}")
    producer = (producer_id, producer_epoch, base_sequence)
    stamps = (base_timestamp, max_timestamp)
    length = size - _LENGTH_OVERHEAD
    _HEADER.pack_into(
        batch, 0, base_offset, length, leader_epoch, 2, 0, attributes, last_delta, *stamps, *producer, count
    )
    with memoryview(batch) as view:
        crc = _crc32c.crc32c(view[_CRC_FROM:])
    batch[17:21] = crc.to_bytes(4, "big")


def partitions(keys: Binary | None, rows: int, partitions: int, /) -> bytes:
    """Returns each row's partition by Kafka's murmur2 of its key (int32), -1 if the key is null."""
    if rows < 0 or partitions < 1:
        raise ValueError("rows are 0 or more, partitions 1 or more")
    key_of = _cells(keys)
    return array("i", (_partition(key_of(row), partitions) for row in range(rows))).tobytes()


def _partition(key: bytes | None, partitions: int) -> int:
    return -1 if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions
