"""The topic in which schemas live: one partition of JSON records, as Confluent's registry writes them.

A record's key is `{"keytype": "SCHEMA", "subject": …, "version": …, "magic": 1}`, its value the subject, version, id
and text. The same record may be there twice: it says the same, and compaction keeps one.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from klamm.core.client.cluster_client import EARLIEST, LATEST, ClusterClient, NewTopic
from klamm.core.errors import BrokerError, ErrorCode, SchemaError
from klamm.core.interfaces.envelope import SchemaKey
from klamm.core.records.decode import decode_batch
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition

from .fingerprint import registered
from .options import SCHEMA_TOPIC

TOPIC_CONFIGS = {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}
_FETCH_BYTES = 8 * 1024 * 1024
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """One version of a subject."""

    subject: str
    version: int
    schema_id: int
    text: str

    def key(self) -> bytes:
        return json.dumps(
            {"keytype": "SCHEMA", "subject": self.subject, "version": self.version, "magic": 1}, separators=(",", ":")
        ).encode()

    def value(self) -> bytes:
        said = {"subject": self.subject, "version": self.version, "id": self.schema_id, "schema": self.text}
        return json.dumps({**said, "deleted": False}, separators=(",", ":")).encode()


class SchemaLog(Protocol):
    """Where entries are stored; thread-safe."""

    def append(self, entry: SchemaEntry) -> None:
        """Returns when it is stored."""
        ...

    def read(self, offset: int) -> tuple[list[SchemaEntry], int]:
        """All entries from `offset` to the end of then, and the offset after it."""
        ...

    def close(self) -> None: ...


class TopicSchemaLog:
    """The log in a topic of a cluster; made when the first schema is registered. Owns the client."""

    def __init__(
        self, client: ClusterClient, topic: str = SCHEMA_TOPIC, now_s: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._partition = TopicPartition(topic, 0)
        self._now_s = now_s

    def append(self, entry: SchemaEntry) -> None:
        if not self._exists():
            topic = NewTopic(partitions=1, configs=TOPIC_CONFIGS)
            self._client.create_topics({self._partition.topic: topic}, exists_ok=True)
        batch = encode_batch([(round(self._now_s() * 1000), entry.key(), entry.value(), ())])
        self._client.produce({self._partition: batch})

    def _exists(self) -> bool:
        found = self._client.metadata([self._partition.topic]).topics.get(self._partition.topic)
        return found is not None and found.error != ErrorCode.unknown_topic_or_partition

    def read(self, offset: int) -> tuple[list[SchemaEntry], int]:
        if not self._exists():
            return [], offset
        position = max(offset, self._client.list_offsets({self._partition: EARLIEST})[self._partition][0])
        end = self._client.list_offsets({self._partition: LATEST})[self._partition][0]
        entries: list[SchemaEntry] = []
        while position < end:
            found, position = self._fetch(position)
            entries += found
        return entries, position

    def _fetch(self, position: int) -> tuple[list[SchemaEntry], int]:
        """At least one batch, or an error: the caller knows that there is more."""
        (node,) = self._client.by_leader([self._partition])
        fetched = self._client.fetch(node, {self._partition: position}, partition_max_bytes=_FETCH_BYTES)
        answer = fetched[self._partition]
        if answer.error:
            raise BrokerError(answer.error, f"fetch of {self._partition} at offset {position}")
        entries: list[SchemaEntry] = []
        reached = position
        for at, header in iter_headers(answer.records):
            for record in decode_batch(answer.records, at, header, self._client.codecs):
                if record.offset >= position:
                    entries += read_entry(record.key, record.value, f"{self._partition}@{record.offset}")
            reached = max(reached, header.next_offset)
        if reached == position:
            raise SchemaError(f"{self._partition}: the broker sends nothing at offset {position}")
        return entries, reached

    def close(self) -> None:
        self._client.close()


def read_entry(key: bytes | None, value: bytes | None, where: str) -> Iterator[SchemaEntry]:
    """The entry of a record. Records of other kinds (Confluent's CONFIG, NOOP, tombstones) have none; one that cannot
    be read is logged and passed over, or a stray record would stop every consumer."""
    try:
        kind = json.loads(key or b"null")
        if not isinstance(kind, dict) or kind.get("keytype") != "SCHEMA" or value is None:
            return
        said: dict[str, Any] = json.loads(value)
        if said.get("schemaType", "AVRO") == "AVRO":
            yield SchemaEntry(str(said["subject"]), int(said["version"]), int(said["id"]), str(said["schema"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("%s: a record that is no schema: %r", where, error)


def writers_by_key(entries: Iterable[SchemaEntry]) -> dict[SchemaKey, str]:
    """Every schema's text, by all that an envelope may name it by."""
    writers: dict[SchemaKey, str] = {}
    for entry in entries:
        schema = registered(entry.schema_id, entry.text)
        writers[SchemaKey(schema_id=schema.schema_id)] = schema.text
        writers[SchemaKey(md5=schema.md5)] = schema.text
        writers[SchemaKey(fingerprint=schema.fingerprint)] = schema.text
    return writers


def newest_first(entries: Iterable[SchemaEntry], subject: str) -> list[SchemaEntry]:
    """The versions of a subject; none when it is not registered."""
    return sorted((e for e in entries if e.subject == subject), key=lambda entry: entry.version, reverse=True)
