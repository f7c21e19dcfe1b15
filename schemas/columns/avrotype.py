"""The type of a schema whose values can be columns."""

from __future__ import annotations

from typing import Final

from klamm.core.errors import SchemaError

from ..avro.model import MISSING, PRIMITIVES, AvroField, AvroType
from ..avro.parsing import parse

__all__ = ["MAX_NODES", "MAX_PRECISION", "MISSING", "PRIMITIVES", "AvroField", "AvroType", "parse_type"]

MAX_NODES: Final = 20_000
"""The most types in one schema with its references expanded; a schema of doubled references would grow without
bound."""

MAX_PRECISION: Final = 38
"""Digits of Arrow's decimal128, and of Spark's."""


def parse_type(text: str) -> AvroType:
    """Parses a schema's text. Raises `SchemaError` when it is not an Avro schema, recursive or too large."""
    root = parse(text).root
    _count(root, (), 0)
    return root


def _count(avro: AvroType, inside: tuple[str, ...], before: int) -> int:
    """Returns `before` plus the number of types in `avro`, with its references written out."""
    count = before + 1
    if count > MAX_NODES:
        raise SchemaError(f"the schema has more than {MAX_NODES} types once its references are written out")
    if avro.kind == "record":
        if avro.name in inside:
            raise SchemaError(f"the schema's type {avro.name} contains itself; a table's columns cannot")
        inside = (*inside, avro.name)
    for part in avro.parts:
        count = _count(part, inside, count)
    return count
