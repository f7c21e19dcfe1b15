"""The check of a batch, when it is read from a request, by the rules that hold for every topic.

The limits of a topic's configuration (size, codec, timestamps, payload) are checked when the batch is appended. The
compiled module makes the same check while it reads the request.
"""

from __future__ import annotations

from typing import Final

from .header import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, NO_PRODUCER_ID, crc_of

CheckedBatch = tuple[memoryview, int, int, int, int, int, int]
"""A batch that breaks none of the rules: the batch; its number of records, base timestamp, max timestamp, codec id
and producer id; the CRC that it must have, -1 if that was verified."""

MOST_BYTES: Final = 512 * 1024
"""A larger batch is not checked here."""
CHECKED_BYTES: Final = 4096
"""The CRC of a larger batch is checked at the append, which has a faster function for it."""
_KAFKAS_CODECS: Final = 5


def check_batch(batch: memoryview) -> CheckedBatch | None:
    """Returns the checked fields of `batch`; None unless it is exactly one batch that breaks no rule: magic 2, as
    many records as its last offset delta requires, one of Kafka's codecs, neither transactional nor a control batch,
    a sequence if it has a producer id."""
    if not HEADER_SIZE <= len(batch) <= MOST_BYTES:
        return None
    fields = HEADER.unpack_from(batch)
    _, length, _, magic, crc, attributes, last_delta, first_ms, largest_ms, producer, _, sequence, count = fields
    ordinary = (
        magic == MAGIC
        and length + LENGTH_OVERHEAD == len(batch)
        and 1 <= count == last_delta + 1
        and 0 <= attributes < _KAFKAS_CODECS
        and (producer >= 0 <= sequence or producer == NO_PRODUCER_ID <= sequence)
    )
    if not ordinary:
        return None
    if len(batch) <= CHECKED_BYTES:
        if crc_of(batch, 0, len(batch)) != crc:
            return None
        crc = -1
    return batch, count, first_ms, largest_ms, attributes, producer, crc
