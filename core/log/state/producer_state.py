"""Producers (KIP-98): the last five batches of each, so that a retry is answered, not stored again, and the open
transactions.

The rules are Kafka's since 2.5. An unknown producer id may begin with any sequence, because retention may have deleted
its records. A new epoch begins with sequence 0. Within an epoch each batch follows the last one; sequences wrap from
2^31 - 1 to 0. Five batches are kept because a client has at most five requests in flight.

A transactional batch opens a transaction, a marker ends it; both may raise the epoch (docs/transactions.md, T9, T10).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from ...errors import CorruptRecordError
from ...records.control import TransactionMarker
from ...records.header import DERIVED_PRODUCER_IDS, MARKER, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader
from ...records.native import crc32c
from ...records.partition import TopicPartition
from ..errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from .transactions import EndedTransaction, Transactions

BATCHES_KEPT: Final = 5
MAX_PRODUCERS: Final = 100_000
"""Upper bound of the producers of one partition; a new one beyond it replaces the least recently active one that has no
transaction open."""

SNAPSHOT_VERSION: Final = 3
_PREFIX: Final = Struct(">HII")
_TIME: Final = Struct(">q")
_ENDED: Final = Struct(">I")
_ENDED_TRANSACTION: Final = Struct(">qq")
_PRODUCER: Final = Struct(">qhqiqB")
_BATCH: Final = Struct(">iiqqq")
_MAX_SEQUENCE: Final = 2**31 - 1
NO_COORDINATOR_EPOCH: Final = -1
_NO_OFFSET: Final = -1


class BatchEntry(NamedTuple):
    """A stored batch of a producer. `timestamp_ms` is its max timestamp."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class OpenTransaction(NamedTuple):
    """A transaction that no marker has ended. `coordinator_epoch`: that of the producer's last marker, at least 0;
    `timestamp_ms`: the max timestamp of its last batch."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    coordinator_epoch: int
    timestamp_ms: int


class LastBatch(NamedTuple):
    """The last batch of a producer in its epoch. `last_offset`: None if a marker has raised the epoch, and no batch
    followed: the marker alone has the epoch then."""

    epoch: int
    last_offset: int | None

    def is_of(self, header: BatchHeader) -> bool:
        """Returns True if `header` is of this batch."""
        if self.last_offset is None:
            return header.is_control and header.producer_epoch == self.epoch
        return header.last_offset == self.last_offset


class ProducerStateEntry:
    """The epoch of one producer and its last batches in that epoch, the oldest first. `seen_ms`: when it last sent a
    batch, by `ProducerState`'s time. `coordinator_epoch`: that of its last marker, -1 if there was none."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "seen_ms")

    def __init__(
        self,
        epoch: int,
        seen_ms: int,
        batches: Iterable[BatchEntry] = (),
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
    ) -> None:
        self.epoch = epoch
        self.seen_ms = seen_ms
        self.batches = list(batches)
        self.coordinator_epoch = coordinator_epoch


