"""The twin in Python of the compiled reading of a plain Produce request, and of writing its response.

Plain: `core/protocol/one_batch` reads the request, and its batch breaks no rule that every topic has. What is not
plain is None here: others judge it, and say what is wrong. A batch of up to `CHECKED_BYTES` has passed its CRC as well;
a larger one's is handed on, because there is a faster CRC for them.
"""

from __future__ import annotations

import struct
from typing import Final, cast

from ..protocol.one_batch import OneBatch, read_one_batch, write_one_produced
from .header import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, NO_PRODUCER_ID, Buffer, crc_of

PlainProduce = tuple[int, int, int, str, int, memoryview, int, int, int, int, int, int]
"""`OneBatch`'s fields (version, correlation id, acks, topic, partition, batch); number of records, base timestamp, max
timestamp, codec id, producer id; the CRC that the batch must have, -1 where it has been found right."""

MOST_BYTES: Final = 512 * 1024
"""A larger batch does not go the plain way."""
CHECKED_BYTES: Final = 4096
_KAFKAS_CODECS: Final = 5
_LONGEST_TOPIC: Final = 255
_LONGEST_COMPACT: Final = 126
_FLEXIBLE: Final = 9


def plain_produce(frame: Buffer, /) -> PlainProduce | None:
    """None where the request or its batch is of another form, or not right in any way."""
    one = read_one_batch(cast(bytearray, frame))
    if one is None or not HEADER_SIZE <= len(one.records) <= MOST_BYTES:
        return None
    fields = HEADER.unpack_from(one.records)
    _, length, _, magic, crc, attributes, last_delta, first_ms, largest_ms, producer, _, sequence, count = fields
    ordinary = (
        magic == MAGIC
        and length + LENGTH_OVERHEAD == len(one.records)
        and 1 <= count == last_delta + 1
        and 0 <= attributes < _KAFKAS_CODECS
        and (producer >= 0 <= sequence or producer == NO_PRODUCER_ID <= sequence)
    )
    if not ordinary:
        return None
    if len(one.records) <= CHECKED_BYTES:
        if crc_of(one.records, 0, len(one.records)) != crc:
            return None
        crc = -1
    return (*one, count, first_ms, largest_ms, attributes, producer, crc)


def produced(
    version: int,
    topic: str,
    correlation_id: int,
    partition: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
    throttle_ms: int,
    /,
) -> bytes:
    """The whole frame of the response where all went well; `ValueError` for what does not fit into one."""
    request = OneBatch(version, correlation_id, 1, topic, partition, memoryview(b""))
    longest = _LONGEST_COMPACT if version == _FLEXIBLE else _LONGEST_TOPIC
    try:
        if 3 <= version <= _FLEXIBLE and len(topic.encode()) <= longest:
            return write_one_produced(request, base_offset, log_append_time_ms, log_start_offset, throttle_ms)
    except struct.error:
        pass
    raise ValueError("a version, a topic or a number that no Produce response holds")
