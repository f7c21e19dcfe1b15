"""A schema log in memory, and serdes over it."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro

from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.serde import SerdeContext, TopicFormat
from klamm.core.plugins import plugin_host
from klamm.schemas.log import SchemaEntry
from klamm.schemas.options import AvroOptions
from klamm.schemas.registry import SchemaRegistry
from klamm.schemas.serde import AvroSerde


class MemoryLog:
    """A `SchemaLog` in memory; `reads` counts its reads."""

    def __init__(self) -> None:
        self.entries: list[SchemaEntry] = []
        self.reads = 0
        self._lock = threading.Lock()

    def append(self, entry: SchemaEntry) -> None:
        with self._lock:
            self.entries.append(entry)

    def read(self) -> list[SchemaEntry]:
        with self._lock:
            self.reads += 1
            return list(self.entries)

    def close(self) -> None:
        return


def embedded(folder: Path) -> Coordination:
    """Starts an embedded coordination in a file of `folder`."""
    coordination = plugin_host().coordinations.create("embedded", {"path": str(folder / "coordination.db")})
    coordination.start()
    return coordination


def registry(coordination: Coordination, log: MemoryLog | None = None) -> SchemaRegistry:
    return SchemaRegistry(log or MemoryLog(), lambda: coordination)


def serde(registry: SchemaRegistry, formats: Mapping[str, tuple[str | None, str, dict[str, Any]]]) -> AvroSerde:
    """Makes a serde. `formats`: topic → (schema text, envelope, options)."""

    def topic_format(topic: str) -> TopicFormat:
        text, envelope, options = formats[topic]
        return TopicFormat(plugin_host().envelopes.create(envelope), text, options)

    def unused() -> Coordination:
        raise AssertionError("the registry is given")

    return AvroSerde(AvroOptions(), SerdeContext("127.0.0.1:1", unused, topic_format), registry)


def avro_bytes(schema: Any, value: Any) -> bytes:
    """Encodes a value with fastavro, without an envelope."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()
