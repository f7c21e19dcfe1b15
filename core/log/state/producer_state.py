"""Idempotent producers (KIP-98): the last five batches of each, so that a retry is answered, not stored again.

The rules are Kafka's since 2.5. An unknown producer id may begin with any sequence, because retention may have deleted
its records. A new epoch begins with sequence 0. Within an epoch each batch follows the last one; sequences wrap from
2^31 - 1 to 0. Five batches are kept because a client has at most five requests in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from ...errors import CorruptRecordError
from ...records.header import DERIVED_PRODUCER_IDS, NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader
from ...records.native import crc32c
from ...records.partition import TopicPartition
from ..errors import InvalidProducerEpochError, OutOfOrderSequenceError

BATCHES_KEPT: Final = 5
MAX_PRODUCERS: Final = 100_000
"""Upper bound of the producers of one partition; a new one beyond it replaces the least recently active one."""

SNAPSHOT_VERSION: Final = 2
_PREFIX: Final = Struct(">HII")
_TIME: Final = Struct(">q")
_PRODUCER: Final = Struct(">qhqB")
_BATCH: Final = Struct(">iiqqq")
_MAX_SEQUENCE: Final = 2**31 - 1


class BatchEntry(NamedTuple):
    """A stored batch of a producer. `timestamp_ms` is its max timestamp."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerStateEntry:
    """The epoch of one producer and its last batches, the oldest first. `seen_ms`: when it last sent a batch, by
    `ProducerState`'s time."""

    __slots__ = ("batches", "epoch", "seen_ms")

    def __init__(self, epoch: int, seen_ms: int, batches: Iterable[BatchEntry] = ()) -> None:
        self.epoch = epoch
        self.seen_ms = seen_ms
        self.batches = list(batches)


