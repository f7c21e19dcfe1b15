"""Writing record batches, magic 2.

A batch's base timestamp is its first record's, not the smallest (design, section 5); deltas may be negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..interfaces.codec import Codec
from . import native
from .fallback import RecordTuple, encode_headers, encode_record
from .header import HEADER_SIZE, NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL
from .record import Headers
from .varint import VARINT

__all__ = [
    "MAX_RECORD_OVERHEAD",
    "BatchBuilder",
    "RecordTuple",
    "assemble",
    "encode_batch",
    "encode_headers",
    "encode_record",
]

MAX_RECORD_OVERHEAD: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""The most that a record without headers adds to its key and value: length, attributes, deltas, lengths, count."""

_NO_HEADERS: Final = VARINT[0]


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
    batch, base, latest = native.encode_records(list(records))
    producer = (producer_id, producer_epoch, base_sequence)
    return bytes(assemble(batch, codec, (base, latest), producer, len(records), base_offset, leader_epoch))


def assemble(
    batch: bytearray,
    codec: Codec | None,
    timestamps: tuple[int, int],
    producer: tuple[int, int, int],
    count: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    attributes: int = 0,
) -> bytearray:
    """`batch`, room for the header and then records, as a whole batch: sealed in place, or compressed into another.
    `timestamps` are the first record's and the latest, `producer` id, epoch and first sequence."""
    if codec is not None and codec.codec_id:
        with memoryview(batch) as view:
            payload = codec.compress(view[HEADER_SIZE:])
        batch = bytearray(HEADER_SIZE)
        batch += payload
        attributes |= codec.codec_id
    native.seal(batch, base_offset, leader_epoch, attributes, count - 1, *timestamps, *producer, count)
    return batch


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
        batch, stamps = bytearray(HEADER_SIZE), (self._base, self._latest)
        batch += b"".join(self._body)
        return bytes(assemble(batch, codec, stamps, producer, len(self._body), attributes=attributes))
