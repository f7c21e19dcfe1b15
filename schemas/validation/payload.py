"""Checks payloads by their schema, in each of the three formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from klamm.core.errors import SchemaError

from ..names import AVRO, JSON, PROTOBUF


class PayloadFormat(Protocol):
    """The payloads of one schema. `message`: the indexes of the Protobuf message; empty for the other formats."""

    def name(self, message: Sequence[int]) -> str | None:
        """Returns the full name of the record that a payload is; None if the schema gives it none."""
        ...

    def check(self, payload: bytes, start: int, message: Sequence[int]) -> None:
        """Raises `SchemaError` unless the payload from `start` on is one value of the schema, and nothing after it."""
        ...


def payload_format(schema_type: str, text: str, references: Mapping[str, str]) -> PayloadFormat:
    """`references`: texts by the name that the schema uses, each before those that refer to it. Raises `SchemaError` if
    the text cannot be read, `ImportError` without the packages of the extra `registry`, which JSON Schema and Protobuf
    need."""
    if schema_type == AVRO:
        from .avro_payload import AvroPayload

        return AvroPayload(text, tuple(dict.fromkeys(references.values())))
    if schema_type == JSON:
        from .json_payload import JsonPayload

        return JsonPayload(text, references)
    if schema_type == PROTOBUF:
        from .protobuf_payload import ProtobufPayload

        return ProtobufPayload(text, references)
    raise SchemaError(f"schemas of type {schema_type!r:.100} cannot be checked")
