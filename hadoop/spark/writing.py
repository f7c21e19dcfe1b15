"""Writes the rows of a task of the sink as record batches of its own producer, in their order.

A row goes to the partition of its `partition` column, or else to that of its key, as in every Kafka client, or else to
the partitions in turn, some hundred rows each. The same rows in the same order always go to the same partitions.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.client.cluster_client import LATEST, ClusterClient
from klamm.core.client.producer.arrow import Making, Rows, buffers, read_rows
from klamm.core.client.producer.batch import EncodedRows
from klamm.core.errors import BrokerError, ErrorCode, SchemaError
from klamm.core.faults import fault_point
from klamm.core.interfaces.codec import Codec
from klamm.core.records import native
from klamm.core.records.encode import assemble
from klamm.core.records.header import BatchHeader
from klamm.core.records.partition import TopicPartition

from .attempt import (
    Announce,
    Append,
    Attempt,
    Claim,
    Digest,
    Done,
    Effect,
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
from .claims import ClaimError, ClaimLog, Register, TaskIdentity
from .cluster import edges
from .stored import StoredRows, digest, holds, same_batches

BATCH_BYTES: Final = 512 * 1024
"""Bytes of a record batch before compression; fewer if the topic accepts less."""
PENDING_BYTES: Final = 8 * 1024 * 1024
"""Bytes of rows that are collected before they are sent."""
FIRST_DELAY_S: Final = 0.05
LONGEST_DELAY_S: Final = 2.0
IN_TURN: Final = 500
"""The number of rows without a key that go to one partition before the next partition is used."""


class Values(Protocol):
    """Converts a topic's values to bytes."""

    def rows(self, topic: str, table: pa.RecordBatch) -> Rows:
        """Returns the rows of the columns `value`, and `key` and `timestamp` if they exist."""
        ...


class PlainValues:
    """Writes bytes and text unchanged."""

    def rows(self, topic: str, table: pa.RecordBatch) -> Rows:
        (found,) = read_rows(topic, table, None, None, _never, None, typed=False)
        return found


def _never(value: object) -> bytes | None:
    raise SchemaError(f"{value!r} is not serialized")


@dataclass(frozen=True, slots=True)
class Sending:
    """The settings for sending: `now_ms` is the time of rows without one, `timeout_s` bounds each batch's delivery."""

    codec: Codec | None
    now_ms: int
    timeout_s: float


class RowChunk:
    """Rows of one partition, as the attempt's state machine sees them."""

    def __init__(self, rows: Rows, stored: StoredRows) -> None:
        self.rows = rows
        self._stored = stored
        self._digests: list[Digest] | None = None

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for c in (self.rows.keys, self.rows.values, self.rows.headers) if c is not None)

    def __len__(self) -> int:
        return len(self.rows)

    def digests(self) -> Sequence[Digest]:
        if self._digests is None:
            self._digests = [digest(row, self._stored.stamped) for row in self.rows.records(-1)]
        return self._digests

    def take(self, places: Sequence[int]) -> RowChunk:
        return RowChunk(self.rows.take(pa.array(places, pa.int64())), self._stored)


