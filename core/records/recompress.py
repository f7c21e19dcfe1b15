"""Storing a batch in another codec than it came in; since it is open anyway, its records are counted."""

from __future__ import annotations

from klamm.core.records import native
from klamm.core.records.codecs import CodecTable
from klamm.core.records.header import (
    CODEC_MASK,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    BatchHeader,
    Buffer,
    crc_of,
    set_crc,
)
from klamm.core.seams.codec import Codec


def recompress(
    batch: Buffer, header: BatchHeader, codecs: CodecTable, target: Codec, max_size: int
) -> tuple[bytearray, BatchHeader]:
    """The batch with its records compressed by `target`, and its header; errors as the codecs raise them, and
    `CorruptRecordError` where the records are not as many as the header says."""
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    records = codecs.by_id(header.codec_id).decompress(payload, max_size)
    native.lists(
        records, header.record_count, header.base_offset, header.last_offset_delta, header.base_timestamp, False
    )
    packed = target.compress(records)
    changed = header._replace(
        attributes=header.attributes & ~CODEC_MASK | target.codec_id,
        batch_length=HEADER_SIZE - LENGTH_OVERHEAD + len(packed),
    )
    out = bytearray(HEADER.pack(*changed)) + packed
    crc = crc_of(out, 0, len(out))
    set_crc(out, 0, crc)
    return out, changed._replace(crc=crc)