class ProducerState:
    """The producers of one partition by producer id. Not thread-safe: the log's lock guards it, and the log's watermark
    lock `transactions`, so `update` of a transactional batch needs both.

    It has a time of its own, in ms, which only `expire` advances: a producer whose state is removed may store a
    batch twice, so setting the broker's clock must not make one old. The time does not pass while the log is closed.
    """

    def __init__(self, tp: TopicPartition) -> None:
        self._tp = tp
        self._producers: dict[int, ProducerStateEntry] = {}  # the least recently active first
        self._highest_id = NO_PRODUCER_ID
        self._now_ms = 0
        self.transactions = Transactions()

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
        """Returns the stored batch if this one is a retry of it, None if it is new. Raises `InvalidProducerEpochError`,
        `OutOfOrderSequenceError` or `InvalidTransactionStateError` if it must not be stored."""
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
        if header.producer_epoch == producer.epoch:
            last = producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE
            expected = 0 if last == _MAX_SEQUENCE else last + 1
            if header.base_sequence != expected:
                raise OutOfOrderSequenceError(
                    f"{self._tp}: producer {header.producer_id} sent the sequence {header.base_sequence}, "
                    f"expected {expected} (epoch {header.producer_epoch})"
                )
        is_open = header.producer_id in self.transactions.first_offsets
        if is_open and not header.is_transactional:
            raise InvalidTransactionStateError(
                f"{self._tp}: producer {header.producer_id} sent a batch outside its open transaction"
            )
        return None

    def check_marker(self, header: BatchHeader, marker: TransactionMarker, *, raises_epoch: bool) -> None:
        """Raises `TransactionCoordinatorFencedError` or `InvalidProducerEpochError` if a marker must not be stored
        (T9). `raises_epoch`: the marker is of transaction version 2, in which each transaction has an epoch of its own,
        so a marker has a higher one than its batches."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"{self._tp}: a marker for producer {header.producer_id} has the coordinator epoch "
                f"{marker.coordinator_epoch}, but the last one here had {producer.coordinator_epoch}"
            )
        epoch, is_open = header.producer_epoch, header.producer_id in self.transactions.first_offsets
        if epoch < producer.epoch or (raises_epoch and is_open and epoch == producer.epoch):
            raise InvalidProducerEpochError(
                f"{self._tp}: a marker for producer {header.producer_id} has the epoch {epoch}, "
                f"but the last epoch here was {producer.epoch}"
            )

    def update(self, header: BatchHeader, marker: TransactionMarker | None = None) -> EndedTransaction | None:
        """Records a stored batch, whose header has its offsets; `marker`: its content, if it is one. Returns the
        transaction that it has ended, if any. Ignores batches without producer id, and those without sequence that are
        no markers."""
        kind = header.attributes & MARKER
        if header.producer_id == NO_PRODUCER_ID or (header.base_sequence == NO_SEQUENCE and kind != MARKER):
            return None
        producer = self._producers.pop(header.producer_id, None)
        if producer is None:
            producer = ProducerStateEntry(header.producer_epoch, self._now_ms)
            self._saw(header.producer_id)
            if len(self._producers) >= MAX_PRODUCERS:
                self._evict()
        elif producer.epoch != header.producer_epoch:
            producer = ProducerStateEntry(
                header.producer_epoch, self._now_ms, coordinator_epoch=producer.coordinator_epoch
            )
        producer.seen_ms = self._now_ms
        self._producers[header.producer_id] = producer
        if kind == MARKER:
            if marker is None:  # compaction has emptied it: only the producer's epoch is left
                return None
            producer.coordinator_epoch = marker.coordinator_epoch
            return self.transactions.end(header.producer_id, header.base_offset, commit=marker.commit)
        batches = producer.batches
        batches.append(
            BatchEntry(
                header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, header.max_timestamp
            )
        )
        if len(batches) > BATCHES_KEPT:
            del batches[0]
        if header.is_transactional:
            self.transactions.begin(header.producer_id, header.base_offset)
        return None

    def _evict(self) -> None:
        """Removes the least recently active producer without an open transaction, if there is one."""
        for producer_id in self._producers:
            if producer_id not in self.transactions.first_offsets:
                del self._producers[producer_id]
                return

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

    def open_transactions(self) -> list[OpenTransaction]:
        """Returns the open transactions in the order of their first offsets."""
        found = []
        for producer_id, first_offset in self.transactions.first_offsets.items():
            producer = self._producers[producer_id]
            timestamp_ms = producer.batches[-1].timestamp_ms if producer.batches else NO_TIMESTAMP
            found.append(
                OpenTransaction(
                    producer_id, producer.epoch, first_offset, max(producer.coordinator_epoch, 0), timestamp_ms
                )
            )
        return found

    def last_batches(self) -> dict[int, LastBatch]:
        """Returns the last batch of each producer, whose header compaction must keep."""
        return {
            pid: LastBatch(producer.epoch, producer.batches[-1].last_offset if producer.batches else None)
            for pid, producer in self._producers.items()
        }

    def expire(self, passed_ms: int, expiration_ms: int) -> int:
        """Removes producers that have sent nothing for longer than `expiration_ms`, and have no transaction open;
        returns their number. `passed_ms`:
        the time since the last call. The times of the records do not count, because records of any age may be
        produced."""
        self._now_ms += passed_ms
        until_ms = self._now_ms - expiration_ms
        idle = takewhile(lambda item: item[1].seen_ms < until_ms, self._producers.items())
        old = [pid for pid, _ in idle if pid not in self.transactions.first_offsets]
        for pid in old:
            del self._producers[pid]
        return len(old)

    def clear(self) -> None:
        """Removes all producers."""
        self._producers.clear()
        self.transactions = Transactions()

    def to_bytes(self) -> bytes:
        """Returns a snapshot: version (uint16), CRC-32C of what follows the next field (uint32), number of producers
        (uint32), the state's time (int64 ms); for each producer its id (int64), epoch (int16), `seen_ms` (int64),
        coordinator epoch (int32), first offset of its open transaction (int64, -1 if none is open), number of batches
        (uint8); for each batch its first and last sequence (int32), base and last offset (int64),
        max timestamp (int64). Then the number of ended transactions whose marker may not be replicated
        (uint32), and the first offset and the marker's of each (int64)."""
        first_offsets = self.transactions.first_offsets
        body = bytearray(_TIME.pack(self._now_ms))
        for pid, producer in self._producers.items():
            first = first_offsets.get(pid, _NO_OFFSET)
            body += _PRODUCER.pack(
                pid, producer.epoch, producer.seen_ms, producer.coordinator_epoch, first, len(producer.batches)
            )
            for entry in producer.batches:
                body += _BATCH.pack(*entry)
        body += _ENDED.pack(len(self.transactions.ended))
        for ended in self.transactions.ended:
            body += _ENDED_TRANSACTION.pack(*ended)
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
            first_offsets: list[tuple[int, int]] = []
            for _ in range(count):
                pid, epoch, seen_ms, coordinator_epoch, first, batches = _PRODUCER.unpack_from(data, pos)
                pos += _PRODUCER.size
                end = pos + batches * _BATCH.size
                entries = [BatchEntry._make(_BATCH.unpack_from(data, at)) for at in range(pos, end, _BATCH.size)]
                state._producers[pid] = ProducerStateEntry(epoch, seen_ms, entries, coordinator_epoch)
                if first != _NO_OFFSET:
                    first_offsets.append((pid, first))
                state._saw(pid)
                pos = end
            (count_ended,) = _ENDED.unpack_from(data, pos)
            pos += _ENDED.size
            end = pos + count_ended * _ENDED_TRANSACTION.size
            ended = [_ENDED_TRANSACTION.unpack_from(data, at) for at in range(pos, end, _ENDED_TRANSACTION.size)]
            state.transactions = Transactions(first_offsets, ended)
            pos = end
            if pos != len(data):  # no CRC covers the number of producers
                raise CorruptRecordError(f"a producer snapshot contains more than the {count} producers in its header")
        except StructError as error:
            raise CorruptRecordError(f"a producer snapshot is incomplete: {error}") from error
        return state
