"""Confluent's wire format: 0x00, then the schema's id in four bytes, big-endian."""

from __future__ import annotations

import struct

from klamm.plugin import RegisteredSchema, SchemaError, SchemaKey

from .magic import key_after

_PREFIX = struct.Struct(">bi")


class ConfluentEnvelope:
    name = "confluent"
    prefix_size = _PREFIX.size

    def prefix(self, schema: RegisteredSchema) -> bytes:
        return _PREFIX.pack(0, schema.schema_id)

    def parse(self, data: bytes | memoryview) -> SchemaKey:
        schema_id = int.from_bytes(key_after(b"\0", self.prefix_size, data, self.name), "big", signed=True)
        if schema_id < 1:
            raise SchemaError(f"payload names schema {schema_id}; ids begin at 1")
        return SchemaKey(schema_id=schema_id)
