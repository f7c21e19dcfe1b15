"""Stores a batch with another codec than the producer used."""

from __future__ import annotations

from ...interfaces.codec import Codec
from ..header import (
    CODEC_MASK,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    BatchHeader,
    Buffer,
    crc_of,
    set_crc,
)


def recompress(header: BatchHeader, records: Buffer, target: Codec) -> tuple[bytearray, BatchHeader]:
    """Returns the batch of that header and of these records (uncompressed and checked), compressed by `target`, and its
    header.
    """
    packed = target.compress(records)
    changed = header._replace(
        attributes=header.attributes & ~CODEC_MASK | target.codec_id,
        batch_length=HEADER_SIZE - LENGTH_OVERHEAD + len(packed),
    )
    out = bytearray(HEADER.pack(*changed)) + packed
    crc = crc_of(out, 0, len(out))
    set_crc(out, 0, crc)
    return out, changed._replace(crc=crc)
