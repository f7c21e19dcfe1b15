"""Avro's single-object encoding: C3 01, then CRC-64-AVRO of the parsing canonical form, little-endian."""

from __future__ import annotations

from klamm.plugin import RegisteredSchema, SchemaKey

from .magic import key_after

_MAGIC = b"\xc3\x01"


class SingleObjectEnvelope:
    name = "single-object"
    prefix_size = len(_MAGIC) + 8

    def prefix(self, schema: RegisteredSchema) -> bytes:
        return _MAGIC + schema.fingerprint

    def parse(self, data: bytes | memoryview) -> SchemaKey:
        return SchemaKey(fingerprint=key_after(_MAGIC, self.prefix_size, data, self.name))
