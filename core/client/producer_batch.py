"""A batch on its way: records of one partition, sent and sent again as one."""

from __future__ import annotations

from dataclasses import dataclass

from klamm.core.client.record_future import BatchOutcome
from klamm.core.records.encode import RecordTuple, encode_batch
from klamm.core.records.header import NO_PRODUCER_ID, NO_SEQUENCE
from klamm.core.seams.codec import Codec


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer id and epoch, as InitProducerId gave them or as the epoch was bumped since (KIP-360)."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = -1


ANONYMOUS = ProducerIdentity()


class ProducerBatch:
    """Records [first, first + count) of an outcome.

    `sequence` is the first record's, None until one is assigned; it and the identity stay over retries, so that the
    broker knows a copy. `in_doubt`: an earlier try may have been stored (its answer did not come)."""

    __slots__ = (
        "_encoded",
        "attempts",
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
        "tries",
    )

    def __init__(self, outcome: BatchOutcome, created_s: float, number: int = 0, first: int = 0) -> None:
        self.outcome = outcome
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
        self._encoded: bytes | None = None

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def order(self) -> tuple[int, int]:
        """Its place among the partition's batches: the order in which records were sent, and stay."""
        return self.number, self.first

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    def assign(self, identity: ProducerIdentity, sequence: int | None) -> None:
        self.identity, self.sequence, self.tries = identity, sequence, 0
        self._encoded = None

    def encode(self, codec: Codec | None) -> bytes:
        """The whole record batch; made once for each assignment."""
        if self._encoded is None:
            self._encoded = encode_batch(
                self.records,
                codec=codec,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                base_sequence=NO_SEQUENCE if self.sequence is None else self.sequence,
            )
        return self._encoded

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Two halves for a broker that found the whole too large; sequence numbers go with the records."""
        middle = self.count // 2
        halves = []
        for start, records in ((0, self.records[:middle]), (middle, self.records[middle:])):
            half = ProducerBatch(self.outcome, self.created_s, self.number, self.first + start)
            half.records = records
            half.size = self.size // 2 if start == 0 else self.size - self.size // 2
            half.closed = True
            half.attempts = self.attempts
            half.in_doubt = self.in_doubt
            half.halved = True
            half.assign(self.identity, None if self.sequence is None else wrap_sequence(self.sequence + start))
            half.tries = self.tries
            halves.append(half)
        return halves[0], halves[1]

    def release(self) -> None:
        """Settled: the records are of no more use."""
        self.settled = True
        self.records = []
        self._encoded = None


def wrap_sequence(sequence: int) -> int:
    """Sequence numbers go from 0 to 2^31 - 1 and then begin again (as in Kafka)."""
    return sequence & 0x7FFFFFFF
