"""Batches of idempotent producers that were refused and will be sent again; the batches behind them are refused,
too.

A producer has up to five batches of a partition in flight. If the first is refused because this broker does not lead
yet, or too few replicas are in sync, and that is over when the second arrives, the second would get
OUT_OF_ORDER_SEQUENCE_NUMBER. If the partition does not know the producer, the second would be stored, and the first
would be out of order for ever (KAFKA-14359). After that error librdkafka starts a new epoch and sends all batches
again, including the first one, which may have been stored before an earlier leader died: it is then stored twice. So
the second gets the error of the first, after which every client sends both again, in order.

A refusal holds later batches up until the refused batch is sent again, the producer starts a new epoch, or the log
has the refused batch (it was stored at another leader meanwhile). A batch that the log expects is never held up.
Time ends a refusal only when the producer has given the batch up.

The first batch may also be in flight to an earlier leader that is stopped or cut off, while librdkafka sends the next
ones to the new leader. So a producer's first batches in a leader epoch are refused, too, while those before them are
missing, for `EARLIER_S` at most. This holds even if the log does not know the producer and would accept any sequence
number: librdkafka would report the first batch as delivered once the second is acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from ..errors import CorruptRecordError, ErrorCode
from ..records.header import HEADER_SIZE, NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader

RETRIED: Final = frozenset(
    {
        ErrorCode.kafka_storage_error,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors after which a producer sends the same batch again."""
KEPT_S: Final = 120.0
"""The `delivery.timeout.ms` of Kafka's producer. A producer that gives a batch up starts a new epoch."""
EARLIER_S: Final = 60.0
"""librdkafka's `socket.timeout.ms`, after which it sends again what an earlier leader has not answered."""
PURGE_INTERVAL_S: Final = 30.0
MOST: Final = 100_000
"""The most refusals of a partition; about 40 MB."""
_SEQUENCES: Final = 1 << 31
_KEY: Final = Struct(">16sqi")

Stored = Callable[[int], tuple[int, int] | None]
"""Returns the epoch and the last sequence that the partition's log has of a producer id; None if it has none."""


class _Refused(NamedTuple):
    """The base sequences of a producer's first and last refused batch in one epoch, and the error of the first."""

    epoch: int
    first: int
    last: int
    error: ErrorCode
    until_s: float


class RefusedBatches:
    """Belongs to the event loop. `known` is nearly always empty; `behind` need be called only if it is not. `topic`:
    its name, or the 16 bytes of its id, as the producer names it.

    At most `MOST` producers of a partition are known: beyond that the oldest refusal is forgotten, and the batches
    behind that one are checked by the log alone, as at a broker without this class.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.known: Final[dict[bytes, _Refused]] = {}  # the oldest first
        self._clock = clock
        self._early: Final[dict[bytes, tuple[int, float]]] = {}
        """The leader epoch in which a batch came before those that precede it, and the time of the first one."""

    def is_early(
        self, topic: str | bytes, partition: int, batch: memoryview, leader_epoch: int, stored: Stored
    ) -> bool:
        """Returns True if the batches that are missing before this one may be at an earlier leader. The caller then
        refuses it as a broker that does not lead does. Call it for a batch that is out of order in the log and whose
        producer has stored nothing in this leader epoch."""
        if (header := _header(batch)) is None or (found := stored(header.producer_id)) is None:
            return False
        if found[0] == header.producer_epoch and not _is_before(found[1], header.base_sequence):
            return False
        key, now = _key(topic, partition, header), self._clock()
        epoch, since_s = self._early.get(key, (leader_epoch, now))
        if epoch != leader_epoch:
            since_s = now
        self._early.pop(key, None)
        self._early[key] = leader_epoch, since_s
        if len(self._early) > MOST:
            del self._early[next(iter(self._early))]
        return now < since_s + EARLIER_S

    @staticmethod
    def lacks_first(batch: memoryview, stored: Stored) -> bool:
        """Returns True if the log does not know the producer, and this is not its first batch. Call it while the
        leader is new: later the producer's state may have expired."""
        header = _header(batch)
        return header is not None and header.base_sequence != 0 and stored(header.producer_id) is None

    def note(self, topic: str | bytes, partition: int, batch: memoryview, error: ErrorCode) -> None:
        """Records a refusal; only the first refused batch of a producer determines the error."""
        if error not in RETRIED or (header := _header(batch)) is None:
            return
        key, epoch = _key(topic, partition, header), header.producer_epoch
        known = self.known.get(key)
        first = last = header.base_sequence
        if known is not None and epoch < known.epoch:
            return
        if known is not None and epoch == known.epoch:
            if not _is_before(first, known.first):
                first, error = known.first, known.error
            if _is_before(last, known.last):
                last = known.last
        self.known.pop(key, None)
        self.known[key] = _Refused(epoch, first, last, error, self._clock() + KEPT_S)
        if len(self.known) > MOST:
            del self.known[next(iter(self.known))]

    def behind(self, topic: str | bytes, partition: int, batch: memoryview, stored: Stored) -> ErrorCode | None:
        """Returns the error of the refused batch that this one follows; None if the log is to check it, because it is
        the refused batch sent again, or one that the log expects or has. `stored` reads the producer's state in the
        partition's log."""
        if (header := _header(batch)) is None:
            return None
        key, epoch, sequence = _key(topic, partition, header), header.producer_epoch, header.base_sequence
        known = self.known.get(key)
        if known is None or epoch < known.epoch or (epoch == known.epoch and _is_before(sequence, known.first)):
            return None
        found = stored(header.producer_id)
        in_log = found[1] if found is not None and found[0] == epoch else None
        if (
            epoch > known.epoch
            or sequence == known.first
            or (found is not None and found[0] > epoch)
            or (in_log is not None and (sequence == _after(in_log) or not _is_before(in_log, known.last)))
        ):
            del self.known[key]
            return None
        return known.error if in_log is None or _is_before(in_log, sequence) else None

    def purge(self) -> None:
        """Forgets the refusals whose producers have given the batches up, or have ended. Called periodically."""
        now = self._clock()
        while self.known and now >= next(iter(self.known.values())).until_s:
            del self.known[next(iter(self.known))]
        for key in [key for key, (_, since_s) in self._early.items() if now >= since_s + 2 * EARLIER_S]:
            del self._early[key]


def _header(batch: memoryview) -> BatchHeader | None:
    """Returns the header of a batch with sequences."""
    if len(batch) < HEADER_SIZE:
        return None
    try:
        header = BatchHeader.parse(batch)
    except CorruptRecordError:  # it is refused for that, and not sent again
        return None
    return None if header.producer_id == NO_PRODUCER_ID or header.base_sequence == NO_SEQUENCE else header


def _key(topic: str | bytes, partition: int, header: BatchHeader) -> bytes:
    """Returns a key of 28 bytes: the name of a topic that does not exist may be of any length."""
    name = topic.encode() if isinstance(topic, str) else topic
    return _KEY.pack(blake2b(name, digest_size=16).digest(), header.producer_id, partition)


def _after(sequence: int) -> int:
    """Returns the next sequence; 0 follows 2^31 - 1."""
    return (sequence + 1) % _SEQUENCES


def _is_before(one: int, other: int) -> bool:
    return one != other and (other - one) % _SEQUENCES < _SEQUENCES // 2
