"""Confluent's header form: the record header `__value_schema_id` has 0x01 and the schema's GUID in 16 bytes, and the
value is the payload alone. Records of the older form (0x00 and the id in front of the payload) are read too.
"""

from __future__ import annotations

from klamm.plugin import RegisteredSchema, SchemaError, SchemaKey

from .confluent import ConfluentEnvelope
from .magic import key_after

_MAGIC = b"\x01"
_WITH_ID = ConfluentEnvelope()


class ConfluentHeaderEnvelope:
    name = "confluent-header"
    header = "__value_schema_id"
    prefix_size = len(_MAGIC) + 16

    def prefix(self, schema: RegisteredSchema) -> bytes:
        if not schema.guid:
            raise SchemaError(f"schema {schema.schema_id} has no GUID, which the {self.name} envelope needs")
        return _MAGIC + schema.guid

    def size_of(self, data: bytes) -> int:
        return _WITH_ID.prefix_size if data[:1] == b"\0" else self.prefix_size

    def parse(self, data: bytes | memoryview) -> SchemaKey:
        if bytes(data[:1]) == b"\0":
            return _WITH_ID.parse(data)
        return SchemaKey(guid=key_after(_MAGIC, self.prefix_size, data, self.name))
