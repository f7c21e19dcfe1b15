"""The contract of every envelope, whoever ships it."""

from __future__ import annotations

import hashlib

import pytest

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import Envelope, RegisteredSchema, SchemaKey
from klamm.core.plugins import plugin_host

TEXT = '{"type": "string"}'
SCHEMAS = [
    RegisteredSchema(i, f"{TEXT} {i}", hashlib.md5(f"{TEXT} {i}".encode()).digest(), i.to_bytes(8, "little"))
    for i in (1, 2, 255, 65_536, 2**31 - 1)
]


@pytest.fixture(params=plugin_host().envelopes.names())
def envelope(request: pytest.FixtureRequest) -> Envelope:
    return plugin_host().envelopes.create(request.param)


def _set(key: SchemaKey) -> list[object]:
    return [value for value in (key.schema_id, key.md5, key.fingerprint) if value is not None]


def test_built_ins_are_there() -> None:
    """Hook `klamm_envelopes`."""
    assert {"confluent", "linkedin", "single-object"} <= set(plugin_host().envelopes.names())


def test_its_name_is_what_yaml_selects(envelope: Envelope) -> None:
    assert plugin_host().envelopes.create(envelope.name).name == envelope.name


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: str(s.schema_id))
def test_prefix_has_its_size_and_names_the_schema(envelope: Envelope, schema: RegisteredSchema) -> None:
    prefix = envelope.prefix(schema)
    assert len(prefix) == envelope.prefix_size
    assert prefix == envelope.prefix(schema)
    (found,) = _set(envelope.parse(prefix + b"payload"))
    assert found in (schema.schema_id, schema.md5, schema.fingerprint)


def test_different_schemas_have_different_prefixes(envelope: Envelope) -> None:
    assert len({envelope.prefix(schema) for schema in SCHEMAS}) == len(SCHEMAS)


def test_a_memoryview_will_do(envelope: Envelope) -> None:
    data = envelope.prefix(SCHEMAS[2]) + b"x"
    assert envelope.parse(memoryview(data)) == envelope.parse(data)


def test_too_short_is_a_schema_error(envelope: Envelope) -> None:
    whole = envelope.prefix(SCHEMAS[0])
    for size in range(envelope.prefix_size):
        with pytest.raises(SchemaError, match="too short"):
            envelope.parse(whole[:size])


def test_other_bytes_are_a_schema_error_that_says_so(envelope: Envelope) -> None:
    with pytest.raises(SchemaError, match=envelope.name):
        envelope.parse(b"\x7f" * 40)
