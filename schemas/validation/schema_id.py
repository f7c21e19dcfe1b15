"""How a record names its schema, as Confluent's serializers write it.

- In the payload: `00` and the schema's id in 4 bytes, or `01` and the 16 bytes of its GUID, before the data.
- In the record's header `__key_schema_id` or `__value_schema_id`: the same bytes; the payload is the data alone.

With a Protobuf schema the numbers of the message follow: zig-zag varints, how many, then the index of the message in
its file and of each one nested in it; `00` alone is the first message. A header counts before the payload.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from klamm.core.errors import SchemaError
from klamm.core.records.record import Headers

KEY_HEADER: Final = "__key_schema_id"
VALUE_HEADER: Final = "__value_schema_id"
BY_ID: Final = 0
BY_GUID: Final = 1
_SIZE: Final = {BY_ID: 5, BY_GUID: 17}


class SchemaId(NamedTuple):
    """`name`: the magic byte and the id or GUID. `source[at:]` is what follows it: `inside` the payload, or in the
    header."""

    name: bytes
    source: bytes
    at: int
    inside: bool


def header_of(headers: Headers, name: str) -> bytes | None:
    """Returns the value of the last header of this name, as Kafka's `lastHeader`."""
    return next((value for key, value in reversed(headers) if key == name), None)


def schema_id(payload: bytes, header: bytes | None = None) -> SchemaId:
    """Returns the id or GUID that names the payload's schema. Raises `SchemaError`, which shows what is there
    instead."""
    source, where = (payload, "the payload") if header is None else (header, "the header")
    if not source:
        raise SchemaError(f"{where} is empty: no schema id")
    size = _SIZE.get(source[0])
    if size is None:
        raise SchemaError(f"{where} begins with 0x{source[0]:02x}, not with 0x00 and a schema id")
    if len(source) < size:
        raise SchemaError(f"{where} has {len(source)} bytes, too few for a schema id ({size})")
    return SchemaId(source[:size], source, size, header is None)


def number(name: bytes) -> int | None:
    """Returns the id; None if it is a GUID."""
    return int.from_bytes(name[1:], "big", signed=True) if name[0] == BY_ID else None


def guid(name: bytes) -> str:
    return str(UUID(bytes=name[1:]))


def describe(name: bytes) -> str:
    """Returns `schema id 7`, or `schema GUID …`."""
    return f"schema id {number(name)}" if name[0] == BY_ID else f"schema GUID {guid(name)}"
