"""A log of schemas in memory, and serdes over it."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro

from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.serde import SerdeContext, TopicFormat
from klamm.core.plugins import plugin_host
from klamm.schemas.names import AVRO
from klamm.schemas.options import AvroOptions
from klamm.schemas.registry.log import SchemaLog
from klamm.schemas.registry.registry import LogRegistry, SchemaRegistry
from klamm.schemas.serdes.avro import AvroSerde
from klamm.schemas.store.records import KeyValue, Record, SchemaRecord, encode
from klamm.schemas.store.schema import Reference, SchemaText
from klamm.schemas.store.schema_store import SchemaStore


def stored(
    subject: str, version: int, schema_id: int, text: str, *references: tuple[str, str, int], **more: Any
) -> SchemaRecord:
    """Makes the record of a version; `references`: (name, subject, version); `more`: `deleted`, `schema_type`."""
    deleted = more.pop("deleted", False)
    return SchemaRecord(
        subject,
        version,
        schema_id,
        SchemaText(text, references=tuple(Reference(*one) for one in references), **more),
        deleted,
    )


def foreign(subject: str, version: int, schema_id: int, text: str) -> KeyValue:
    """Makes the record of a version as a program may write it that escapes all text beyond ASCII."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": schema_id, "schema": text, "deleted": False}
    return json.dumps(key).encode(), json.dumps(value).encode()


def store_of(*records: Record | KeyValue) -> SchemaStore:
    """Returns the table of a topic with these records."""
    store = SchemaStore()
    for offset, record in enumerate(records):
        store.apply(offset, 1_000 + offset, *(record if isinstance(record, tuple) else encode(record)))
    return store


def add(log: SchemaLog, *records: Record) -> None:
    """Appends records to a topic that nobody else writes to."""
    log.read()
    assert log.append(records)


class MemoryTopic:
    """The records of a topic of schemas; `reads` counts reads. They may be replaced: as if it was created again."""

    def __init__(self, *records: Record) -> None:
        self.records: list[Record] = list(records)
        self.reads = 0
        self.lock = threading.Lock()

    def versions(self) -> list[tuple[str, int, int]]:
        """Returns subject, version and id of each version that was written."""
        return [(one.subject, one.version, one.schema_id) for one in self.records if isinstance(one, SchemaRecord)]


class MemoryLog:
    """A `SchemaLog` of one registry over a topic in memory."""

    def __init__(self, topic: MemoryTopic) -> None:
        self._topic = topic
        self._applied: list[Record] = []
        self._store = SchemaStore()

    def append(self, records: Sequence[Record]) -> bool:
        with self._topic.lock:
            if self._topic.records != self._applied:
                return False
            self._topic.records += records
            return True

    def read(self) -> SchemaStore:
        with self._topic.lock:
            self._topic.reads += 1
            records = list(self._topic.records)
        if records[: len(self._applied)] != self._applied:
            self._store.clear()
            self._applied = []
        for offset in range(len(self._applied), len(records)):
            self._store.apply(offset, 1_000 + offset, *encode(records[offset]))
        self._applied = records
        return self._store

    def close(self) -> None:
        return


def embedded(folder: Path) -> Coordination:
    """Starts an embedded coordination in a file of `folder`."""
    coordination = plugin_host().coordinations.create("embedded", {"path": str(folder / "coordination.db")})
    coordination.start()
    return coordination


def registry(coordination: Coordination, topic: MemoryTopic | None = None, schema_type: str = AVRO) -> LogRegistry:
    return LogRegistry(MemoryLog(topic or MemoryTopic()), lambda: coordination, schema_type=schema_type)


Formats = Mapping[str, tuple[str | None, str, dict[str, Any]]]
"""Topic → (schema text, envelope, options)."""


def context(formats: Formats) -> SerdeContext:
    def topic_format(topic: str) -> TopicFormat:
        text, envelope, options = formats[topic]
        return TopicFormat(plugin_host().envelopes.create(envelope), text, options)

    def unused() -> Coordination:
        raise AssertionError("the registry is given")

    return SerdeContext("127.0.0.1:1", unused, topic_format)


def serde(registry: SchemaRegistry, formats: Formats) -> AvroSerde:
    return AvroSerde(AvroOptions(), context(formats), registry)


def avro_bytes(schema: Any, value: Any) -> bytes:
    """Encodes a value with fastavro, without an envelope."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()
