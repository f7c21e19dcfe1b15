"""A batch on its way: records of one partition, sent and sent again as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...interfaces.audit import Counted
from ...interfaces.codec import Codec
from ...records import native
from ...records.encode import RecordTuple, assemble
from ...records.first_record import add_to_first
from ...records.header import HEADER_SIZE, NO_PRODUCER_ID, NO_SEQUENCE
from ...records.record import Headers
from .record_future import BatchOutcome


@dataclass(frozen=True, slots=True)
class BatchAudit:
    """What the audit wants of a partition's batches. `mark`: what the first record has besides its own headers;
    `window_ms`: how long the windows are that records are counted by."""

    mark: Callable[[Counted], Headers]
    window_ms: int


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and epoch, as InitProducerId gave them or as the epoch was bumped since (KIP-360)."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = -1


ANONYMOUS = ProducerIdentity()


class ProducerBatch:
    """Records [first, first + count) of an outcome.

    `sequence` is the first record's, None until one is assigned; it and the identity stay over retries, so that the
    broker knows a copy. `in_doubt`: an earlier try may have been stored (its answer did not come). What the
    `audit` wants is done when the batch is encoded, for only then it is known which records it has; `told`: the audit
    knows that they are attempted."""

    __slots__ = (
        "_counted",
        "_encoded",
        "attempts",
        "audit",
        "closed",
        "created_s",
        "first",
        "halved",
        "identity",
        "in_doubt",
        "number",
        "outcome",
        "problem",
        "records",
        "retry_at_s",
        "sequence",
        "settled",
        "size",
        "told",
        "tries",
    )

    def __init__(
        self, outcome: BatchOutcome, created_s: float, number: int = 0, first: int = 0, audit: BatchAudit | None = None
    ) -> None:
        self.outcome = outcome
        self.audit = audit
        self.told = False
        self._counted: Counted | None = None
        self.number = number
        self.created_s = created_s
        self.first = first
        self.records: list[RecordTuple] = []
        self.size = 0
        """Estimated bytes before compression."""
        self.closed = False
        """No more records are taken."""
        self.attempts = 0
        self.tries = 0
        """Attempts under its present sequence number."""
        self.retry_at_s = 0.0
        self.identity = ANONYMOUS
        self.sequence: int | None = None
        self.in_doubt = False
        self.halved = False
        """Part of a larger one: the broker would not know it again if the whole is stored."""
        self.settled = False
        self.problem: Exception | None = None
        """Why the last try failed."""
        self._encoded: bytearray | None = None

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def order(self) -> tuple[int, int]:
        """Its place among the partition's batches: the order in which records were sent, and stay."""
        return self.number, self.first

    @property
    def end(self) -> int:
        return self.first + self.count

    def assign(self, identity: ProducerIdentity, sequence: int | None) -> None:
        self.identity, self.sequence, self.tries = identity, sequence, 0
        self._encoded = None

    def encode(self, codec: Codec | None) -> bytearray:
        """The whole record batch; made once for each assignment."""
        if self._encoded is None:
            sequence = NO_SEQUENCE if self.sequence is None else self.sequence
            producer = (self.identity.producer_id, self.identity.epoch, sequence)
            batch, base, latest = self._open()
            if self.audit is not None:
                self._mark(self.audit, batch, base)
            self._encoded = assemble(batch, codec, (base, latest), producer, self.count)
        return self._encoded

    def _open(self) -> tuple[bytearray, int, int]:
        """The records with room for a header, the first timestamp and the latest."""
        return native.encode_records(self.records)

    def _mark(self, audit: BatchAudit, batch: bytearray, base_timestamp: int) -> None:
        if self._counted is None:
            self._counted = _count(batch, base_timestamp, self.count, audit.window_ms)
        if more := audit.mark(self._counted):
            add_to_first(batch, more)

    def counted(self) -> Counted:
        """All records, where there is an audit; known when the batch was encoded, or counted now."""
        if self._counted is None and self.audit is not None:
            batch, base, _ = native.encode_records(self.records)
            self._counted = _count(batch, base, self.count, self.audit.window_ms)
        return self._counted or ()

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Two halves for a broker that found the whole too large; sequence numbers go with the records."""
        middle = self.count // 2
        halves = []
        whole = self._rows()
        for start, records in ((0, whole[:middle]), (middle, whole[middle:])):
            half = ProducerBatch(self.outcome, self.created_s, self.number, self.first + start, self.audit)
            half.records = records
            half.size = self.size // 2 if start == 0 else self.size - self.size // 2
            half.closed = True
            half.attempts = self.attempts
            half.in_doubt = self.in_doubt
            half.halved = True
            half.assign(self.identity, None if self.sequence is None else wrap_sequence(self.sequence + start))
            half.tries = self.tries
            half.told = self.told
            halves.append(half)
        return halves[0], halves[1]

    def _rows(self) -> list[RecordTuple]:
        return self.records

    def release(self) -> None:
        """Settled: the records are of no more use."""
        self.settled = True
        self.records = []
        self._encoded = None


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows of a table as `native.encode_columns` gives them: the records with room for a header, how many, the first
    timestamp and the latest; `counted` as the audit wants it."""

    batch: bytearray
    count: int
    base_timestamp: int
    max_timestamp: int
    counted: Counted


class ColumnBatch(ProducerBatch):
    """A batch that came encoded, from the columns of a table; takes no more records."""

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
        """Headers that the audit has added to the first row; None before it was encoded."""
        self.size = len(encoded.batch)
        self.closed = True
        outcome.count = encoded.count

    @property
    def count(self) -> int:
        return self._encoded_rows.count

    def _open(self) -> tuple[bytearray, int, int]:
        encoded = self._encoded_rows
        return encoded.batch, encoded.base_timestamp, encoded.max_timestamp

    def _mark(self, audit: BatchAudit, batch: bytearray, base_timestamp: int) -> None:
        """Once, in place, before anything holds the bytes."""
        del base_timestamp  # its rows were counted when they were encoded
        if self._marks is None:
            more = audit.mark(self._encoded_rows.counted)
            if more:
                add_to_first(batch, more)
            self._marks = len(more)

    def _rows(self) -> list[RecordTuple]:
        encoded = self._encoded_rows
        with memoryview(encoded.batch) as view:
            said = (encoded.count, 0, encoded.count - 1, encoded.base_timestamp, False)
            _, stamps, keys, values, headers = native.lists(view[HEADER_SIZE:], *said)
        if self._marks:  # each half gets its own
            headers[0] = headers[0][: -self._marks]
        return list(zip(stamps, keys, values, headers, strict=True))

    def release(self) -> None:
        super().release()
        self._encoded_rows = _NOTHING


_NOTHING = EncodedRows(bytearray(), 0, -1, -1, ())


def _count(batch: bytearray, base_timestamp: int, count: int, window_ms: int) -> Counted:
    """Of encoded records with room for a header in front. Most batches are of one window."""
    with memoryview(batch) as view:
        said = (count, 0, count - 1, base_timestamp, False, 0, count, window_ms)
        runs = native.window_counts(view[HEADER_SIZE:], *said)
    found: dict[int, tuple[int, int]] = {}
    for start, records, size, _ in runs:
        more, before = found.get(start, (0, 0))
        found[start] = more + records, before + size
    return tuple((start, records, size) for start, (records, size) in found.items())


def wrap_sequence(sequence: int) -> int:
    """Sequence numbers go from 0 to 2^31 - 1 and then begin again (as in Kafka)."""
    return sequence & 0x7FFFFFFF
