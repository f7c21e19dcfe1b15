"""A producer's batch: records of one partition that are sent, retried and settled together.

Every change of state goes through `BATCH_STATES`.

`partition_queue` decides which event a response is. Only an open batch takes records. The records of a split batch are
put into two new batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ...interfaces.audit import Counted
from ...interfaces.codec import Codec
from ...records import native
from ...records.encode import RecordTuple, assemble
from ...records.header import HEADER_SIZE, NO_PRODUCER_ID, NO_SEQUENCE
from ...records.record import Headers
from ...state_table import StateTable
from .record_future import BatchOutcome

__all__ = [
    "ANONYMOUS",
    "BATCH_STATES",
    "BatchAudit",
    "BatchEvent",
    "BatchState",
    "ColumnBatch",
    "EncodedRows",
    "ProducerBatch",
    "ProducerIdentity",
    "by_window",
    "wrap_sequence",
]


class BatchState(Enum):
    OPEN = "open"
    WAITING = "waiting"
    IN_FLIGHT = "in flight"
    STORED = "stored"
    SPLIT = "split"
    FAILED = "failed"


class BatchEvent(Enum):
    CLOSE = "full, or a newer batch"
    SEND = "taken by the sender"
    STORE = "stored"
    RETRY = "retriable error"
    SPLIT = "too large"
    FAIL = "permanent error or time-out"


BATCH_STATES: Final = StateTable(
    "batch", BatchState, BatchEvent,
    """
    state      event                        next state
    open       full, or a newer batch       waiting
    open       taken by the sender          in flight
    open       permanent error or time-out  failed
    waiting    taken by the sender          in flight
    waiting    permanent error or time-out  failed
    in flight  stored                       stored
    in flight  retriable error              waiting
    in flight  too large                    split
    in flight  permanent error or time-out  failed
    """,
)  # fmt: skip
_OPEN = BatchState.OPEN
_SETTLED = (BatchState.STORED, BatchState.SPLIT, BatchState.FAILED)


@dataclass(frozen=True, slots=True)
class BatchAudit:
    """The audit's part in a partition's batches. `mark` returns the headers to add to a batch's first record.
    `window_ms`: the length of the windows by which records are counted. `room`: the bytes reserved at the front of
    an encoded batch, so that the first record can grow without moving the others; larger headers are added all the
    same."""

    mark: Callable[[Counted], Headers]
    window_ms: int
    room: int = 0


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and epoch: from InitProducerId, or with the epoch increased since (KIP-360)."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = -1


ANONYMOUS = ProducerIdentity()


class ProducerBatch:
    """Records [first, first + count) of an outcome.

    `sequence` is the first record's sequence number, None until one is assigned. It and the identity stay the same over
    retries, so that the broker recognizes a duplicate. `in_doubt`: an earlier attempt may have been stored (its
    response was lost). The audit's headers are added when the batch is encoded, since its records are known only then;
    `attempt_reported`: the audit has counted its records as attempted.
    """

    __slots__ = (
        "_counted",
        "_encoded",
        "attempt_reported",
        "attempts",
        "audit",
        "created_s",
        "first",
        "halved",
        "identity",
        "in_doubt",
        "last_error",
        "number",
        "outcome",
        "records",
        "retry_at_s",
        "sequence",
        "size",
        "state",
        "tries",
    )

    def __init__(
        self, outcome: BatchOutcome, created_s: float, number: int = 0, first: int = 0, audit: BatchAudit | None = None
    ) -> None:
        self.outcome = outcome
        self.audit = audit
        self.attempt_reported = False
        self._counted: Counted | None = None
        self.number = number
        self.created_s = created_s
        self.first = first
        self.records: list[RecordTuple] = []
        self.size = 0
        """Estimated bytes before compression."""
        self.state: BatchState = BATCH_STATES.initial
        self.attempts = 0
        self.tries = 0
        """Attempts with the present sequence number."""
        self.retry_at_s = 0.0
        self.identity = ANONYMOUS
        self.sequence: int | None = None
        self.in_doubt = False
        self.halved = False
        """True for half of a split batch: the broker would not recognize it as a duplicate if the whole batch was
        stored."""
        self.last_error: Exception | None = None
        """The error of the last attempt."""
        self._encoded: bytearray | None = None

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def closed(self) -> bool:
        """True if the batch takes no more records."""
        return self.state is not _OPEN

    @property
    def settled(self) -> bool:
        return self.state in _SETTLED

    def move(self, event: BatchEvent) -> None:
        """Raises `IllegalTransitionError` if the table has no row for `event` in the present state."""
        self.state = BATCH_STATES.next(self.state, event)

    def close(self) -> None:
        """Takes no more records from now on."""
        if self.state is _OPEN:
            self.move(BatchEvent.CLOSE)

    @property
    def order(self) -> tuple[int, int]:
        """The batch's position among the partition's batches: the order in which the application sent the records."""
        return self.number, self.first

    @property
    def end(self) -> int:
        return self.first + self.count

    def assign(self, identity: ProducerIdentity, sequence: int | None) -> None:
        self.identity, self.sequence, self.tries = identity, sequence, 0
        self._encoded = None

    def encode(self, codec: Codec | None) -> bytearray:
        """Returns the whole record batch; encoded once for each assignment of a sequence number."""
        if self._encoded is None:
            sequence = NO_SEQUENCE if self.sequence is None else self.sequence
            producer = (self.identity.producer_id, self.identity.epoch, sequence)
            batch, base, latest = self._open()
            self._encoded = assemble(batch, codec, (base, latest), producer, self.count)
        return self._encoded

    def _open(self) -> tuple[bytearray, int, int]:
        """Returns the encoded records, marked by the audit, behind zeroes in place of the batch's header; the first
        timestamp and the latest."""
        audit = self.audit
        if audit is None:
            return native.encode_records(self.records)[:3]
        batch, base, latest, runs = native.encode_records(self.records, audit.room, audit.window_ms)
        self._counted = by_window(runs)
        native.add_headers(batch, audit.room, audit.mark(self._counted))
        return batch, base, latest

    def counted(self) -> Counted:
        """Returns the counts of all records by window; empty without an audit."""
        if self._counted is None and self.audit is not None:
            self._counted = by_window(native.encode_records(self.records, 0, self.audit.window_ms)[3])
        return self._counted or ()

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Returns the two halves of a batch that the broker found too large; each record keeps its sequence number."""
        middle = self.count // 2
        halves = []
        whole = self._rows()
        for start, records in ((0, whole[:middle]), (middle, whole[middle:])):
            half = ProducerBatch(self.outcome, self.created_s, self.number, self.first + start, self.audit)
            half.records = records
            half.size = self.size // 2 if start == 0 else self.size - self.size // 2
            half.close()
            half.attempts = self.attempts
            half.in_doubt = self.in_doubt
            half.halved = True
            half.assign(self.identity, None if self.sequence is None else wrap_sequence(self.sequence + start))
            half.tries = self.tries
            half.attempt_reported = self.attempt_reported
            halves.append(half)
        return halves[0], halves[1]

    def _rows(self) -> list[RecordTuple]:
        return self.records

    def release(self) -> None:
        """Frees the records of a settled batch."""
        self.records = []
        self._encoded = None


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows of a table as `native.encode_columns` encodes them: the records behind `room` bytes and the bytes of a
    header, their number, the first timestamp and the latest; `counted` are the audit's counts."""

    batch: bytearray
    count: int
    base_timestamp: int
    max_timestamp: int
    counted: Counted
    room: int = 0


