"""An Avro schema as a tree: names resolved, every reference written out, unknown attributes dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastavro import parse_schema

from klamm.core.errors import SchemaError

MAX_NODES: Final = 20_000
"""The most types in one schema with its references expanded; a schema of doubled references would grow without
bound."""

MAX_PRECISION: Final = 38
"""Digits of Arrow's decimal128, and of Spark's."""

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
MISSING: Final = object()
"""A field without a default."""


@dataclass(frozen=True, slots=True)
class AvroField:
    """A record's field. `default` is the JSON value, or `MISSING`."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = MISSING


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type. `kind` is Avro's; the rest is empty where the kind has none.

    `name` is the full name, `item` an array's or a map's type, `default` an enum's. `logical` is as written;
    `arrowtype` decides what it means for Arrow and whether it is valid.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    symbols: tuple[str, ...] = ()
    default: str | None = None
    item: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    size: int = 0
    logical: str = ""
    precision: int = 0
    scale: int = 0

    @property
    def inner(self) -> AvroType:
        """`item` of an array or a map."""
        if self.item is None:
            raise SchemaError(f"Avro type {self.kind} has no items")
        return self.item

    @property
    def values(self) -> tuple[AvroType, ...]:
        """The branches of a union except null."""
        return tuple(branch for branch in self.branches if branch.kind != "null")

    @property
    def optional(self) -> bool:
        return any(branch.kind == "null" for branch in self.branches)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


def parse_type(text: str) -> AvroType:
    """Parses a schema's text. Raises `SchemaError` when it is not an Avro schema, recursive or too large."""
    try:
        parsed = parse_schema(json.loads(text))
    except Exception as error:  # for a text that is not a schema, fastavro raises KeyError and TypeError as well
        raise SchemaError(f"not an Avro schema: {type(error).__name__}: {error}") from error
    return _TypeBuilder().type_of(parsed, ())


class _TypeBuilder:
    """One pass over a parsed schema; keeps the definitions that later references name."""

    def __init__(self) -> None:
        self._named: dict[str, Mapping[str, Any]] = {}
        self._nodes = 0

    def type_of(self, schema: Any, inside: tuple[str, ...]) -> AvroType:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise SchemaError(f"the schema has more than {MAX_NODES} types once its references are written out")
        if isinstance(schema, list):
            return AvroType("union", branches=tuple(self.type_of(branch, inside) for branch in schema))
        if isinstance(schema, str):
            if schema in PRIMITIVES:
                return AvroType(schema)
            if schema in inside:
                raise SchemaError(f"the schema's type {schema} contains itself; a table's columns cannot")
            return self.type_of(self._named[schema], inside)
        return self._complex(schema, inside)

    def _complex(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> AvroType:
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            self._named[schema["name"]] = schema
        if kind in ("record", "error"):
            return self._record(schema, (*inside, schema["name"]))
        if kind in ("array", "map"):
            return AvroType(kind, item=self.type_of(schema["items" if kind == "array" else "values"], inside))
        if kind not in PRIMITIVES and kind not in ("enum", "fixed"):
            return self.type_of(kind, inside)
        return AvroType(
            kind,
            name=schema.get("name", ""),
            aliases=_aliases(schema),
            symbols=tuple(schema.get("symbols", ())),
            default=schema.get("default") if kind == "enum" else None,
            size=schema.get("size", 0),
            logical=str(schema.get("logicalType", "")),
            precision=_number(schema.get("precision")),
            scale=_number(schema.get("scale")),
        )

    def _record(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> AvroType:
        fields = tuple(
            AvroField(
                field["name"],
                self.type_of(field["type"], inside),
                tuple(field.get("aliases", ())),
                field.get("default", MISSING),
            )
            for field in schema["fields"]
        )
        return AvroType("record", name=schema["name"], aliases=_aliases(schema), fields=fields)


def _aliases(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Full names: an alias without a dot is in the namespace of the type."""
    namespace = schema.get("name", "").rpartition(".")[0]
    return tuple(a if "." in a or not namespace else f"{namespace}.{a}" for a in schema.get("aliases", ()))


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