class TopicSink:
    """One topic of one attempt of a task: carries out the effects of the attempt's state machine."""

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        identity: TaskIdentity,
        sending: Sending,
        register: Register,
        stamped: bool,
    ) -> None:
        self._client = client
        self._topic = topic
        self._identity = identity
        self._sending = sending
        self._register = register
        view = client.topic(topic)
        self._topic_id = view.topic_id
        self._producer = identity.producer(topic, view.topic_id)
        self._claims = ClaimLog(client, identity, topic, self._producer)
        self._attempt: Attempt[RowChunk] = Attempt(
            uuid.uuid4().hex, identity.task, identity.batch, identity.run, f"topic {topic}: {identity}",
            now_ms=sending.now_ms,
        )  # fmt: skip
        self._stored = StoredRows(client, topic, dict.fromkeys(view.partitions, 0), self._producer)
        self._stored.stamped = self._stamped = stamped
        self._pending_bytes = 0
        self._keyless = identity.task * IN_TURN  # tasks start at different partitions
        self._batch_bytes = min(BATCH_BYTES, self._largest_message() // 2)
        self._attempt.start()
        self._act()
        claim = self._attempt.claim
        if claim is None:  # not reached: without a claim the attempt is refused
            raise ClaimError(f"topic {topic}: {identity} has no claim")
        self._partitions = [TopicPartition(topic, number) for number in sorted(claim.starts)]
        self._making = Making(claim.now_ms, None)

    @property
    def written(self) -> int:
        return self._attempt.written

    @property
    def found(self) -> int:
        return self._attempt.found

    def _largest_message(self) -> int:
        return int(self._client.describe_configs(self._topic)["max.message.bytes"].value or BATCH_BYTES)

    def add(self, rows: Rows, partitions: pa.Array | None) -> None:
        """Adds rows. `partitions` is the column of that name, in which null leaves the choice to the sink."""
        for partition, share in self._shares(rows, self._chosen(rows, partitions)):
            chunk = RowChunk(share, self._stored)
            self._pending_bytes += chunk.nbytes
            self._attempt.add(partition.partition, chunk)
            self._act()
        if self._pending_bytes >= PENDING_BYTES:
            self._pending_bytes = 0
            self._attempt.flush()
            self._act()

    def finish(self) -> None:
        """Stores the remaining rows. Raises `ClaimError` if an earlier attempt stored rows that this one does not
        have.
        """
        self._attempt.finish()
        self._act()

    def _act(self) -> None:
        """Carries out the effects of the state machine until it needs rows, or is done."""
        while (effect := self._attempt.effect) is not None and not isinstance(effect, Done):
            self._do(effect)

    def _do(self, effect: Effect[RowChunk]) -> None:
        attempt = self._attempt
        match effect:
            case ReadEnds():
                ends = edges(self._client, self._client.partitions(self._topic), LATEST)
                attempt.ends({tp.partition: end for tp, end in ends.items()}, self._claims.end())
            case ReadRegister():
                attempt.registered(self._register.read().get(self._topic))
            case RegisterBatch(entry):
                self._register.store(self._topic, self._topic_id, entry)
                attempt.stored_register()
            case Append(sequence, claim, since):
                self._append(sequence, claim, since)
            case Scan(wait):
                _pause(wait)
                attempt.scanned(self._stored.search())
            case Announce():
                self._claims.announce()
                attempt.announced()
            case ReadAnnounced(claims, wait):
                _pause(wait)
                attempt.tasks(self._stored.tasks(), self._claims.announced(claims))
            case Send(rows, read_back):
                self._send_all(rows, read_back)
            case Verify(batches):
                attempt.verified(same_batches(self._client, self._topic, batches))
            case Refuse(reason):
                raise ClaimError(reason)

    def _append(self, sequence: int, claim: Claim, since: int) -> None:
        try:
            stored = self._claims.append(sequence, claim, since)
        except BrokerError as error:
            if error.code is not ErrorCode.invalid_producer_epoch:
                raise
            self._attempt.later_batch()
            return
        if sequence == 0:
            fault_point("sink.claimed")
            stamped = self._stamped
            self._stored = StoredRows(self._client, self._topic, stored.starts, self._producer)
            self._stored.stamped = stamped
        self._attempt.appended(stored)

    def _chosen(self, rows: Rows, partitions: pa.Array | None) -> pa.Array:
        """Returns a partition's number for each row."""
        count = len(self._partitions)
        if rows.keys is None:
            chosen = pa.repeat(pa.scalar(-1, pa.int32()), len(rows))
        else:
            raw = native.partitions(buffers(rows.keys), len(rows), count)
            chosen = pa.Array.from_buffers(pa.int32(), len(rows), [None, pa.py_buffer(raw)])
        if partitions is not None:
            self._check(partitions, count)
            chosen = pc.coalesce(partitions, chosen)
        without = pc.less(chosen, 0)
        if not pc.any(without).as_py():
            return chosen
        number = pc.add(pc.cumulative_sum(without.cast(pa.int64())), self._keyless - 1)
        self._keyless += pc.sum(without).as_py()
        turn = pc.divide(number, IN_TURN)
        in_turn = pc.subtract(turn, pc.multiply(pc.divide(turn, count), count)).cast(pa.int32())
        return pc.if_else(without, in_turn, chosen)

    def _check(self, partitions: pa.Array, count: int) -> None:
        wrong = pc.fill_null(pc.or_(pc.less(partitions, 0), pc.greater_equal(partitions, count)), False)
        if pc.any(wrong).as_py():
            number = partitions[pc.index(wrong, True).as_py()].as_py()
            raise SchemaError(f"klamm sink: topic {self._topic} has {count} partitions; there is no partition {number}")

    def _shares(self, rows: Rows, chosen: pa.Array) -> Iterator[tuple[TopicPartition, Rows]]:
        order = pc.array_sort_indices(chosen)  # stable
        first = 0
        for found in sorted(pc.value_counts(chosen).to_pylist(), key=lambda one: one["values"]):
            yield self._partitions[found["values"]], rows.take(order.slice(first, found["counts"]))
            first += found["counts"]

    def _send_all(self, rows: Mapping[int, tuple[int, Sequence[RowChunk]]], read_back: bool) -> None:
        """Sends the rows batch by batch, one of each partition at a time."""
        sources = {
            number: chain.from_iterable(
                self._making.batches(part, self._batch_bytes) for part in _joined([chunk.rows for chunk in chunks])
            )
            for number, (_, chunks) in rows.items()
        }
        sequences = {number: sequence for number, (sequence, _) in rows.items()}
        while sources:
            batches: dict[int, EncodedRows] = {}
            for number, source in list(sources.items()):
                batch = next(source, None)
                if batch is None:
                    del sources[number]
                else:
                    batches[number] = batch
            if batches and not self._send(batches, sequences, read_back):
                return
        self._attempt.sent()

    def _send(self, batches: Mapping[int, EncodedRows], sequences: dict[int, int], read_back: bool) -> bool:
        """Sends one batch to each partition; returns False if that ended the sending."""
        producer = self._producer
        sealed = {
            TopicPartition(self._topic, number): bytes(
                assemble(
                    rows.batch,
                    self._sending.codec,
                    (rows.base_timestamp, rows.max_timestamp),
                    (producer.producer_id, producer.epoch, sequences[number]),
                    rows.count,
                )
            )
            for number, rows in batches.items()
        }
        try:
            produced = self._client.produce(sealed, timeout_s=self._sending.timeout_s)
        except BrokerError as error:
            if error.code is ErrorCode.out_of_order_sequence_number:
                self._attempt.batch_refused()
            elif error.code is ErrorCode.invalid_producer_epoch:
                self._attempt.later_batch()
            else:
                raise
            return False
        for tp, data in sealed.items():
            number, offset = tp.partition, produced[tp].base_offset
            if read_back and not holds(self._client, tp, offset, data, self._stored.stamped):
                self._attempt.batch_refused()
                return False
            count, crc = batches[number].count, BatchHeader.parse(data).crc
            self._attempt.batch_stored(SentBatch(number, sequences[number], count, offset, crc))
            sequences[number] += count
        fault_point("sink.produced")
        return True


class TaskSink:
    """All topics of one attempt of a task."""

    def __init__(self, client: ClusterClient, identity: TaskIdentity, values: Values, sending: Sending) -> None:
        self._client = client
        self._identity = identity
        self._values = values
        self._sending = sending
        self._register = Register(client, identity)
        self._topics: dict[str, TopicSink] = {}

    def write(self, batches: Iterator[pa.RecordBatch], topic: str | None) -> tuple[int, int]:
        """Writes the batches; returns how many rows were written now, and how many had been written already. Without a
        `topic`, each row's column names it.
        """
        for batch in batches:
            for name, share in _by_topic(batch, topic):
                self._add(name, share)
        registered = self._register.read() if self._register.last is None else self._register.last
        for name, entry in registered.items():
            # Another run may have had rows for this topic in this task.
            if entry.batch == self._identity.batch and (entry.run != self._identity.run or not entry.run):
                self._open(name, stamped=False)
        for sink in self._topics.values():
            sink.finish()
        return sum(s.written for s in self._topics.values()), sum(s.found for s in self._topics.values())

    def _add(self, topic: str, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        columns = batch.schema.names
        rows = self._values.rows(topic, batch.select([c for c in ("key", "value", "timestamp") if c in columns]))
        if "headers" in columns:
            headers = batch.column("headers")
            _check_names(topic, headers)
            if pc.max(pc.fill_null(pc.list_value_length(headers), 0)).as_py():
                rows = replace(rows, headers=headers)
        sink = self._open(topic, stamped=rows.timestamps is not None)
        sink.add(rows, batch.column("partition") if "partition" in columns else None)

    def _open(self, topic: str, stamped: bool) -> TopicSink:
        sink = self._topics.get(topic)
        if sink is None:
            sink = TopicSink(self._client, topic, self._identity, self._sending, self._register, stamped)
            self._topics[topic] = sink
        return sink


def _pause(wait: int) -> None:
    """Waits before a step is repeated; `wait` is the number of repetitions so far."""
    if wait:
        time.sleep(min(FIRST_DELAY_S * 2 ** min(wait, 10), LONGEST_DELAY_S))


def _by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if topic is not None:
        yield topic, batch
        return
    names = batch.column("topic").cast(pa.string()).dictionary_encode()
    if names.null_count:
        raise SchemaError("klamm sink: a row has no topic; give every row one, or set the option topic")
    for number, name in enumerate(names.dictionary.to_pylist()):
        rows = pc.indices_nonzero(pc.equal(names.indices, number))
        yield name, batch if len(rows) == batch.num_rows else batch.take(rows)


def _check_names(topic: str, headers: pa.ListArray) -> None:
    names = pc.struct_field(headers.flatten(), 0)
    if names.null_count:
        row = pc.list_parent_indices(headers)[pc.index(pc.is_null(names), True).as_py()].as_py()
        raise SchemaError(f"klamm sink: topic {topic}: a header of the batch's row {row} has no name (its key is null)")


def _joined(pieces: list[Rows]) -> Iterator[Rows]:
    """Joins neighbouring pieces, so that batches are full.

    They have the same columns, except perhaps headers; values written by columns have a separate prefix, values written
    row by row contain it.
    """
    for _, alike in groupby(pieces, key=lambda piece: piece.prefix):
        yield _as_one(list(alike))


def _as_one(pieces: list[Rows]) -> Rows:
    first = pieces[0]
    if len(pieces) == 1:
        return first
    kinds = [piece.headers.type for piece in pieces if piece.headers is not None]
    headers = [pa.nulls(len(p), kinds[0]) if p.headers is None else p.headers for p in pieces] if kinds else None
    return Rows(
        None if first.keys is None else pa.concat_arrays([piece.keys for piece in pieces]),
        pa.concat_arrays([piece.values for piece in pieces]),
        None if first.timestamps is None else pa.concat_arrays([piece.timestamps for piece in pieces]),
        first.prefix,
        None if headers is None else pa.concat_arrays(headers),
    )