class ColumnBatch(ProducerBatch):
    """A batch encoded from the columns of a table; closed from the start."""

    __slots__ = ("_encoded_rows", "_marks")

    def __init__(
        self,
        outcome: BatchOutcome,
        created_s: float,
        number: int,
        encoded: EncodedRows,
        audit: BatchAudit | None = None,
    ) -> None:
        super().__init__(outcome, created_s, number, audit=audit)
        self._encoded_rows = encoded
        self._counted = encoded.counted
        self._marks: int | None = None
        """The number of headers that the audit has added to the first row; None before the batch was encoded."""
        self.size = len(encoded.batch) - encoded.room
        self.close()
        outcome.count = encoded.count

    @property
    def count(self) -> int:
        return self._encoded_rows.count

    def _open(self) -> tuple[bytearray, int, int]:
        """Marks the batch in place, once, before anything refers to its bytes."""
        encoded = self._encoded_rows
        if self._marks is None:
            more = () if self.audit is None else self.audit.mark(encoded.counted)
            if encoded.room or more:
                native.add_headers(encoded.batch, encoded.room, more)
            self._marks = len(more)
        return encoded.batch, encoded.base_timestamp, encoded.max_timestamp

    def _rows(self) -> list[RecordTuple]:
        encoded = self._encoded_rows
        first = HEADER_SIZE + (encoded.room if self._marks is None else 0)
        with memoryview(encoded.batch) as view:
            said = (encoded.count, 0, encoded.count - 1, encoded.base_timestamp, False)
            _, stamps, keys, values, headers = native.lists(view[first:], *said)
        if self._marks:  # each half gets its own headers
            headers[0] = headers[0][: -self._marks]
        return list(zip(stamps, keys, values, headers, strict=True))

    def release(self) -> None:
        super().release()
        self._encoded_rows = _NOTHING


_NOTHING = EncodedRows(bytearray(), 0, -1, -1, ())


def by_window(runs: Sequence[tuple[int, int, int]]) -> Counted:
    """Returns the counts with one item for each window. Most batches have one window."""
    if len(runs) == 1:
        return tuple(runs)
    found: dict[int, tuple[int, int]] = {}
    for start, records, size in runs:
        more, before = found.get(start, (0, 0))
        found[start] = more + records, before + size
    return tuple((start, records, size) for start, (records, size) in found.items())


def wrap_sequence(sequence: int) -> int:
    """Returns the sequence number within its range: 0 to 2^31 - 1, then 0 again (as in Kafka)."""
    return sequence & 0x7FFFFFFF
