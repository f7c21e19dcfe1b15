"""The marker that ends a transaction at a partition: a control batch with one record (KIP-98).

The record's key is version (int16) and type (int16: 0 abort, 1 commit), its value version (int16) and the epoch of the
transaction coordinator (int32). The batch is transactional, has the producer's id and epoch, no sequence and no codec.
Compaction may leave an empty one, which ends nothing. Other control batches (a KRaft leader's) are not transactional.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from ..errors import CorruptRecordError
from . import native
from .encode import encode_record
from .header import (
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    MARKER,
    NO_SEQUENCE,
    BatchHeader,
    Buffer,
    crc_of,
    set_crc,
)

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")
_ABORT: Final = 0
_COMMIT: Final = 1


class TransactionMarker(NamedTuple):
    """The end of a transaction, as its record states it."""

    commit: bool
    coordinator_epoch: int


def encode_marker(
    producer_id: int, producer_epoch: int, marker: TransactionMarker, timestamp_ms: int, base_offset: int = 0
) -> bytearray:
    """Returns the batch of a marker, with a correct CRC and the leader epoch 0."""
    key = _KEY.pack(0, _COMMIT if marker.commit else _ABORT)
    record = encode_record(0, 0, key, _VALUE.pack(0, marker.coordinator_epoch), b"\0")
    length = HEADER_SIZE - LENGTH_OVERHEAD + len(record)
    batch = bytearray(
        HEADER.pack(
            base_offset, length, 0, MAGIC, 0, MARKER, 0, timestamp_ms, timestamp_ms,
            producer_id, producer_epoch, NO_SEQUENCE, 1,
        )
    )  # fmt: skip
    batch += record
    set_crc(batch, 0, crc_of(batch, 0, len(batch)))
    return batch


def read_marker(batch: Buffer, pos: int, header: BatchHeader) -> TransactionMarker | None:
    """Returns the marker in the batch at `pos`; None if the batch is none, or is empty. Raises `CorruptRecordError` if
    its record cannot be read."""
    if not header.is_marker or not header.record_count:
        return None
    records = memoryview(batch)[pos + HEADER_SIZE : pos + header.size]
    columns = native.lists(records, header.record_count, header.base_offset, header.last_offset_delta, 0, False)
    try:
        kind = _KEY.unpack_from(columns[2][0] or b"")[1]
        if kind not in (_ABORT, _COMMIT):
            return None
        return TransactionMarker(kind == _COMMIT, _VALUE.unpack_from(columns[3][0] or b"")[1])
    except StructError as error:
        raise CorruptRecordError(f"the marker at offset {header.base_offset} cannot be read: {error}") from error
