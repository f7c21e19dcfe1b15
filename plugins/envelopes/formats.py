"""The envelopes: fixed bytes and a key of fixed size, in front of the payload or in a record header."""

from __future__ import annotations

import struct

from klamm.plugin import RegisteredSchema, SchemaError, SchemaKey


class _KeyedEnvelope:
    """Begins with `magic`; the key is the rest of the `prefix_size` bytes."""

    name: str
    magic: bytes
    prefix_size: int

    def key(self, data: bytes | memoryview) -> bytes:
        """Returns the key in a payload. Raises `SchemaError` if the payload is too short or begins with other bytes."""
        size, magic = self.prefix_size, self.magic
        head = bytes(data[:size])
        if len(head) < size:
            raise SchemaError(f"payload of {len(head)} bytes is too short for the {self.name} envelope ({size} bytes)")
        if not head.startswith(magic):
            found, wanted = head[: len(magic)].hex(), magic.hex()
            raise SchemaError(f"payload does not have the {self.name} envelope: it begins with {found}, not {wanted}")
        return head[len(magic) :]


class ConfluentEnvelope(_KeyedEnvelope):
    """Confluent's wire format: 0x00, then the schema's id in four bytes, big-endian."""

    name = "confluent"
    magic = b"\0"
    _PREFIX = struct.Struct(">bi")
    prefix_size = _PREFIX.size

    def prefix(self, schema: RegisteredSchema) -> bytes:
        return self._PREFIX.pack(0, schema.schema_id)

    def parse(self, data: bytes | memoryview) -> SchemaKey:
        schema_id = int.from_bytes(self.key(data), "big", signed=True)
        if schema_id < 1:
            raise SchemaError(f"payload names schema {schema_id}; ids begin at 1")
        return SchemaKey(schema_id=schema_id)


class ConfluentHeaderEnvelope(_KeyedEnvelope):
    """Confluent's header form: the record header `__value_schema_id` has 0x01 and the schema's GUID in 16 bytes, and
    the value is the payload alone. Records of the older form (0x00 and the id in front of the payload) are read too.
    """

    name = "confluent-header"
    header = "__value_schema_id"
    magic = b"\x01"
    prefix_size = 1 + 16
    _WITH_ID = ConfluentEnvelope()

    def prefix(self, schema: RegisteredSchema) -> bytes:
        if not schema.guid:
            raise SchemaError(f"schema {schema.schema_id} has no GUID, which the {self.name} envelope needs")
        return self.magic + schema.guid

    def size_of(self, data: bytes) -> int:
        return self._WITH_ID.prefix_size if data[:1] == b"\0" else self.prefix_size

    def parse(self, data: bytes | memoryview) -> SchemaKey:
        return self._WITH_ID.parse(data) if bytes(data[:1]) == b"\0" else SchemaKey(guid=self.key(data))


class LinkedInEnvelope(_KeyedEnvelope):
    """LinkedIn's wire format (Goodhope et al., 2012): 0x00, then the MD5 of the schema's registered text."""

    name = "linkedin"
    magic = b"\0"
    prefix_size = 1 + 16

    def prefix(self, schema: RegisteredSchema) -> bytes:
        return self.magic + schema.md5

    def parse(self, data: bytes | memoryview) -> SchemaKey:
        return SchemaKey(md5=self.key(data))


class SingleObjectEnvelope(_KeyedEnvelope):
    """Avro's single-object encoding: C3 01, then CRC-64-AVRO of the parsing canonical form, little-endian."""

    name = "single-object"
    magic = b"\xc3\x01"
    prefix_size = 2 + 8

    def prefix(self, schema: RegisteredSchema) -> bytes:
        return self.magic + schema.fingerprint

    def parse(self, data: bytes | memoryview) -> SchemaKey:
        return SchemaKey(fingerprint=self.key(data))
