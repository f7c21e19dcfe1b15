"""Rewrites a stored batch with some of its records: offsets, sequences, codec and epoch stay (log compaction).

The delete horizon is KIP-534's: attribute bit 6 means that the base timestamp is the time from which the batch's
tombstones may be removed. Record timestamps are deltas to it, as to any base timestamp, so readers need not know.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..codecs import CodecTable
from ..decode import RecordColumns
from ..encode import encode_headers, encode_record
from ..header import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    crc_of,
    set_crc,
)


def keep_records(
    header: BatchHeader, columns: RecordColumns, kept: Sequence[int], codecs: CodecTable, horizon_ms: int
) -> bytes:
    """Returns the batch with the records at the indexes `kept` (at least one); `horizon_ms` -1: no delete horizon."""
    base = header.base_timestamp
    attributes = header.attributes & ~DELETE_HORIZON
    if horizon_ms != NO_TIMESTAMP:
        base, attributes = horizon_ms, attributes | DELETE_HORIZON
    body = b"".join(
        encode_record(
            columns.offsets[i] - header.base_offset,
            columns.timestamps_ms[i] - base,
            columns.keys[i],
            columns.values[i],
            encode_headers(columns.headers[i]),
        )
        for i in kept
    )
    latest = header.max_timestamp if header.log_append_time else max(columns.timestamps_ms[i] for i in kept)
    changed = header._replace(attributes=attributes, base_timestamp=base, max_timestamp=latest, record_count=len(kept))
    return _assemble(changed, codecs.by_id(header.codec_id).compress(body))


def keep_nothing(header: BatchHeader) -> bytes:
    """Returns the batch without its records, which preserves its producer's sequence and its offsets, as in Kafka."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return _assemble(header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b"")


def _assemble(header: BatchHeader, payload: bytes) -> bytes:
    length = HEADER_SIZE - LENGTH_OVERHEAD + len(payload)
    out = bytearray(HEADER.pack(*header._replace(batch_length=length))) + payload
    set_crc(out, 0, crc_of(out, 0, len(out)))
    return bytes(out)
