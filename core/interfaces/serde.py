"""The serde interface: converts typed values to bytes; `schemas/` implements it for Avro.

A serde that raises refuses the one record: the error is on its future, or comes from the consumer's poll.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..records.record import Headers
from .coordination import Coordination
from .envelope import Envelope

if TYPE_CHECKING:  # pyarrow comes with an extra
    import pyarrow as pa

    from ..errors import KlammError

__all__ = [
    "ArrowDeserializer",
    "ArrowSerde",
    "ArrowSerializer",
    "CheckedSerde",
    "Deserializer",
    "DocumentsDeserializer",
    "DocumentsSerializer",
    "HeaderDeserializer",
    "HeaderSerializer",
    "JsonColumnsSerde",
    "JsonSerde",
    "Serde",
    "SerdeContext",
    "Serializer",
    "TopicFormat",
    "headers_of",
]

Serializer = Callable[[Any], "bytes | None"]
"""Returns the bytes of one value (None stays None); raises `SchemaError`, which names topic and field."""

Deserializer = Callable[["bytes | None"], Any]


@runtime_checkable
class HeaderSerializer(Protocol):
    """A `Serializer` whose records have headers; all of a topic's records the same."""

    @property
    def headers(self) -> Headers: ...

    def __call__(self, value: Any, /) -> bytes | None: ...


@runtime_checkable
class HeaderDeserializer(Protocol):
    """A `Deserializer` that needs the record's headers: `with_headers` is called in its place."""

    def with_headers(self, data: bytes | None, headers: Headers, /) -> Any: ...


def headers_of(serialize: Serializer) -> Headers:
    """Returns the headers that a serializer's records have."""
    return serialize.headers if isinstance(serialize, HeaderSerializer) else ()


ArrowDeserializer = Callable[["pa.Array"], "tuple[pa.Array, KlammError | None] | None"]
"""Converts payloads (binary) to the values before the first that cannot be decoded, and that one's error. None: the
records are decoded one by one.
"""


class ArrowSerializer(Protocol):
    """Converts rows, given as a struct array with a field for each column, to payloads. `prefix` is the prefix of each
    payload."""

    @property
    def prefix(self) -> bytes: ...

    def payloads(self, rows: pa.Array) -> pa.Array | None:
        """Returns the payloads as (large) binary, without the prefix. Returns None if it cannot guarantee the same
        bytes as the serializer of single values; that serializer is then called for each of `values`, and reports
        the wrong value."""
        ...

    def values(self, rows: pa.Array) -> Sequence[Any]:
        """Returns the rows as the serializer of single values takes them; raises `SchemaError` for a row or a column
        that corresponds to no value."""
        ...


@dataclass(frozen=True)
class TopicFormat:
    """The format of a topic's values in YAML: `schema` is the schema's text (None: raw bytes, or by the stored schema
    when reading), `envelope` how a payload names its schema, `options` the rest of the serde's own section.
    """

    envelope: Envelope
    schema: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SerdeContext:
    """The context of a serde: the cluster (`bootstrap_servers`, host:port,…), the coordination (opened on first call,
    owned by the client) and the formats by topic. `timeout_s`: how long the client waits for an answer of another
    service, such as a schema registry, before it reports that there is none.
    """

    bootstrap_servers: str
    coordination: Callable[[], Coordination]
    formats: Callable[[str], TopicFormat]
    timeout_s: float = 30.0


class Serde(Protocol):
    """One per client; thread-safe."""

    def serializer(self, topic: str) -> Serializer: ...

    def deserializer(self, topic: str) -> Deserializer: ...

    def close(self) -> None: ...


@runtime_checkable
class CheckedSerde(Protocol):
    """A serde that can check a topic's section."""

    def check(self, topic: str) -> None:
        """Raises `SchemaError` if the topic's schema is not a schema. Connects to nothing: for `klamm config check`."""
        ...


@runtime_checkable
class ArrowSerde(Protocol):
    """A serde that also converts whole columns, for `send_arrow` and `poll_arrow`. Both methods are called once per
    topic; if they return None, records are converted one by one."""

    def arrow_serializer(self, topic: str) -> ArrowSerializer | None: ...

    def arrow_deserializer(self, topic: str) -> ArrowDeserializer | None: ...


@runtime_checkable
class JsonSerde(Protocol):
    """A serde whose values have a form in JSON, for commands. The values of other serdes are used as `json` parses
    and prints them."""

    def json_serializer(self, topic: str) -> tuple[Serializer, type[float] | type[Decimal]]:
        """Returns the serializer of parsed JSON documents, and the class to which their fractions are to be parsed."""
        ...

    def row_serializer(self, topic: str, columns: Sequence[str]) -> Serializer:
        """Returns the serializer of CSV rows, which are dicts of texts by column."""
        ...

    def json_deserializer(self, topic: str) -> Callable[[bytes], str]:
        """Returns the deserializer to a value's JSON, as one line."""
        ...


DocumentsSerializer = Callable[[Sequence[Any]], "list[bytes] | None"]
"""Returns the bytes of each of many parsed JSON documents. None: they are serialized one by one, which gives the same
bytes, or the error of one.
"""

DocumentsDeserializer = Callable[["pa.Array"], "list[bytes] | None"]
"""Returns the JSON of each of many payloads (binary), `null` for null. None: they are deserialized one by one,
which gives the same texts, or the error of one.
"""


@runtime_checkable
class JsonColumnsSerde(Protocol):
    """A `JsonSerde` that also converts many values at once. Both methods are called once per topic; they return None
    for a topic whose values are converted one by one. Needs pyarrow."""

    def documents_serializer(self, topic: str) -> DocumentsSerializer | None: ...

    def documents_deserializer(self, topic: str) -> DocumentsDeserializer | None: ...
