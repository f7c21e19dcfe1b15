"""The claims of the sink's attempts, and the register of a query, in the cluster.

A claim is the first record of a task's producer and epoch in the claims topic. The broker stores each sequence number
of a producer's epoch once (KIP-98), and one that has forgotten the producer stores a second record behind it: an append
and the first record in the log are the compare-and-set. A lower epoch, that of an earlier batch, is refused.

The register of a query and topic is stored as the offsets of a consumer group: below the first row of the newest batch.
It is kept while brokers forget the producer (`producer.id.expiration.ms`), as long as any group's offsets.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from klamm.core.client.cluster_client import LATEST, ClusterClient, NewTopic
from klamm.core.client.producer.partition_queue import MAX_EPOCH
from klamm.core.client.reader.batch_decoder import RawBatch
from klamm.core.client.reader.range_reader import OffsetRange, RangeReader
from klamm.core.errors import ErrorCode, KlammError
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.decode import Columns, decode_columns
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import DERIVED_PRODUCER_IDS, BatchHeader
from klamm.core.records.partition import TopicPartition

from .attempt import Claim, Registered
from .cluster import edges

GROUP_PREFIX: Final = "klamm-spark-sink-"
CLAIMS_TOPIC: Final = "__klamm_spark_claims"
CLAIM_PARTITIONS: Final = 4
"""The partitions of the claims topic that are used: a task's must never change."""
RETENTION_MS: Final = 7 * 24 * 3600 * 1000
REPLICATION: Final = 3
"""Replicas of the claims topic, if there are that many brokers; two of them must be in sync then."""
READ_TIMEOUT_S: Final = 120.0
_TASK_BITS: Final = 16
MAX_TASKS: Final = 1 << _TASK_BITS


class ClaimError(KlammError):
    """This attempt may not write the batch."""


@dataclass(frozen=True, slots=True)
class TaskProducer:
    """The producer of a task's batch. Those of all tasks of a query and topic differ in the last bits only."""

    producer_id: int
    epoch: int

    def task_of(self, producer_id: int, epoch: int) -> int | None:
        """Returns the number of the task if the producer belongs to a task of the same batch."""
        if epoch != self.epoch or (producer_id ^ self.producer_id) >> _TASK_BITS:
            return None
        return producer_id & (MAX_TASKS - 1)


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """`writer` is the query's id, or that of one `df.write`; `batch` the micro-batch's number, 0 in a batch write;
    `run` identifies the run of the driver ("": unknown).
    """

    writer: str
    batch: int
    task: int
    run: str = ""

    @property
    def group(self) -> str:
        return f"{GROUP_PREFIX}{self.writer}"

    def producer(self, topic: str, topic_id: UUID | None) -> TaskProducer:
        """Returns the producer of the batch's rows in a topic: an id that no broker allocates, and an epoch that grows
        with the batches. Raises `ClaimError` beyond 65,536 tasks.
        """
        if self.task >= MAX_TASKS:
            raise ClaimError(f"{self}: the sink takes up to {MAX_TASKS} tasks; coalesce the query's rows to fewer")
        turn, epoch = divmod(self.batch, MAX_EPOCH + 1)
        named = f"{self.writer}\0{topic}\0{topic_id or ''}\0{turn}".encode()
        hashed = int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big") % (
            DERIVED_PRODUCER_IDS >> _TASK_BITS
        )
        return TaskProducer(DERIVED_PRODUCER_IDS | hashed << _TASK_BITS | self.task, epoch)

    def __str__(self) -> str:
        return f"batch {self.batch} task {self.task} of query {self.writer}"


class Register:
    """The register of a query's topics. Not thread-safe."""

    def __init__(self, client: ClusterClient, identity: TaskIdentity) -> None:
        self._client = client
        self._group = identity.group
        self.last: dict[str, Registered] | None = None
        """The result of the last `read`."""

    def read(self) -> dict[str, Registered]:
        """Returns the entries of the topics as they are now; those of topics that were created again, or that were
        stored in part, are left out.
        """
        found: dict[str, dict[int, tuple[int, dict[str, Any]]]] = {}
        for tp, committed in self._client.fetch_offsets(self._group).items():
            found.setdefault(tp.topic, {})[tp.partition] = committed.offset, _parsed(committed.metadata)
        ids = self._client.topic_ids(found) if found else {}
        self.last = {
            topic: entry
            for topic, parts in found.items()
            if (entry := _entry(parts, str(ids.get(topic) or ""))) is not None
        }
        return self.last

    def store(self, topic: str, topic_id: UUID | None, entry: Registered) -> None:
        metadata = json.dumps(
            {
                "batch": entry.batch,
                "run": entry.run,
                "topic": str(topic_id or ""),
                "partitions": len(entry.starts),
                "claims": entry.claims,
            },
            separators=(",", ":"),
        )
        self._client.commit_offsets(
            self._group,
            {
                TopicPartition(topic, number): CommittedOffset(start, metadata=metadata, topic_id=topic_id)
                for number, start in entry.starts.items()
            },
        )


