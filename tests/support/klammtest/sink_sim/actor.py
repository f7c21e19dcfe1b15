"""An attempt of a task in the simulation: does what the production state machine asks for, a moment at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from random import Random

from klamm.core.records.header import BatchHeader
from klamm.hadoop.spark.attempt import (
    Announce,
    Append,
    Attempt,
    Claim,
    Digest,
    Done,
    Effect,
    FoundRows,
    ReadAnnounced,
    ReadEnds,
    ReadRegister,
    Refuse,
    RegisterBatch,
    Scan,
    Send,
    SentBatch,
    Verify,
)
from klamm.hadoop.spark.claims import TaskIdentity

from .cluster import Cluster, InvalidProducerEpochError, OutOfOrderSequenceError, Partition

NO_PRODUCER = (-1, -1)


class Rows:
    """A chunk: a row is its own hash."""

    def __init__(self, rows: Sequence[Digest]) -> None:
        self.rows = list(rows)

    @property
    def nbytes(self) -> int:
        return len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def digests(self) -> Sequence[Digest]:
        return self.rows

    def take(self, places: Sequence[int]) -> Rows:
        return Rows([self.rows[place] for place in places])


def _key(header: BatchHeader) -> tuple[int, int, int]:
    return header.producer_id, header.producer_epoch, header.base_sequence


class Actor:
    """`rows` are the attempt's, in its order. `steps` runs it; afterwards `refused` is the reason or None."""

    def __init__(
        self,
        cluster: Cluster,
        identity: TaskIdentity,
        name: str,
        rows: Sequence[Digest],
        attempt: Attempt[Rows],
        random: Random,
    ) -> None:
        self.cluster = cluster
        self.identity = identity
        self.name = name
        self.attempt = attempt
        self.refused: str | None = None
        self.done = False
        self._rows = rows
        self._random = random
        self.producer = identity.producer("t", None)
        self._producer_key = (self.producer.producer_id, self.producer.epoch)
        self._claims = cluster.claims
        self._next: dict[int, int] = {}

    def steps(self) -> Iterator[None]:
        attempt = self.attempt
        attempt.start()
        yield from self._act()
        if attempt.claim is None or self.refused is not None:
            return
        partitions = sorted(attempt.claim.starts)
        left = list(self._rows)
        while left:
            size = self._random.randint(1, 6)
            share, left = left[:size], left[size:]
            for number in partitions:
                mine = [row for row in share if partitions[zlib.crc32(row) % len(partitions)] == number]
                if mine and self.refused is None:
                    attempt.add(number, Rows(mine))
                    yield from self._act()
            if self.refused is None and self._random.random() < 0.5:
                attempt.flush()
                yield from self._act()
            yield None
        if self.refused is None:
            attempt.finish()
            yield from self._act()
            self.done = self.refused is None

    def _act(self) -> Iterator[None]:
        while (effect := self.attempt.effect) is not None and not isinstance(effect, Done):
            yield None
            if isinstance(effect, Refuse):
                self.refused = effect.reason
                return
            yield from self._do(effect)

    def _do(self, effect: Effect[Rows]) -> Iterator[None]:
        attempt, cluster = self.attempt, self.cluster
        match effect:
            case ReadEnds():
                attempt.ends(
                    {n: log.high_watermark for n, log in enumerate(cluster.topic)}, self._claims.high_watermark
                )
            case ReadRegister():
                attempt.registered(cluster.register)
            case RegisterBatch(entry):
                cluster.register = entry
                yield None
                attempt.stored_register()
            case Append(sequence, claim, since):
                yield from self._append(sequence, claim, since)
            case Scan():
                yield from self._scan()
            case Announce():
                yield from self._announce()
            case ReadAnnounced(claims, _):
                attempt.tasks(self._tasks(), self._announced(claims))
            case Send(rows, read_back):
                yield from self._send_all(rows, read_back)
            case Verify(batches):
                attempt.verified(all(self._holds(batch) for batch in batches))

    def _append(self, sequence: int, claim: Claim, since: int) -> Iterator[None]:
        log = self._claims
        try:
            offset = yield from self.cluster.produce(log, self._producer_key, sequence, [claim], 0)
        except InvalidProducerEpochError:
            self.attempt.later_batch()
            return
        stored = next(
            b.content[0] for b in log.visible(min(since, offset)) if _key(b.header) == (*self._producer_key, sequence)
        )
        assert isinstance(stored, Claim)
        if sequence == 0:
            self._next = dict(stored.starts)
        self.attempt.appended(stored)

    def _scan(self) -> Iterator[None]:
        found = {}
        for number in self._next:
            log = self.cluster.topic[number]
            rows: dict[int, Digest] = {}
            following = 0
            for batch in log.visible(self._next[number]):
                header = batch.header
                if _key(header)[:2] == self._producer_key:
                    rows |= {header.base_sequence + place: row for place, row in enumerate(batch.content)}  # type: ignore[misc]
                    following = max(following, header.last_sequence + 1)
            found[number] = FoundRows(following, rows)
            self._next[number] = max(self._next[number], log.high_watermark)
            yield None
        self.attempt.scanned(found)

    def _announce(self) -> Iterator[None]:
        found = (self.identity.run, self.identity.batch, self.identity.task)
        yield from self.cluster.produce(self._claims, NO_PRODUCER, -1, [found], 0)
        self.attempt.announced()

    def _announced(self, start: int) -> set[int]:
        found = (one for batch in self._claims.visible(start) for one in batch.content)
        mine = (self.identity.run, self.identity.batch)
        return {one[2] for one in found if isinstance(one, tuple) and one[:2] == mine}

    def _tasks(self) -> set[int]:
        claim = self.attempt.claim
        assert claim is not None
        batches = (
            b.header for number, start in claim.starts.items() for b in self.cluster.topic[number].visible(start)
        )
        found = {self.producer.task_of(header.producer_id, header.producer_epoch) for header in batches}
        return {task for task in found if task is not None}

    def _send_all(self, rows: object, read_back: bool) -> Iterator[None]:
        assert isinstance(rows, dict)
        for number, (first, chunks) in rows.items():
            sequence, left = first, [row for chunk in chunks for row in chunk.rows]
            while left:
                size = self._random.randint(1, 3)
                batch, left = left[:size], left[size:]
                log = self.cluster.topic[number]
                crc = hash(tuple(batch))
                try:
                    offset = yield from self.cluster.produce(log, self._producer_key, sequence, batch, crc)
                except OutOfOrderSequenceError:
                    self.attempt.batch_refused()
                    return
                except InvalidProducerEpochError:
                    self.attempt.later_batch()
                    return
                sent = SentBatch(number, sequence, len(batch), offset, crc)
                if read_back and not self._holds(sent):
                    self.attempt.batch_refused()
                    return
                self.attempt.batch_stored(sent)
                sequence += len(batch)
        self.attempt.sent()

    def _holds(self, sent: SentBatch) -> bool:
        log: Partition = self.cluster.topic[sent.partition]
        return any(b.header.base_offset == sent.base_offset and b.header.crc == sent.crc for b in log.batches)
