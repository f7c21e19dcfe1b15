"""An Avro schema as a graph of types: names in full, every reference the type itself, unknown attributes dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from klamm.core.errors import SchemaError

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NAMED: Final = frozenset({"record", "enum", "fixed"})
MISSING: Final = object()
"""The default of a field without a default."""


@dataclass(frozen=True, slots=True)
class AvroField:
    """A record's field. `default` is the JSON value, or `MISSING`."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = MISSING


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type. `kind` is Avro's (`error` is `record`); the rest is empty where the kind has none.

    `name` and `aliases` are full names, `item` is an array's or a map's type, `default` an enum's. `logical` is the
    logical type if it is one of Avro 1.12 and valid for the kind; an invalid or unknown one is ignored, as the
    specification requires. A record may contain itself: compare types with `is` where that is possible.
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
    def parts(self) -> tuple[AvroType, ...]:
        """The types within, in the order of the text."""
        return (*(field.type for field in self.fields), *self.branches, *((self.item,) if self.item else ()))

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

    @property
    def branch_name(self) -> str:
        """The name of the type as a branch of a union: a named type's full name, else the kind."""
        return self.name or self.kind


def branch_names(union: AvroType) -> dict[str, int]:
    """Returns the branches by full name, and by short name where only one has it."""
    shorts = [branch.short_name for branch in union.branches]
    found = {name: index for index, name in enumerate(shorts) if name and shorts.count(name) == 1}
    return found | {branch.branch_name: index for index, branch in enumerate(union.branches)}


def describe(avro: AvroType) -> str:
    """Returns the type as error messages name it: `record n.R`, `long (timestamp-millis)`, `bytes (decimal(9,2))`."""
    if avro.kind == "union":
        return f"union of {', '.join(map(describe, avro.branches))}" if avro.branches else "an empty union"
    logical = f"decimal({avro.precision},{avro.scale})" if avro.logical == "decimal" else avro.logical
    text = f"{avro.kind} {avro.name}" if avro.name else avro.kind
    return f"{text} ({logical})" if logical else text


def under(at: str, name: str) -> str:
    """Returns the path of a part of the type at `at`: a field's name, `[]` (items) or `{}` (values)."""
    return f"{at}.{name}" if at and name not in ("[]", "{}") else f"{at}{name}"


def types_of(root: AvroType) -> Iterator[AvroType]:
    """Yields every type once, in the order of the text."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        avro = waiting.pop()
        if id(avro) in seen:
            continue
        seen.add(id(avro))
        yield avro
        waiting += reversed(avro.parts)
