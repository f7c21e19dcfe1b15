"""The topic that stores schemas: one partition, compacted, read into a `SchemaStore`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.reader.topic_table import TopicTable
from klamm.core.errors import ErrorCode
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition

from .options import SCHEMA_TOPIC
from .store.records import Record, encode
from .store.schema_store import SchemaStore

TOPIC_CONFIGS: Final = {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}


class SchemaLog(Protocol):
    """The records of schemas; thread-safe."""

    def append(self, records: Sequence[Record]) -> None:
        """Appends records together; returns when they are stored."""
        ...

    def read(self) -> SchemaStore:
        """Returns the table of all records up to the log's end as of now. It is the same object each time: the next
        `read` changes it."""
        ...

    def close(self) -> None: ...


class TopicSchemaLog:
    """The log in a topic of a cluster, created with its first records. Each `read` fetches only what was appended since
    the one before. Owns the client."""

    def __init__(
        self, client: ClusterClient, topic: str = SCHEMA_TOPIC, now_s: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._partition = TopicPartition(topic, 0)
        self._now_s = now_s
        self._lock = threading.Lock()
        self._store = SchemaStore()
        self._table = TopicTable(client, _Contents(self._store), timeout_s=client.request_timeout_s)

    def append(self, records: Sequence[Record]) -> None:
        if not self._exists():
            topic = NewTopic(partitions=1, configs=TOPIC_CONFIGS)
            self._client.create_topics({self._partition.topic: topic}, exists_ok=True)
        now_ms = round(self._now_s() * 1000)
        batch = encode_batch([(now_ms, *encode(record), ()) for record in records])
        self._client.produce({self._partition: batch})

    def _exists(self) -> bool:
        found = self._client.metadata([self._partition.topic]).topics.get(self._partition.topic)
        return found is not None and found.error != ErrorCode.unknown_topic_or_partition

    def read(self) -> SchemaStore:
        exists = self._exists()
        with self._lock:
            if exists:
                self._table.catch_up([self._partition])
            else:
                self._table.start_over()  # a topic created later under this name is another topic
            return self._store

    def close(self) -> None:
        self._client.close()


class _Contents:
    """`klamm.core.client.reader.topic_table.TableContents`."""

    def __init__(self, store: SchemaStore) -> None:
        self._store = store

    def clear(self) -> None:
        self._store.clear()

    def apply(
        self,
        partition: TopicPartition,  # noqa: ARG002 - there is one
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        self._store.apply(offset, timestamp_ms, key, value)
