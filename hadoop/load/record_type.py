"""Which record types a lake can hold. Checked before a load reads its first record, so that no published file is
unreadable for Spark or Hive.

Rules, for the record and for each record in it:

- it has at least one field: neither Parquet nor ORC has a column for an empty one;
- its fields have Avro's names (letters, digits and `_`, not a digit first);
- no two of them differ only in case: Spark and Hive do not distinguish such columns by default;
- at the top none has the name of a column of the lake, in any case.

A field's path is written as in Spark: `order.items[].id`, `prices{}` for the values of a map, `member0` for a member of
a union of several types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from klamm.core.errors import SchemaError
from klamm.schemas.avro.model import AvroType

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN: Final = 3
"""The most problems in a message."""


def check(topic: str, avro: AvroType, reserved: frozenset[str]) -> None:
    """Raises `SchemaError` with the path of each field that no lake can hold. `reserved`: the lake's own columns."""
    if avro.kind != "record":
        raise SchemaError(f"topic {topic}: its schema is {avro.kind}, not a record; a table needs columns")
    found = [*_own_columns(avro, reserved), *_problems(avro, "")]
    if found:
        more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
        raise SchemaError(f"topic {topic}: {'; '.join(found[:_SHOWN])}{more}; nothing is loaded")


def _own_columns(avro: AvroType, reserved: frozenset[str]) -> Iterator[str]:
    for field in avro.fields:
        if field.name.lower() in reserved:
            yield f"field {field.name}: the lake has a column {field.name.lower()} of its own; rename the field"


def _problems(avro: AvroType, path: str) -> Iterator[str]:
    """Yields the problems of a type and of those in it; `path` is empty for the record itself."""
    if avro.kind == "record":
        yield from _record_problems(avro, path)
    elif avro.kind == "array":
        yield from _problems(avro.inner, f"{path}[]")
    elif avro.kind == "map":
        yield from _problems(avro.inner, f"{path}{{}}")
    elif avro.kind == "union":
        for number, branch in enumerate(avro.values):
            yield from _problems(branch, path if len(avro.values) == 1 else f"{path}.member{number}")


def _record_problems(avro: AvroType, path: str) -> Iterator[str]:
    if not avro.fields:
        where = f"field {path}: " if path else ""
        yield f"{where}record {avro.name} has no fields, and a table needs columns; give it a field"
    known: dict[str, str] = {}
    for field in avro.fields:
        inside = f"{path}.{field.name}" if path else field.name
        if not _NAME.fullmatch(field.name):
            yield f"field {inside!r}: not a name of Avro: letters, digits and _, not a digit first"
        other = known.setdefault(field.name.lower(), field.name)
        if other != field.name:
            yield f"field {inside}: differs only in case from {other}, which Spark takes for the same; rename one"
        yield from _problems(field.type, inside)
