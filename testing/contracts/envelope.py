"""The contract of `klamm.plugin.Envelope`."""

from __future__ import annotations

import hashlib

import pytest

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import Envelope, HeaderEnvelope, RegisteredSchema, SchemaKey

__all__ = ["EnvelopeContract"]

_TEXT = '{"type": "string"}'
_SCHEMAS = [
    RegisteredSchema(
        i,
        f"{_TEXT} {i}",
        hashlib.md5(f"{_TEXT} {i}".encode()).digest(),
        i.to_bytes(8, "little"),
        hashlib.md5(f"guid {i}".encode()).digest(),
    )
    for i in (1, 2, 255, 65_536, 2**31 - 1)
]


def _set(key: SchemaKey) -> list[object]:
    return [value for value in (key.schema_id, key.md5, key.fingerprint, key.guid) if value is not None]


class EnvelopeContract:
    """The suite of an envelope. Define `envelope`, a fixture that returns the envelope."""

    @pytest.fixture
    def envelope(self) -> Envelope:
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `envelope` that returns the one under test")

    def test_it_has_a_name(self, envelope: Envelope) -> None:
        assert envelope.name

    @pytest.mark.parametrize("schema", _SCHEMAS, ids=lambda s: str(s.schema_id))
    def test_prefix_has_its_size_and_names_the_schema(self, envelope: Envelope, schema: RegisteredSchema) -> None:
        prefix = envelope.prefix(schema)
        assert len(prefix) == envelope.prefix_size
        assert prefix == envelope.prefix(schema)
        (found,) = _set(envelope.parse(prefix + b"payload"))
        assert found in (schema.schema_id, schema.md5, schema.fingerprint, schema.guid)

    def test_different_schemas_have_different_prefixes(self, envelope: Envelope) -> None:
        assert len({envelope.prefix(schema) for schema in _SCHEMAS}) == len(_SCHEMAS)

    def test_a_memoryview_will_do(self, envelope: Envelope) -> None:
        data = envelope.prefix(_SCHEMAS[2]) + b"x"
        assert envelope.parse(memoryview(data)) == envelope.parse(data)

    def test_too_short_is_a_schema_error(self, envelope: Envelope) -> None:
        whole = envelope.prefix(_SCHEMAS[0])
        for size in range(envelope.prefix_size):
            with pytest.raises(SchemaError, match="too short"):
                envelope.parse(whole[:size])

    def test_other_bytes_are_a_schema_error_that_says_so(self, envelope: Envelope) -> None:
        with pytest.raises(SchemaError, match=envelope.name):
            envelope.parse(b"\x7f" * 40)

    def test_the_prefix_of_a_header_has_its_size(self, envelope: Envelope) -> None:
        if isinstance(envelope, HeaderEnvelope):
            assert envelope.header
            assert envelope.size_of(envelope.prefix(_SCHEMAS[1]) + b"more") == envelope.prefix_size
