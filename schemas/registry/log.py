"""The topic that stores schemas: one partition, compacted, read into a `SchemaStore`; and the highest ids, which
outlive it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol
from uuid import UUID

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.reader.topic_table import TopicTable
from klamm.core.errors import BrokerError, ConfigError, ErrorCode, LogEndMovedError
from klamm.core.interfaces.coordination import BadVersionError, Coordination, NodeExistsError, NoNodeError
from klamm.core.records.encode import encode_batch
from klamm.core.records.offset_and_epoch import ANY_EPOCH, OffsetAndEpoch
from klamm.core.records.partition import TopicPartition

from ..names import SCHEMA_TOPIC
from ..store.records import Noop, Record, encode
from ..store.schema_store import SchemaStore

TOPIC_CONFIGS: Final = {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}
LastIds = Callable[[Mapping[str, int]], Mapping[str, int]]
"""Raises the highest ids by context that are kept outside the topic, and returns them."""
_LAST_IDS: Final = "/schemas/last_id"


class SchemaLog(Protocol):
    """The records of schemas; thread-safe."""

    def read(self) -> SchemaStore:
        """Returns the table of all records up to the log's end as of now. It is the same object each time: the next
        `read` changes it."""
        ...

    def append(self, records: Sequence[Record]) -> bool:
        """Appends records together, if the log still ends where the last `read` has ended, and returns when they are
        stored; else appends none and returns False."""
        ...

    def close(self) -> None: ...


class TopicSchemaLog:
    """The log in a topic of a cluster, created with its first records. Each `read` fetches only what was appended since
    the one before. Owns the client. `lock` guards the table while records are applied.

    An append that may have succeeded is found by the next `read`: `append` returns False for one whose first attempt
    was stored and whose answer was lost.
    """

    def __init__(
        self, client: ClusterClient, topic: str = SCHEMA_TOPIC, now_s: Callable[[], float] = time.time
    ) -> None:
        self.lock = threading.Lock()
        self._client = client
        self._partition = TopicPartition(topic, 0)
        self._now_s = now_s
        self._reading = threading.Lock()
        self._checked: set[UUID | None] = set()
        self._store = SchemaStore()
        self._table = TopicTable(client, _Contents(self._store, self.lock), timeout_s=client.request_timeout_s)

    def create(self) -> bool:
        """Creates the topic if it does not exist; returns whether it did."""
        if self._exists():
            return True
        topic = NewTopic(partitions=1, configs=TOPIC_CONFIGS)
        self._client.create_topics({self._partition.topic: topic}, exists_ok=True)
        return False

    def check(self) -> None:
        """Raises `ConfigError` if the topic would lose schemas: if it is not one compacted partition. The cluster is
        asked once for each topic of this name."""
        name = self._partition.topic
        found = self._client.cluster.view.topics.get(name)
        if found is None or found.error or found.topic_id in self._checked:
            return
        if len(found.partitions) != 1:
            raise ConfigError(f"topic {name} has {len(found.partitions)} partitions; a topic of schemas has one")
        try:
            policy = self._client.describe_configs(name)["cleanup.policy"].value
        except BrokerError as error:
            if error.code != ErrorCode.topic_authorization_failed:
                raise
        else:
            if policy != "compact":
                raise ConfigError(
                    f"topic {name} has cleanup.policy={policy}, by which schemas are lost; "
                    f"`klamm topics alter {name} --set cleanup.policy=compact` keeps them"
                )
        self._checked = {found.topic_id}

    def read(self, deadline_s: float | None = None) -> SchemaStore:
        """`deadline_s`, on the monotonic clock, bounds the call; then `BrokerError` (REQUEST_TIMED_OUT)."""
        exists = self._exists(None if deadline_s is None else deadline_s - time.monotonic())
        with self._reading:
            if exists:
                self._table.catch_up([self._partition], deadline_s=deadline_s)
            else:
                self._table.start_over()  # a topic created later under this name is another topic
            return self._store

    def wait(self, most_ms: int) -> bool:
        """Waits for records after those that were read, for `most_ms` at most: the leader holds back a Fetch. Returns
        whether there are any."""
        end = self._table.end(self._partition)
        if end is None:
            return False
        leader = next(iter(self._client.by_leader([self._partition])), None)
        if leader is None:
            return False
        found = self._client.fetch(leader, {self._partition: end.offset}, max_wait_ms=most_ms, partition_max_bytes=1)
        return bool(found[self._partition].records)

    def end(self) -> OffsetAndEpoch | None:
        """Returns where the last `read` has ended; None if there was none."""
        with self._reading:
            return self._table.end(self._partition)

    def append(self, records: Sequence[Record], after: OffsetAndEpoch | None = None) -> bool:
        """`after`: the end of the `read` on which `records` were decided, if another `read` may have followed."""
        end = after or self.end()
        if end is None and self.create():  # it was created since it was read
            return False
        after = end or OffsetAndEpoch(0)
        if after.offset and after.leader_epoch == ANY_EPOCH:  # compaction has removed the record before the end
            self._client.produce({self._partition: self._batch([Noop()])})
            return False
        try:
            self._client.produce({self._partition: self._batch(records)}, after={self._partition: after})
        except LogEndMovedError:
            return False
        return True

    def close(self) -> None:
        self._client.close()

    def _batch(self, records: Sequence[Record]) -> bytes:
        now_ms = round(self._now_s() * 1000)
        return encode_batch([(now_ms, *encode(record), ()) for record in records])

    def _exists(self, timeout_s: float | None = None) -> bool:
        found = self._client.metadata([self._partition.topic], timeout_s=timeout_s).topics.get(self._partition.topic)
        return found is not None and found.error != ErrorCode.unknown_topic_or_partition


class _Contents:
    """`klamm.core.client.reader.topic_table.TableContents`."""

    def __init__(self, store: SchemaStore, lock: threading.Lock) -> None:
        self._store = store
        self._lock = lock

    def clear(self) -> None:
        with self._lock:
            self._store.clear()

    def apply(
        self,
        partition: TopicPartition,  # noqa: ARG002 - there is one
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        with self._lock:
            self._store.apply(offset, timestamp_ms, key, value)


def kept_ids(coordination: Coordination) -> LastIds:
    """Returns the store of the highest ids by context in the coordination: they survive the topic's compaction, and a
    restore of the topic from a backup."""

    def keep(ids: Mapping[str, int]) -> dict[str, int]:
        while True:
            try:
                data, stat = coordination.get(_LAST_IDS)
            except NoNodeError:
                with suppress(NodeExistsError):
                    coordination.create(_LAST_IDS, b"{}", make_parents=True)
                continue
            known: dict[str, int] = json.loads(data or b"{}")
            raised = {context: max(known.get(context, 0), ids.get(context, 0)) for context in {*known, *ids}}
            if raised == known:
                return known
            try:
                coordination.set(_LAST_IDS, json.dumps(raised, sort_keys=True).encode(), stat.version)
            except BadVersionError:
                continue
            return raised

    return keep
