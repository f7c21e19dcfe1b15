"""Writing record batches, magic 2.

A batch's base timestamp is its first record's, not the smallest (design, section 5); deltas may be negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..interfaces.codec import Codec
from . import native
from .header import HEADER_SIZE, NO_PRODUCER_ID, NO_SEQUENCE
from .one_record import RecordTuple, encode_headers, encode_record

__all__ = [
    "MAX_RECORD_OVERHEAD",
    "RecordTuple",
    "assemble",
    "encode_batch",
    "encode_headers",
    "encode_record",
]

MAX_RECORD_OVERHEAD: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""The most that a record without headers adds to its key and value: length, attributes, deltas, lengths, count."""


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
    """Returns one whole batch of at least one record, compressed by `codec` (none if it is None)."""
    batch, base, latest, _ = native.encode_records(list(records))
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
    """Makes a whole batch of `batch`, which has space for the header and then records: sealed in place, or
    compressed into another buffer. `timestamps` are the first record's and the latest; `producer` is id, epoch and
    first sequence."""
    if codec is not None and codec.codec_id:
        with memoryview(batch) as view:
            payload = codec.compress(view[HEADER_SIZE:])
        batch = bytearray(HEADER_SIZE)
        batch += payload
        attributes |= codec.codec_id
    native.seal(batch, base_offset, leader_epoch, attributes, count - 1, *timestamps, *producer, count)
    return batch
