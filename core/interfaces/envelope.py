"""The envelope interface: the format of the schema reference in a payload (design D8).

An envelope that raises refuses the one record; it is an error on the record's future or from the consumer's poll.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["Envelope", "HeaderEnvelope", "RegisteredSchema", "SchemaKey"]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as registered: `schema_id` (≥ 1, immutable), `text` byte for byte as registered (of Avro with the types
    of its references written out), `md5` of the text (16 bytes), `fingerprint` CRC-64-AVRO of the canonical form (8
    bytes, little-endian; empty if the schema is not Avro), `guid` the registry's (16 bytes, the same in all contexts).
    `schema_type`: AVRO, JSON or PROTOBUF; `references`: the texts that the schema refers to, by the name it uses."""

    schema_id: int
    text: str
    md5: bytes
    fingerprint: bytes
    guid: bytes = b""
    schema_type: str = "AVRO"
    references: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """The key by which an envelope names a schema; exactly one field is set."""

    schema_id: int | None = None
    md5: bytes | None = None
    fingerprint: bytes | None = None
    guid: bytes | None = None


class Envelope(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def prefix_size(self) -> int:
        """The number of bytes before the Avro payload; the same for every record."""
        ...

    def prefix(self, schema: RegisteredSchema) -> bytes:
        """Returns the bytes before the payload; constant for a schema."""
        ...

    def parse(self, data: bytes | memoryview) -> SchemaKey:
        """Returns the key in the first `prefix_size` bytes; raises `SchemaError` if they are not this envelope's."""
        ...


@runtime_checkable
class HeaderEnvelope(Envelope, Protocol):
    """An envelope whose prefix is the value of a record header; the record's value is the payload alone."""

    @property
    def header(self) -> str:
        """The header's name."""
        ...

    def size_of(self, data: bytes) -> int:
        """Returns the size of the prefix that `data`, a header's value, begins with. It is also called with the value
        of a record that lacks the header, which may have the prefix in front of its payload. Raises `SchemaError`
        if `data` begins with none.
        """
        ...
