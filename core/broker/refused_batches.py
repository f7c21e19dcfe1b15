"""Batches of idempotent producers that were refused a moment ago, and will be sent again: those behind them wait, too.

A producer has up to five batches of a partition in flight. If the first is refused because this broker does not lead
yet, or too few replicas are in sync, and that is over when the second arrives, the second would get
OUT_OF_ORDER_SEQUENCE_NUMBER. If the partition does not know the producer, it would be stored, and the first would be
out of order for ever (KAFKA-14359). After that error librdkafka begins a new epoch and sends all again, also the first
one, which was perhaps stored before an earlier leader died: it is then stored twice. So the second gets the error of
the first, after which every client sends both again, in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from ..errors import CorruptRecordError, ErrorCode
from ..records.header import HEADER_SIZE, NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader

RETRIED: Final = frozenset(
    {
        ErrorCode.kafka_storage_error,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors after which a producer sends the batch again as it was."""
_KEPT_S: Final = 5.0
"""Many times what lies between two requests in flight. A producer that gives the first batch up begins a new epoch."""
_MOST: Final = 10_000
_SEQUENCES: Final = 1 << 31
_Key = tuple[str, int, int, int]


class _Refused(NamedTuple):
    sequence: int
    error: ErrorCode
    until_s: float


class RefusedBatches:
    """Belongs to the event loop. `known` is nearly always empty: only if it is not, `behind` need be called."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.known: Final[dict[_Key, _Refused]] = {}  # the oldest first
        self._clock = clock

    def note(self, topic: str, partition: int, batch: memoryview, error: ErrorCode) -> None:
        """Takes note of a refusal, unless a batch before this one is known as refused."""
        if error not in RETRIED or (header := _header(batch)) is None:
            return
        now, key = self._clock(), _key(topic, partition, header)
        known = self.known.pop(key, None)
        first = header.base_sequence
        if known is not None and now < known.until_s and not _is_before(first, known.sequence):
            first, error = known.sequence, known.error
        self.known[key] = _Refused(first, error, now + _KEPT_S)
        while len(self.known) > _MOST or now >= next(iter(self.known.values())).until_s:
            del self.known[next(iter(self.known))]

    def behind(self, topic: str, partition: int, batch: memoryview) -> ErrorCode | None:
        """Returns the error of the refused batch that this one follows; None if it may be stored. The refused one
        itself may be: it is sent again."""
        if (header := _header(batch)) is None:
            return None
        key = _key(topic, partition, header)
        known = self.known.get(key)
        if known is None or _is_before(header.base_sequence, known.sequence):
            return None
        if header.base_sequence == known.sequence or self._clock() >= known.until_s:
            del self.known[key]
            return None
        return known.error


def _header(batch: memoryview) -> BatchHeader | None:
    """Returns the header of a batch with sequences."""
    if len(batch) < HEADER_SIZE:
        return None
    try:
        header = BatchHeader.parse(batch)
    except CorruptRecordError:  # it is refused for that, and not sent again
        return None
    return None if header.producer_id == NO_PRODUCER_ID or header.base_sequence == NO_SEQUENCE else header


def _key(topic: str, partition: int, header: BatchHeader) -> _Key:
    return topic, partition, header.producer_id, header.producer_epoch


def _is_before(one: int, other: int) -> bool:
    """Sequences go on at 0 after 2^31 - 1."""
    return one != other and (other - one) % _SEQUENCES < _SEQUENCES // 2
