"""LinkedIn's wire format (Goodhope et al., 2012): 0x00, then the MD5 of the schema's registered text."""

from __future__ import annotations

from klamm.plugin import RegisteredSchema, SchemaKey

from .magic import key_after

_MAGIC = b"\0"


class LinkedInEnvelope:
    name = "linkedin"
    prefix_size = len(_MAGIC) + 16

    def prefix(self, schema: RegisteredSchema) -> bytes:
        return _MAGIC + schema.md5

    def parse(self, data: bytes | memoryview) -> SchemaKey:
        return SchemaKey(md5=key_after(_MAGIC, self.prefix_size, data, self.name))
