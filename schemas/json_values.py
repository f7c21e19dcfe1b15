"""Python values of a schema as JSON, and back: the form in which a command line reads and prints them.

| Avro type | JSON |
| --- | --- |
| `null`, `boolean`, `int`, `long`, `string`, `enum`, `array`, `map`, `record` | as in Avro's JSON encoding |
| `float`, `double` | a number; "NaN", "Infinity", "-Infinity" |
| `bytes`, `fixed` | text with a character U+0000 to U+00FF for each byte, as in Avro's JSON encoding |
| `date`, `time-*`, `timestamp-*`, `local-timestamp-*` | ISO 8601 text, or the stored number |
| `decimal` | its digits as text, or a number |
| `uuid` | text |

A union's value stands as it is; Avro's form {"branch": value} is read too, and is written where several branches are
text in JSON and the value is none of `string`'s. A field may be left out if it has a default.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from klamm.core.errors import SchemaError

from .branches import NAME_KEY, candidates, takes_names
from .logical import Convert, misfit, reader_of
from .model import MISSING, AvroType, describe, under

__all__ = ["cell_reader", "json_reader", "json_writer"]

_BYTES: Final = "text with one character U+0000 to U+00FF for each byte"
_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TEXTS: Final = ("uuid", "date", "time-", "timestamp-", "local-", "decimal")
Make = Callable[[AvroType, str], Convert]


def json_reader(avro: AvroType) -> Convert:
    """Returns a function from a JSON document, whose fractions are `Decimal`, to a value as the writer takes it. It
    converts what JSON has no type for, and raises `SchemaError` where that is impossible; the writer checks the rest.
    """
    return _Compiler(_json_leaf, _json_union).of(avro, "")


def json_writer(avro: AvroType) -> Convert:
    """Returns a function from a value as the reader returns it to what `json.dumps` takes."""
    return _Compiler(lambda avro, _: _printed(avro), _printed_union).of(avro, "")


def cell_reader(avro: AvroType, columns: Sequence[str]) -> Convert:
    """Returns a function from a row of CSV, a dict of texts by column, to a value of a record as the writer takes it.
    Raises `SchemaError` for a schema that is no record, for a column that is no field, and for a field that has neither
    a column nor a default.

    An empty cell is null where the field may be null, its default where it has one, else an empty text. Cells of
    arrays, maps, records and unions of several types are JSON.
    """
    if avro.kind != "record":
        raise SchemaError(f"CSV rows are records, and the schema is {describe(avro)}")
    fields = {field.name: field for field in avro.fields}
    unknown = [name for name in columns if name not in fields]
    if unknown:
        raise SchemaError(f"column {unknown[0]!r} is no field of {describe(avro)}; fields: {', '.join(fields)}")
    missing = [name for name, field in fields.items() if name not in columns and field.default is MISSING]
    if missing:
        raise SchemaError(
            f"no column for the field {missing[0]!r}, which has no default; columns: {', '.join(columns)}"
        )
    cells = {field.name: (_cell(field.type, field.name), _empty(field.type, field.default)) for field in avro.fields}

    def convert(row: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, text in row.items():
            read, empty = cells[name]
            if text or empty is _REQUIRED:
                found[name] = read(text)
            elif empty is not MISSING:
                found[name] = empty
        return found

    return convert


_REQUIRED: Final = object()


def _empty(avro: AvroType, default: Any) -> Any:
    """Returns the value of an empty cell; MISSING: the default; _REQUIRED: its text is read."""
    if avro.kind == "null" or avro.optional:
        return None
    if avro.kind == "string" and not avro.logical:
        return ""
    return _REQUIRED if default is MISSING else MISSING


def _cell(avro: AvroType, at: str) -> Convert:
    if avro.kind == "union" and len(avro.values) == 1:
        return _cell(avro.values[0], at)
    value = json_reader(avro) if avro.kind in ("union", "array", "map", "record") else _json_leaf(avro, at)
    if avro.kind in ("string", "enum", "bytes", "fixed"):
        return value
    as_text = any(branch.kind == "string" and not branch.logical for branch in avro.branches)

    def convert(text: str) -> Any:
        if as_text and not text.startswith(("{", "[", '"')):
            return text
        try:
            return value(json.loads(text, parse_float=Decimal, parse_constant=_no_number))
        except ValueError:
            if avro.kind == "union" or avro.logical or text in _FLOATS:
                return value(text)
            raise misfit(at, f"expected {_as_json(avro)}, got {text!r:.200}") from None

    return convert


def _no_number(text: str) -> Any:
    raise ValueError(text)


def _as_json(avro: AvroType) -> str:
    if avro.kind == "boolean":
        return "true or false"
    return f"{describe(avro)} as JSON" if avro.kind in ("array", "map", "record") else describe(avro)


class _Compiler:
    """Makes the conversion of each type from those of leaves and unions."""

    def __init__(self, leaf: Make, union: Callable[[AvroType, list[Convert]], Convert]) -> None:
        self._leaf = leaf
        self._union = union
        self._records: dict[int, Convert] = {}

    def of(self, avro: AvroType, at: str) -> Convert:
        match avro.kind:
            case "record":
                return self._record(avro, at)
            case "array":
                item = self.of(avro.inner, under(at, "[]"))
                return lambda value: [item(one) for one in value] if isinstance(value, list) else value
            case "map":
                part = self.of(avro.inner, under(at, "{}"))
                return lambda value: (
                    {name: part(one) for name, one in value.items()} if isinstance(value, Mapping) else value
                )
            case "union":
                return self._union(avro, [self.of(branch, at) for branch in avro.branches])
        return self._leaf(avro, at)

    def _record(self, avro: AvroType, at: str) -> Convert:
        known = self._records.get(id(avro))
        if known is not None:  # it contains itself
            return known
        fields: dict[str, Convert] = {}

        def convert(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            return {name: fields[name](item) if name in fields else item for name, item in value.items()}

        self._records[id(avro)] = convert
        fields.update((field.name, self.of(field.type, under(at, field.name))) for field in avro.fields)
        return convert


def _json_leaf(avro: AvroType, at: str) -> Convert:
    if avro.logical == "decimal":
        return _parsed(avro, at, Decimal, "a decimal number")
    if avro.logical == "uuid":
        return _parsed(avro, at, UUID, "a UUID") if avro.kind == "fixed" else lambda value: value
    if avro.logical == "date":
        return _parsed(avro, at, dt.date.fromisoformat, "a date such as 2026-11-28")
    if avro.logical.startswith("time-"):
        return _parsed(avro, at, dt.time.fromisoformat, "a time such as 10:30:00")
    if avro.logical.startswith("local-timestamp"):
        return _parsed(avro, at, _datetime, "a time such as 2026-11-28T10:30:00")
    if avro.logical.startswith("timestamp"):
        return _parsed(avro, at, _datetime, "a time such as 2026-11-28T10:30:00Z")
    if avro.kind in ("bytes", "fixed"):
        return _parsed(avro, at, lambda text: text.encode("latin-1"), _BYTES)
    if avro.kind in ("float", "double"):
        return lambda value: (
            float(value)
            if isinstance(value, Decimal)
            else _FLOATS.get(value, value)
            if isinstance(value, str)
            else value
        )
    return lambda value: float(value) if isinstance(value, Decimal) else value


def _datetime(text: str) -> dt.datetime:
    if len(text) <= len("2026-11-28"):
        raise ValueError("a date has no time")
    return dt.datetime.fromisoformat(text)


def _parsed(avro: AvroType, at: str, parse: Callable[[str], Any], expected: str) -> Convert:
    """Returns a function that parses text, takes a whole number for the stored date or time, and leaves everything else
    to the writer."""
    stored = reader_of(avro) if avro.kind in ("int", "long") else None

    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            return value
        if isinstance(value, int | Decimal) and avro.logical == "decimal":
            return Decimal(value)
        if isinstance(value, int):
            return value if stored is None else stored(value)
        if not isinstance(value, str):
            return float(value) if isinstance(value, Decimal) else value
        try:
            return parse(value)
        except (ValueError, InvalidOperation):
            raise misfit(at, f"expected {expected} for {describe(avro)}, got {value!r:.200}") from None

    return convert


def _json_union(avro: AvroType, reads: list[Convert]) -> Convert:
    names = _names(avro)
    single = avro.values[0] if len(avro.values) == 1 else None

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping) and len(value) == 1:
            ((name, inner),) = value.items()
            if name in names and not (single is not None and _plain(single, name)):
                index = names[name]
                return avro.branches[index].branch_name, reads[index](inner)
        if single is not None:
            return reads[avro.branches.index(single)](value)
        found = _branch(avro, reads, value)
        return value if found is None else (avro.branches[found].branch_name, reads[found](value))

    return convert


def _plain(branch: AvroType, name: str) -> bool:
    """Returns whether {name: …} is a value of the branch itself."""
    return branch.kind == "map" or any(field.name == name for field in branch.fields)


def _names(avro: AvroType) -> dict[str, int]:
    shorts = [branch.short_name for branch in avro.branches]
    found = {name: index for index, name in enumerate(shorts) if name and shorts.count(name) == 1}
    return found | {branch.branch_name: index for index, branch in enumerate(avro.branches) if branch.kind != "null"}


def _branch(avro: AvroType, reads: list[Convert], value: Any) -> int | None:
    """Returns the branch of a JSON value among several; None if the writer is to decide."""
    branches = avro.branches
    if isinstance(value, Mapping):
        if NAME_KEY in value:
            return _names(avro).get(value[NAME_KEY])
        fits = [i for i, one in enumerate(branches) if one.kind == "map" or takes_names(one, set(value))]
        return fits[0] if len(fits) == 1 else None
    if isinstance(value, list):
        return _first(avro, ("array",))
    if isinstance(value, int) and not isinstance(value, bool) and not candidates(avro, int):
        times = [i for i, one in enumerate(branches) if one.kind in ("int", "long")]
        return next((i for i in times if not isinstance(reads[i](value), int)), _first(avro, ("int", "long")))
    if isinstance(value, Decimal):
        return _first(avro, ("double", "float")) if _first(avro, ("double", "float")) is not None else _decimal(avro)
    if not isinstance(value, str) or any(one.kind == "string" and not one.logical for one in branches):
        return None
    for index in _textual(avro):
        branch = branches[index]
        if branch.kind == "enum" and value not in branch.symbols:
            continue
        try:
            if branch.kind == "string":
                UUID(value)
            reads[index](value)
        except (SchemaError, ValueError):
            continue
        return index
    return None


def _first(avro: AvroType, kinds: Iterable[str]) -> int | None:
    found = (i for kind in kinds for i, one in enumerate(avro.branches) if one.kind == kind)
    return next(found, None)


def _decimal(avro: AvroType) -> int | None:
    return next((i for i, one in enumerate(avro.branches) if one.logical == "decimal"), None)


def _textual(avro: AvroType) -> list[int]:
    """Returns the branches whose values are text in JSON; bytes last, since any text may be bytes."""
    found = [
        (one.kind in ("bytes", "fixed") and not one.logical, index)
        for index, one in enumerate(avro.branches)
        if one.kind in ("string", "enum", "bytes", "fixed") or one.logical.startswith(_TEXTS)
    ]
    return [index for _, index in sorted(found)]


def _printed(avro: AvroType) -> Convert:
    if avro.logical == "decimal":
        return lambda value: format(value, "f") if isinstance(value, Decimal) else value
    if avro.logical == "uuid":
        return str
    if avro.logical:
        return _iso
    if avro.kind in ("bytes", "fixed"):
        return lambda value: value.decode("latin-1")
    if avro.kind in ("float", "double"):
        return lambda value: (
            value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")
        )
    return lambda value: value


def _iso(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, dt.date | dt.time) else value


def _printed_union(avro: AvroType, prints: list[Convert]) -> Convert:
    names = _names(avro)
    textual = set(_textual(avro))
    several = len(avro.values) > 1

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            name, inner = value
            return {name: prints[names[name]](inner)}
        index = _index(avro, value)
        made = prints[index](value)
        branch = avro.branches[index]
        tagged = isinstance(made, str) and len(textual) > 1 and (branch.kind != "string" or branch.logical)
        if several and (tagged or (isinstance(made, dict) and len(made) == 1 and next(iter(made)) in names)):
            return {branch.branch_name: made}
        return made

    return convert


def _index(avro: AvroType, value: Any) -> int:
    """Returns the branch of a value as the reader returns it."""
    if isinstance(value, dict):
        named = value.get(NAME_KEY)
        if isinstance(named, str) and named in _names(avro):
            return _names(avro)[named]
        for index, branch in enumerate(avro.branches):
            if branch.kind == "record" and takes_names(branch, set(value)):
                return index
        return _first(avro, ("map", "record")) or 0
    found = candidates(avro, value.__class__)
    if not found:  # the number of a date or a time that Python has no object for
        return _first(avro, ("int", "long")) or 0
    return found[0][1]
