"""The topic that stores schemas: one partition of JSON records, as Confluent's registry writes them.

A record's key is `{"keytype": "SCHEMA", "subject": …, "version": …, "magic": 1}`, its value the subject, version, id
and text. A record may be stored twice: both copies are equal, and compaction keeps one. Confluent's registry withdraws
a version by the same record with `"deleted": true`, all versions of a subject by a DELETE_SUBJECT, and removes a
version by a tombstone; each of them is an entry here that is `deleted`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.reader.topic_table import TopicTable
from klamm.core.errors import ErrorCode
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition

from .options import SCHEMA_TOPIC

TOPIC_CONFIGS = {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": "-1"}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """One version of a subject. `references` are (name, subject, version) of the schemas whose types the text names."""

    subject: str
    version: int
    schema_id: int
    text: str
    references: tuple[tuple[str, str, int], ...] = ()
    deleted: bool = False
    schema_type: str = "AVRO"

    def key(self) -> bytes:
        return json.dumps(
            {"keytype": "SCHEMA", "subject": self.subject, "version": self.version, "magic": 1}, separators=(",", ":")
        ).encode()

    def value(self) -> bytes:
        said: dict[str, Any] = {"subject": self.subject, "version": self.version, "id": self.schema_id}
        if self.schema_type != "AVRO":
            said["schemaType"] = self.schema_type
        if self.references:
            said["references"] = [
                dict(zip(("name", "subject", "version"), one, strict=True)) for one in self.references
            ]
        return json.dumps({**said, "schema": self.text, "deleted": self.deleted}, separators=(",", ":")).encode()


class SchemaLog(Protocol):
    """The store of entries; thread-safe."""

    def append(self, entry: SchemaEntry) -> None:
        """Appends an entry; returns when it is stored."""
        ...

    def read(self) -> list[SchemaEntry]:
        """Returns all entries in the order of the log, up to its end as of now."""
        ...

    def close(self) -> None: ...


class TopicSchemaLog:
    """The log in a topic of a cluster, created when the first schema is registered. Each `read` fetches only what was
    appended since the one before. Owns the client."""

    def __init__(
        self, client: ClusterClient, topic: str = SCHEMA_TOPIC, now_s: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._partition = TopicPartition(topic, 0)
        self._now_s = now_s
        self._lock = threading.Lock()
        self._contents = _Entries()
        self._table = TopicTable(client, self._contents, timeout_s=client.request_timeout_s)

    def append(self, entry: SchemaEntry) -> None:
        if not self._exists():
            topic = NewTopic(partitions=1, configs=TOPIC_CONFIGS)
            self._client.create_topics({self._partition.topic: topic}, exists_ok=True)
        batch = encode_batch([(round(self._now_s() * 1000), entry.key(), entry.value(), ())])
        self._client.produce({self._partition: batch})

    def _exists(self) -> bool:
        found = self._client.metadata([self._partition.topic]).topics.get(self._partition.topic)
        return found is not None and found.error != ErrorCode.unknown_topic_or_partition

    def read(self) -> list[SchemaEntry]:
        exists = self._exists()
        with self._lock:
            if not exists:
                self._table.start_over()  # a topic created later under this name is another topic
                return []
            self._table.catch_up([self._partition])
            return list(self._contents.entries)

    def close(self) -> None:
        self._client.close()


class _Entries:
    """`klamm.core.client.reader.topic_table.TableContents`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.entries: list[SchemaEntry] = []
        self._last: dict[tuple[str, int], SchemaEntry] = {}

    def apply(
        self,
        partition: TopicPartition,
        offset: int,
        timestamp_ms: int,  # noqa: ARG002 - an entry has none
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        for entry in read_entries(key, value, f"{partition}@{offset}", list(self._last.values())):
            self.entries.append(entry)
            self._last[entry.subject, entry.version] = entry


def read_entries(key: bytes | None, value: bytes | None, where: str, known: list[SchemaEntry]) -> Iterator[SchemaEntry]:
    """Yields the entries of a record; those that it deletes are among `known`, the last of each version. Records of
    other kinds (Confluent's CONFIG, NOOP) have none; one that cannot be read is logged and skipped, since a stray
    record would otherwise stop every consumer.
    """
    try:
        said = json.loads(key or b"null")
        kind = said.get("keytype") if isinstance(said, dict) else None
        if kind == "SCHEMA" and value is not None:
            yield _entry(json.loads(value))
            return
        if kind == "SCHEMA":
            versions = range(_number(said, "version"), _number(said, "version") + 1)
        elif kind == "DELETE_SUBJECT" and value is not None:
            versions = range(_number(json.loads(value), "version") + 1)
        else:
            return
        gone = [one for one in known if one.subject == said["subject"] and one.version in versions and not one.deleted]
        yield from (replace(one, deleted=True) for one in gone)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("%s: a record that is no schema: %r", where, error)


def _entry(said: dict[str, Any]) -> SchemaEntry:
    references = tuple(
        (str(one["name"]), str(one["subject"]), _number(one, "version")) for one in said.get("references") or ()
    )
    return SchemaEntry(
        str(said["subject"]), _number(said, "version"), _number(said, "id"), str(said["schema"]), references,
        said.get("deleted") is True, str(said.get("schemaType") or "AVRO"),
    )  # fmt: skip


def _number(said: dict[str, Any], name: str) -> int:
    """Returns an id or a version. Raises `ValueError` for a number that no record and no registry can have: an id would
    be taken for the last one."""
    number = said[name]
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) >= 2**31:
        raise ValueError(f"{name} is {number!r:.100}, not a number of 32 bits")
    return number
