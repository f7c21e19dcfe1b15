"""The serde seam: how typed values become bytes; `schemas/` fills it with Avro.

A serde that raises refuses the one record: the error is on its future, or comes from the consumer's poll.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .coordination import Coordination
from .envelope import Envelope

Serializer = Callable[[Any], "bytes | None"]
"""The bytes of one value (None stays None); raises `SchemaError`, naming topic and field."""

Deserializer = Callable[["bytes | None"], Any]


@dataclass(frozen=True)
class TopicFormat:
    """What YAML says of a topic's values: `schema` is Avro schema text (None: raw bytes, or by the stored schema when
    reading), `envelope` how a payload names its schema, `options` the rest of the serde's own section."""

    envelope: Envelope
    schema: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SerdeContext:
    """What a serde may reach: the cluster (`bootstrap_servers`, host:port,…), the coordination (opened on first call,
    owned by the client) and the formats by topic."""

    bootstrap_servers: str
    coordination: Callable[[], Coordination]
    formats: Callable[[str], TopicFormat]


class Serde(Protocol):
    """One per client; thread-safe."""

    def serializer(self, topic: str) -> Serializer: ...

    def deserializer(self, topic: str) -> Deserializer: ...

    def close(self) -> None: ...
