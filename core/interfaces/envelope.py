"""The envelope interface: the format of the schema reference in a payload (design D8).

An envelope that raises refuses the one record; it is an error on the record's future or from the consumer's poll.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Envelope", "RegisteredSchema", "SchemaKey"]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as registered: `schema_id` (≥ 1, immutable), `text` byte for byte as registered, `md5` of the text
    (16 bytes), `fingerprint` CRC-64-AVRO of the canonical form (8 bytes, little-endian)."""

    schema_id: int
    text: str
    md5: bytes
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class SchemaKey:
    """The key by which an envelope names a schema; exactly one field is set."""

    schema_id: int | None = None
    md5: bytes | None = None
    fingerprint: bytes | None = None


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