class ProducerState:
    """The producers of one partition by producer id. Not thread-safe: the log's lock guards it.

    It has a time of its own, in ms, which only `expire` advances: a producer whose state is removed may store a
    batch twice, so setting the broker's clock must not make one old. The time does not pass while the log is closed.
    """

    def __init__(self, tp: TopicPartition) -> None:
        self._tp = tp
        self._producers: dict[int, ProducerStateEntry] = {}  # the least recently active first
        self._highest_id = NO_PRODUCER_ID
        self._now_ms = 0

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._producers)

    @property
    def highest_id(self) -> int:
        """The highest allocated producer id ever seen, including removed producers; -1 if none. Ids that clients
        compute (`DERIVED_PRODUCER_IDS`) do not count."""
        return self._highest_id

    def _saw(self, producer_id: int) -> None:
        if producer_id < DERIVED_PRODUCER_IDS:
            self._highest_id = max(self._highest_id, producer_id)

    def check(self, header: BatchHeader) -> BatchEntry | None:
        """Returns the stored batch if this one is a retry of it, None if it is new. Raises `InvalidProducerEpochError`
        or `OutOfOrderSequenceError` if it must not be stored."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch == producer.epoch:
            for entry in producer.batches:
                if entry.first_sequence == header.base_sequence and entry.last_sequence == header.last_sequence:
                    return entry
        elif header.producer_epoch < producer.epoch:
            raise InvalidProducerEpochError(
                f"{self._tp}: producer {header.producer_id} sent the epoch {header.producer_epoch}, "
                f"but its last epoch here was {producer.epoch}"
            )
        elif header.base_sequence != 0:
            raise OutOfOrderSequenceError(
                f"{self._tp}: producer {header.producer_id} began its epoch {header.producer_epoch} with the sequence "
                f"{header.base_sequence}, not 0"
            )
        else:
            return None
        if producer.batches:
            last = producer.batches[-1].last_sequence
            expected = 0 if last == _MAX_SEQUENCE else last + 1
            if header.base_sequence != expected:
                raise OutOfOrderSequenceError(
                    f"{self._tp}: producer {header.producer_id} sent the sequence {header.base_sequence}, "
                    f"expected {expected} (epoch {header.producer_epoch})"
                )
        return None

    def update(self, header: BatchHeader) -> None:
        """Records a stored batch, whose header has its offsets. Ignores batches without producer id or sequence."""
        if header.producer_id == NO_PRODUCER_ID or header.base_sequence == NO_SEQUENCE:
            return
        producer = self._producers.pop(header.producer_id, None)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = ProducerStateEntry(header.producer_epoch, self._now_ms)
            self._saw(header.producer_id)
            if len(self._producers) >= MAX_PRODUCERS:
                del self._producers[next(iter(self._producers))]
        producer.seen_ms = self._now_ms
        batches = producer.batches
        batches.append(
            BatchEntry(
                header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, header.max_timestamp
            )
        )
        if len(batches) > BATCHES_KEPT:
            del batches[0]
        self._producers[header.producer_id] = producer

    def last_sequence(self, producer_id: int) -> tuple[int, int] | None:
        """Returns the epoch and the last sequence of a producer; None if it is unknown, or for a moment while another
        thread updates it. May be called without the lock."""
        producer = self._producers.get(producer_id)
        if producer is None or not producer.batches:
            return None
        return producer.epoch, producer.batches[-1].last_sequence

    def last_offset(self, producer_id: int) -> int | None:
        """Returns the offset of a producer's last record; None if `last_sequence` returns None. May be called
        without the lock, too."""
        producer = self._producers.get(producer_id)
        return producer.batches[-1].last_offset if producer is not None and producer.batches else None

    def last_offsets(self) -> dict[int, int]:
        """Returns the last offset of each producer's last batch: compaction must keep the header of that batch."""
        return {pid: producer.batches[-1].last_offset for pid, producer in self._producers.items() if producer.batches}

    def expire(self, passed_ms: int, expiration_ms: int) -> int:
        """Removes producers that have sent nothing for longer than `expiration_ms`; returns their number. `passed_ms`:
        the time since the last call. The times of the records do not count, because records of any age may be
        produced."""
        self._now_ms += passed_ms
        until_ms = self._now_ms - expiration_ms
        old = [pid for pid, _ in takewhile(lambda item: item[1].seen_ms < until_ms, self._producers.items())]
        for pid in old:
            del self._producers[pid]
        return len(old)

    def clear(self) -> None:
        """Removes all producers."""
        self._producers.clear()

    def to_bytes(self) -> bytes:
        """Returns a snapshot: version (uint16), CRC-32C of what follows the next field (uint32), number of producers
        (uint32), the state's time (int64 ms); for each producer its id (int64), epoch (int16), `seen_ms` (int64),
        number of batches (uint8); for each batch its first and last sequence (int32), base and last offset (int64),
        max timestamp (int64)."""
        body = bytearray(_TIME.pack(self._now_ms))
        for pid, producer in self._producers.items():
            body += _PRODUCER.pack(pid, producer.epoch, producer.seen_ms, len(producer.batches))
            for entry in producer.batches:
                body += _BATCH.pack(*entry)
        return _PREFIX.pack(SNAPSHOT_VERSION, crc32c(body), len(self._producers)) + bytes(body)

    @classmethod
    def from_bytes(cls, tp: TopicPartition, data: bytes) -> ProducerState:
        """Returns the state in a snapshot; raises `CorruptRecordError` if it is incomplete or damaged."""
        state = cls(tp)
        try:
            version, crc, count = _PREFIX.unpack_from(data)
            if version != SNAPSHOT_VERSION or crc32c(data[_PREFIX.size :]) != crc:
                raise CorruptRecordError("a producer snapshot fails its CRC or has an unknown version")
            (state._now_ms,) = _TIME.unpack_from(data, _PREFIX.size)
            pos = _PREFIX.size + _TIME.size
            for _ in range(count):
                pid, epoch, seen_ms, batches = _PRODUCER.unpack_from(data, pos)
                pos += _PRODUCER.size
                end = pos + batches * _BATCH.size
                entries = [BatchEntry._make(_BATCH.unpack_from(data, at)) for at in range(pos, end, _BATCH.size)]
                state._producers[pid] = ProducerStateEntry(epoch, seen_ms, entries)
                state._saw(pid)
                pos = end
            if pos != len(data):  # no CRC covers the number of producers
                raise CorruptRecordError(f"a producer snapshot contains more than the {count} producers in its header")
        except StructError as error:
            raise CorruptRecordError(f"a producer snapshot is incomplete: {error}") from error
        return state
