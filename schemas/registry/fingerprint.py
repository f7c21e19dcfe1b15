"""The names of an Avro schema: the MD5 of its text, and CRC-64-AVRO of its parsing canonical form."""

from __future__ import annotations

from collections.abc import Sequence

from fastavro.schema import fingerprint as avro_fingerprint

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import RegisteredSchema

from ..avro.parsing import parse
from ..store.schema import text_md5


def registered(schema_id: int, text: str, references: Sequence[str] = (), guid: bytes = b"") -> RegisteredSchema:
    """Returns the schema with its id, GUID and fingerprints. The types of `references` are written out in its text.
    Raises `SchemaError` if a text is not an Avro schema.
    """
    parsed = parse(text, references)
    return RegisteredSchema(schema_id, parsed.text, text_md5(text), _crc(parsed.canonical), guid)


def fingerprint(text: str) -> bytes:
    """Returns 8 bytes, little-endian, as in Avro's single-object encoding."""
    return _crc(parse(text).canonical)


def _crc(canonical: str) -> bytes:
    try:
        return bytes.fromhex(avro_fingerprint(canonical, "CRC-64-AVRO"))
    except UnicodeEncodeError as error:
        raise SchemaError(f"not an Avro schema: a name cannot be UTF-8: {error.reason}") from error
