"""Writes the rows of a task of the sink as record batches of its own producer, in their order.

A row goes to the partition of its `partition` column, or else to that of its key, as in every Kafka client, or else to
the partitions in turn, some hundred rows each. The same rows in the same order always go to the same partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.producer.arrow import Making, Rows, buffers, read_rows
from klamm.core.client.producer.batch import EncodedRows
from klamm.core.errors import BrokerError, ErrorCode, SchemaError
from klamm.core.faults import fault_point
from klamm.core.interfaces.codec import Codec
from klamm.core.records import native
from klamm.core.records.encode import assemble
from klamm.core.records.partition import TopicPartition

from .claims import AttemptClaims, Claim, TaskIdentity
from .stored import StoredRows, check_stored

BATCH_BYTES: Final = 512 * 1024
"""Bytes of a record batch before compression; fewer if the topic accepts less."""
PENDING_BYTES: Final = 8 * 1024 * 1024
"""Bytes of rows that are collected before they are sent."""
IN_TURN: Final = 500
"""Rows without a key that go to one partition before the next partition is used."""


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


class TopicSink:
    """One topic of one attempt of a task."""

    def __init__(self, client: ClusterClient, claim: Claim, identity: TaskIdentity, sending: Sending) -> None:
        self._client = client
        self._claim = claim
        self._identity = identity
        self._sending = sending
        self._making = Making(sending.now_ms, None)
        self._partitions = sorted(claim.starts, key=lambda tp: tp.partition)
        self._topic = self._partitions[0].topic
        self._next = dict.fromkeys(self._partitions, 0)
        self._pending: dict[TopicPartition, list[Rows]] = {}
        self._pending_bytes = 0
        self._keyless = identity.task * IN_TURN  # tasks start at different partitions
        self._stored: dict[TopicPartition, StoredRows] | None = None
        self._stamped = False
        self._batch_bytes = min(BATCH_BYTES, self._largest_message() // 2)
        self.written = self.found = 0

    def _largest_message(self) -> int:
        return int(self._client.describe_configs(self._topic)["max.message.bytes"].value or BATCH_BYTES)

    def add(self, rows: Rows, partitions: pa.Array | None) -> None:
        """Adds rows. `partitions` is the column of that name, in which null leaves the choice to the sink."""
        self._stamped = rows.timestamps is not None
        if self._claim.again and self._stored is None:
            self._stored = self.scan(self._stamped)
        for partition, share in self._shares(rows, self._chosen(rows, partitions)):
            kept = self._left_to_write(partition, share)
            if len(kept):
                self._pending.setdefault(partition, []).append(kept)
                self._pending_bytes += _size(kept)
        if self._pending_bytes >= PENDING_BYTES:
            self.flush()

    def scan(self, stamped: bool) -> dict[TopicPartition, StoredRows]:
        """Reads the rows that an earlier attempt stored."""
        found = {partition: StoredRows(partition, stamped) for partition in self._partitions}
        for partition, stored in found.items():
            stored.scan(self._client, self._claim)
            self._next[partition] = stored.next_sequence
        return found

    def _left_to_write(self, partition: TopicPartition, share: Rows) -> Rows:
        if self._stored is None or self._stored[partition].is_empty:
            return share
        places = self._stored[partition].left_to_write(share.records(-1))
        self.found += len(share) - len(places)
        return share if len(places) == len(share) else share.take(pa.array(places, pa.int64()))

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

    def flush(self) -> None:
        """Sends the collected rows, batch by batch, one of each partition at a time."""
        sources = {
            partition: chain.from_iterable(self._making.batches(rows, self._batch_bytes) for rows in _joined(pieces))
            for partition, pieces in self._pending.items()
        }
        self._pending, self._pending_bytes = {}, 0
        while sources:
            batches: dict[TopicPartition, EncodedRows] = {}
            for partition, source in list(sources.items()):
                batch = next(source, None)
                if batch is None:
                    del sources[partition]
                else:
                    batches[partition] = batch
            if batches:
                self._send(batches)

    def _send(self, batches: Mapping[TopicPartition, EncodedRows]) -> None:
        claim = self._claim
        sealed = {
            partition: assemble(
                rows.batch,
                self._sending.codec,
                (rows.base_timestamp, rows.max_timestamp),
                (claim.producer_id, claim.epoch, self._next[partition]),
                rows.count,
            )
            for partition, rows in batches.items()
        }
        try:
            produced = self._client.produce(sealed, timeout_s=self._sending.timeout_s)
        except BrokerError as error:
            if error.code in (ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_producer_epoch):
                raise BrokerError(
                    error.code, f"topic {self._topic}: another attempt of {self._identity}, or a later batch, wrote"
                ) from error
            raise
        for partition, rows in batches.items():
            if claim.again:
                sent, place = bytes(sealed[partition]), produced[partition].base_offset
                check_stored(self._client, partition, place, sent, self._stamped, str(self._identity))
            self._next[partition] += rows.count
            self.written += rows.count
        fault_point("sink.produced")

    def finish(self) -> None:
        """Sends the remaining rows. Raises `ClaimError` if an earlier attempt stored rows that this one does not
        have.
        """
        self.flush()
        if self._claim.again and self._stored is None:
            self._stored = self.scan(stamped=False)
        for stored in (self._stored or {}).values():
            stored.check_all_found(str(self._identity))


class TaskSink:
    """All topics of one attempt of a task."""

    def __init__(self, client: ClusterClient, identity: TaskIdentity, values: Values, sending: Sending) -> None:
        self._client = client
        self._identity = identity
        self._values = values
        self._sending = sending
        self._claims = AttemptClaims(client, identity)
        self._topics: dict[str, TopicSink] = {}

    def write(self, batches: Iterator[pa.RecordBatch], topic: str | None) -> tuple[int, int]:
        """Writes the batches; returns how many rows were written now, and how many had been written already. Without a
        `topic`, each row's column names it.
        """
        for batch in batches:
            for name, share in _by_topic(batch, topic):
                self._add(name, share)
        for name in self._claims.earlier():
            self._open(name)
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
        self._open(topic).add(rows, batch.column("partition") if "partition" in columns else None)

    def _open(self, topic: str) -> TopicSink:
        sink = self._topics.get(topic)
        if sink is None:
            claim = self._claims.claim(topic)
            fault_point("sink.claimed")
            sink = TopicSink(self._client, claim, self._identity, self._sending)
            self._topics[topic] = sink
        return sink


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


def _size(rows: Rows) -> int:
    return sum(column.nbytes for column in (rows.keys, rows.values, rows.headers) if column is not None)
