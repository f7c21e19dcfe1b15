"""The header of a record batch, magic 2 (KIP-98): 61 bytes in front of the records.

Positions: base offset 0, length 8, leader epoch 12, magic 16, CRC 17, attributes 21; the CRC covers everything from
the attributes on. Base offset and leader epoch lie outside the CRC so that a broker can set them without reading the
records.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from ..errors import CorruptRecordError
from .native import crc32c

__all__ = [
    "CODEC_MASK",
    "CONTROL",
    "CRC_AT",
    "CRC_FROM",
    "DELETE_HORIZON",
    "DERIVED_PRODUCER_IDS",
    "HEADER",
    "HEADER_SIZE",
    "LENGTH_OVERHEAD",
    "LOG_APPEND_TIME",
    "MAGIC",
    "MAGIC_AT",
    "MARKER",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "TRANSACTIONAL",
    "BatchHeader",
    "Buffer",
    "crc_matches",
    "crc_of",
    "iter_headers",
    "rewrite_base",
    "rewrite_log_append_time",
    "rewrite_max_timestamp",
    "set_crc",
]

Buffer = bytes | bytearray | memoryview

HEADER_SIZE: Final = 61
MAGIC: Final = 2
MAGIC_AT: Final = 16
CRC_AT: Final = 17
CRC_FROM: Final = 21
LENGTH_OVERHEAD: Final = 12
"""Bytes of base offset and length, which `batch_length` does not count."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
MARKER: Final = TRANSACTIONAL | CONTROL
DELETE_HORIZON: Final = 0x40
"""The attribute bit that makes the base timestamp the time from which the batch's tombstones may be removed
(KIP-534)."""

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
DERIVED_PRODUCER_IDS: Final = 1 << 62
"""The first of the producer ids that clients compute (the Spark sink); brokers allocate lower ones."""
NO_SEQUENCE: Final = -1

HEADER: Final = Struct(">qiibIhiqqqhii")
_BASE_OFFSET: Final = Struct(">q")
_LENGTH: Final = Struct(">i")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")
_MAX_TIMESTAMP: Final = Struct(">q")
_LEADER_EPOCH_AT: Final = 12
_MAX_TIMESTAMP_AT: Final = 35


class BatchHeader(NamedTuple):
    """The fields in the order of the bytes. Timestamps in ms since the epoch, -1 when there is none."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def parse(cls, buf: Buffer, pos: int = 0) -> BatchHeader:
        """Returns the header at `pos`. Raises `CorruptRecordError` if it is cut off, has another magic, or an
        impossible length.
        """
        if len(buf) - pos < HEADER_SIZE:
            raise CorruptRecordError(f"a record batch needs {HEADER_SIZE} bytes of header, {len(buf) - pos} are there")
        header = cls._make(HEADER.unpack_from(buf, pos))
        if header.magic != MAGIC:
            raise CorruptRecordError(f"batch at offset {header.base_offset} has magic {header.magic}, not {MAGIC}")
        if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD:
            raise CorruptRecordError(f"batch at offset {header.base_offset} has the length {header.batch_length}")
        return header

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec_id(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd, 5-7 third parties."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_marker(self) -> bool:
        """True for the control batch that ends a transaction (`records.control`)."""
        return self.attributes & MARKER == MARKER

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which compaction may remove the batch's tombstones; None before a first pass has read them."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def log_append_time(self) -> bool:
        """True if every record's timestamp is `max_timestamp`, set by the broker."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def last_sequence(self) -> int:
        """The last record's sequence; -1 without one. Sequences wrap to 0 after 2^31 - 1."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    def rebased(self, base_offset: int, leader_epoch: int) -> BatchHeader:
        """Returns the header with the values that `rewrite_base` sets; half the cost of `_replace`."""
        return BatchHeader._make((base_offset, self.batch_length, leader_epoch, *self[3:]))


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yields each whole batch's position and header; ends at a trailing partial batch; raises `CorruptRecordError` at
    an invalid one.
    """
    pos, end = 0, len(buf)
    while end - pos >= HEADER_SIZE:
        header = BatchHeader.parse(buf, pos)
        if header.size > end - pos:
            return
        yield pos, header
        pos += header.size


def crc_of(buf: Buffer, pos: int, size: int) -> int:
    """Returns the CRC-32C over attributes and all that follows in the batch of `size` bytes at `pos`."""
    return crc32c(memoryview(buf)[pos + CRC_FROM : pos + size])


def crc_matches(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Returns True if the stored CRC is that of the bytes; False as well if the batch is cut off."""
    return len(buf) - pos >= header.size and crc_of(buf, pos, header.size) == header.crc


def set_crc(buf: bytearray | memoryview, pos: int, crc: int) -> None:
    _CRC.pack_into(buf, pos + CRC_AT, crc)


def rewrite_base(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Sets base offset and leader epoch in place; the CRC stays valid."""
    _BASE_OFFSET.pack_into(buf, pos, base_offset)
    _LENGTH.pack_into(buf, pos + _LEADER_EPOCH_AT, leader_epoch)


def rewrite_max_timestamp(buf: bytearray | memoryview, pos: int, header: BatchHeader, largest_ms: int) -> BatchHeader:
    """Sets the max timestamp and the matching CRC; returns the new header."""
    _MAX_TIMESTAMP.pack_into(buf, pos + _MAX_TIMESTAMP_AT, largest_ms)
    crc = crc_of(buf, pos, header.size)
    set_crc(buf, pos, crc)
    return header._replace(max_timestamp=largest_ms, crc=crc)


def rewrite_log_append_time(buf: bytearray | memoryview, pos: int, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Makes `now_ms` the timestamp of all records (KIP-32): type bit, max timestamp, CRC; returns the new header."""
    attributes = header.attributes | LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(buf, pos + CRC_FROM, attributes)
    _MAX_TIMESTAMP.pack_into(buf, pos + _MAX_TIMESTAMP_AT, now_ms)
    crc = crc_of(buf, pos, header.size)
    set_crc(buf, pos, crc)
    return header._replace(attributes=attributes, max_timestamp=now_ms, crc=crc)