def _entry(parts: Mapping[int, tuple[int, dict[str, Any]]], topic_id: str) -> Registered | None:
    """Returns the register's entry of a topic; None if it was stored in part. A broker that does not know a
    partition yet stores the offsets without it and returns an error, and the attempt ends."""
    newest = max((fields for _, fields in parts.values()), key=lambda fields: int(fields["batch"]))
    starts = {number: start for number, (start, fields) in parts.items() if fields == newest}
    if newest["topic"] != topic_id or len(starts) != newest["partitions"]:
        return None
    return Registered(newest["batch"], newest["run"], starts, newest["claims"])


def _parsed(metadata: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(metadata)
        return {name: fields[name] for name in ("batch", "run", "topic", "partitions", "claims")}
    except (ValueError, KeyError, TypeError) as error:
        raise ClaimError(f"the register of the sink cannot be read: {metadata[:100]!r}") from error


class ClaimLog:
    """The claims of one task's batch of a topic, in the partition of the query's claims. Creates the claims topic."""

    def __init__(self, client: ClusterClient, identity: TaskIdentity, topic: str, producer: TaskProducer) -> None:
        self._client = client
        self._identity = identity
        self._batch = f"{identity.writer}/{identity.batch}/{topic}/"
        self._producer = producer
        number = (producer.producer_id >> _TASK_BITS) % CLAIM_PARTITIONS
        self._partition = TopicPartition(CLAIMS_TOPIC, number)
        ensure_claims_topic(client)

    def end(self) -> int:
        return edges(self._client, [self._partition], LATEST)[self._partition]

    def append(self, sequence: int, claim: Claim, since: int) -> Claim:
        """Appends the claim unless one with this sequence number is stored; returns the first one that is, from the
        offset `since` on. Raises `BrokerError` INVALID_PRODUCER_EPOCH if a later batch was claimed.
        """
        producer = (self._producer.producer_id, self._producer.epoch, sequence)
        fields = {"attempt": claim.attempt, "now": claim.now_ms, "starts": dict(claim.starts)}
        offset = self._produce(claim.now_ms, fields, producer)
        for data, pos, header in raw_batches(self._client, self._partition, min(since, offset), offset + 1):
            if (header.producer_id, header.producer_epoch, header.base_sequence) == producer:
                return _claim(self._opened(data, pos, header).values[0])
        raise ClaimError(f"{self._partition} has no claim at offset {offset}: it was deleted")

    def announce(self) -> None:
        """Appends the record that this run has found the task's stored rows."""
        self._produce(time.time_ns() // 1_000_000, {"found": self._identity.run}, None)

    def announced(self, start: int) -> set[int]:
        """Returns the tasks of the batch that were announced by this run, from the offset `start` on."""
        wanted = json.dumps({"found": self._identity.run}, separators=(",", ":")).encode()
        return {
            int(key[len(self._batch) :])
            for key, value in self._records(start, self.end())
            if value == wanted and key.startswith(self._batch.encode())
        }

    def _produce(self, now_ms: int, fields: Mapping[str, Any], producer: tuple[int, int, int] | None) -> int:
        key = f"{self._batch}{self._identity.task}".encode()
        value = json.dumps(fields, separators=(",", ":")).encode()
        records = [(now_ms, key, value, ())]
        if producer is None:
            batch = encode_batch(records)
        else:
            producer_id, epoch, sequence = producer
            batch = encode_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        return self._client.produce({self._partition: batch})[self._partition].base_offset

    def _records(self, start: int, end: int) -> Iterator[tuple[bytes, bytes | None]]:
        """Yields key and value; those that retention has removed are left out."""
        for batch in raw_batches(self._client, self._partition, start, end):
            columns = self._opened(*batch)
            for key, value in zip(columns.keys, columns.values, strict=True):
                yield key or b"", value

    def _opened(self, data: bytes, pos: int, header: BatchHeader) -> Columns:
        return decode_columns(data, pos, header, self._client.codecs, partition=self._partition)


def raw_batches(client: ClusterClient, partition: TopicPartition, start: int, end: int) -> Iterator[RawBatch]:
    """Yields the batches of these offsets that the log still has."""
    range_ = OffsetRange(partition, start, end)
    return RangeReader(client, range_, fail_on_data_loss=False, poll_timeout_s=READ_TIMEOUT_S).raw_batches()


def _claim(value: bytes | None) -> Claim:
    try:
        fields = json.loads(value or b"")
        starts = {int(number): int(start) for number, start in fields["starts"].items()}
        return Claim(str(fields["attempt"]), int(fields["now"]), starts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClaimError(f"a claim of the sink cannot be read: {value!r:.100}") from error


def ensure_claims_topic(client: ClusterClient) -> None:
    """Creates the claims topic unless it exists."""
    found = client.metadata([CLAIMS_TOPIC])
    view = found.topics.get(CLAIMS_TOPIC)
    if view is not None and view.error is not ErrorCode.unknown_topic_or_partition:
        return
    replicas = min(REPLICATION, len(found.nodes))
    configs = {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}
    if replicas == REPLICATION:
        configs["min.insync.replicas"] = str(REPLICATION - 1)
    client.create_topics({CLAIMS_TOPIC: NewTopic(CLAIM_PARTITIONS, replicas, configs)}, exists_ok=True)
