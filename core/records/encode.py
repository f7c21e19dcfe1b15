"""Writing record batches, magic 2.

A batch's base timestamp is its first record's, not the smallest (design, section 5); deltas may be negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from crc32c import crc32c

from klamm.core.records.codecs import NONE
from klamm.core.records.header import (
    CRC_FROM,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL,
)
from klamm.core.records.record import Headers
from klamm.core.records.varint import SMALL, VARINT, encode_varint
from klamm.core.seams.codec import Codec

RecordTuple = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp in ms, key, value, headers."""

MAX_RECORD_OVERHEAD: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""The most that a record without headers adds to its key and value: length, attributes, deltas, lengths, count."""

_NULL: Final = encode_varint(-1)
_NO_HEADERS: Final = VARINT[0]
_FRONT: Final = Struct(">qiibI")
_REST: Final = Struct(">hiqqqhii")


def encode_record(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, more: bytes
) -> bytes:
    """One record with its length in front; `more` is what `encode_headers` gave."""
    if key is None:
        key, key_size = b"", _NULL
    else:
        n = len(key)
        key_size = VARINT[n] if n < SMALL else encode_varint(n)
    if value is None:
        value, value_size = b"", _NULL
    else:
        n = len(value)
        value_size = VARINT[n] if n < SMALL else encode_varint(n)
    body = b"".join(
        (
            b"\0",
            VARINT[timestamp_delta] if 0 <= timestamp_delta < SMALL else encode_varint(timestamp_delta),
            VARINT[offset_delta] if offset_delta < SMALL else encode_varint(offset_delta),
            key_size,
            key,
            value_size,
            value,
            more,
        )
    )
    n = len(body)
    return (VARINT[n] if n < SMALL else encode_varint(n)) + body


def encode_headers(headers: Headers) -> bytes:
    """The header count and the headers, names in UTF-8."""
    if not headers:
        return _NO_HEADERS
    out = bytearray(encode_varint(len(headers)))
    for name, value in headers:
        raw = name.encode()
        out += encode_varint(len(raw))
        out += raw
        if value is None:
            out += _NULL
        else:
            out += encode_varint(len(value))
            out += value
    return bytes(out)


def encode_batch(
    records: Sequence[RecordTuple],
    *,
    codec: Codec | None = None,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    leader_epoch: int = -1,
) -> bytes:
    """One whole batch of at least one record, compressed by `codec` (none when None)."""
    if not records:
        raise ValueError("a record batch holds at least one record")
    base = records[0][0]
    latest = base
    body: list[bytes] = []
    append = body.append
    for delta, (timestamp, key, value, headers) in enumerate(records):
        latest = max(latest, timestamp)
        append(encode_record(delta, timestamp - base, key, value, encode_headers(headers) if headers else _NO_HEADERS))
    producer = (producer_id, producer_epoch, base_sequence)
    return _assemble(b"".join(body), codec or NONE, base_offset, leader_epoch, (base, latest), producer, len(records))


def _assemble(
    body: bytes,
    codec: Codec,
    base_offset: int,
    leader_epoch: int,
    timestamps: tuple[int, int],
    producer: tuple[int, int, int],
    count: int,
    attributes: int = 0,
) -> bytes:
    payload = codec.compress(body) if codec.codec_id else body
    rest = _REST.pack(attributes | codec.codec_id, count - 1, *timestamps, *producer, count)
    crc = crc32c(payload, crc32c(rest))
    length = HEADER_SIZE - LENGTH_OVERHEAD + len(payload)
    return b"".join((_FRONT.pack(base_offset, length, leader_epoch, MAGIC, crc), rest, payload))


class BatchBuilder:
    """Fills one batch record by record, up to `max_size` bytes before compression (header included).

    The first record is always taken, however large. Not thread-safe: the accumulator that owns it locks.
    """

    __slots__ = ("_base", "_body", "_latest", "_max_size", "_size")

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._body: list[bytes] = []
        self._size = HEADER_SIZE
        self._base = self._latest = -1

    @property
    def count(self) -> int:
        return len(self._body)

    @property
    def size(self) -> int:
        """Bytes before compression, header included."""
        return self._size

    def try_append(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> bool:
        """False when the record does not fit any more; the builder is then as it was."""
        body = self._body
        base = self._base if body else timestamp_ms
        more = encode_headers(headers) if headers else _NO_HEADERS
        record = encode_record(len(body), timestamp_ms - base, key, value, more)
        size = self._size + len(record)
        if body and size > self._max_size:
            return False
        self._base = base
        self._latest = max(self._latest, timestamp_ms) if body else timestamp_ms
        self._size = size
        body.append(record)
        return True

    def build(
        self,
        *,
        codec: Codec | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = -1,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
    ) -> bytes:
        """The batch of what was appended (at least one record); may be called again, with another producer epoch."""
        if not self._body:
            raise ValueError("a record batch holds at least one record")
        producer = (producer_id, producer_epoch, base_sequence)
        attributes = TRANSACTIONAL if transactional else 0
        body, stamps = b"".join(self._body), (self._base, self._latest)
        return _assemble(body, codec or NONE, 0, -1, stamps, producer, len(self._body), attributes)


assert _FRONT.size == CRC_FROM
