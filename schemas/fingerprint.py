"""What names a schema: the MD5 of its text, and CRC-64-AVRO of its parsing canonical form."""

from __future__ import annotations

import hashlib

from fastavro.schema import fingerprint as avro_fingerprint

from klamm.core.interfaces.envelope import RegisteredSchema

from .parsing import identity, parse


def registered(schema_id: int, text: str) -> RegisteredSchema:
    """`SchemaError` when the text is no Avro schema."""
    return RegisteredSchema(schema_id, text, md5(text), fingerprint(text))


def md5(text: str) -> bytes:
    """16 bytes, of the text as registered."""
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


def fingerprint(text: str) -> bytes:
    """8 bytes, little-endian, as Avro's single-object encoding has them."""
    return bytes.fromhex(avro_fingerprint(parse(text).canonical, "CRC-64-AVRO"))


def identity_digest(text: str) -> str:
    """Hex; equal for texts that say the same (see `parsing.identity`)."""
    parse(text)
    return hashlib.sha256(identity(text).encode()).hexdigest()
