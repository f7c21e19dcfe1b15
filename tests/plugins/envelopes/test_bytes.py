"""The bytes of each built-in envelope, as its own specification has them."""

from __future__ import annotations

import hashlib

import pytest

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import RegisteredSchema, SchemaKey
from klamm.core.plugins import plugin_host

MD5 = hashlib.md5(b'"int"').digest()
SCHEMA = RegisteredSchema(0x01020304, '"int"', MD5, bytes.fromhex("8f5c393f1ad57572"))


@pytest.mark.parametrize(
    ("name", "prefix", "key"),
    [
        ("confluent", b"\x00\x01\x02\x03\x04", SchemaKey(schema_id=0x01020304)),
        ("linkedin", b"\x00" + MD5, SchemaKey(md5=MD5)),
        ("single-object", bytes.fromhex("c3018f5c393f1ad57572"), SchemaKey(fingerprint=SCHEMA.fingerprint)),
    ],
)
def test_bytes(name: str, prefix: bytes, key: SchemaKey) -> None:
    envelope = plugin_host().envelopes.create(name)
    assert envelope.prefix(SCHEMA) == prefix
    assert envelope.parse(prefix + b"\x02") == key


def test_confluent_ids_begin_at_one() -> None:
    envelope = plugin_host().envelopes.create("confluent")
    for head in (b"\0\0\0\0\0", b"\0\xff\xff\xff\xff"):
        with pytest.raises(SchemaError, match="ids begin at 1"):
            envelope.parse(head)
