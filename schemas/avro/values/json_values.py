"""Python values of a schema as JSON, and back: the form in which a command line reads and prints them.

| Avro type | JSON |
| --- | --- |
| `null`, `boolean`, `int`, `long`, `string`, `enum`, `array`, `map`, `record` | as in Avro's JSON encoding |
| `float`, `double` | a number; "NaN", "Infinity", "-Infinity" |
| `bytes`, `fixed` | text with a character U+0000 to U+00FF for each byte, as in Avro's JSON encoding |
| `date`, `time-*`, `timestamp-*`, `local-timestamp-*` | ISO 8601 text, or the stored number |
| `decimal` | its digits as text, or a number |
| `uuid` | text |

A union's value stands as it is. Avro's form {"branch": value} is read too; it is written if several branches are text
in JSON and the value's branch is not `string`. A field may be left out if it has a default.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import Any, Final
from uuid import UUID

from klamm.core.errors import SchemaError

from ..branches import NAME_KEY, candidates, takes_names
from ..logical import Convert, misfit, reader_of
from ..model import MISSING, AvroType, branch_names, describe, types_of, under

_BYTES: Final = "text with one character U+0000 to U+00FF for each byte"
_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TEXTS: Final = ("uuid", "date", "time-", "timestamp-", "local-", "decimal")
Text = Callable[[Any], str]


def json_reader(avro: AvroType) -> Convert:
    """Returns a function from a JSON document, whose fractions are of the class `fractions(avro)`, to a value as the
    writer takes it. It converts what JSON has no type for, and raises `SchemaError` where that is impossible; the
    writer checks the rest.
    """
    return _Reading(fractions(avro)).of(avro, "")


def fractions(avro: AvroType) -> type[float] | type[Decimal]:
    """Returns the class as which a document's fractions are parsed: `float`, which is quicker, if its precision is
    sufficient and the class does not choose a branch."""
    exact = any(one.logical == "decimal" or (one.kind == "union" and len(one.values) > 1) for one in types_of(avro))
    return Decimal if exact else float


def json_text(avro: AvroType) -> Text:
    """Returns a function from a value as the reader returns it to its JSON, without spaces."""
    return _Printing().of(avro)


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
    parsed = fractions(avro)
    value = _Reading(parsed).of(avro, at)
    if avro.kind in ("string", "enum", "bytes", "fixed"):
        return value
    as_text = any(branch.kind == "string" and not branch.logical for branch in avro.branches)

    def convert(text: str) -> Any:
        if as_text and not text.startswith(("{", "[", '"')):
            return text
        try:
            return value(json.loads(text, parse_float=parsed, parse_constant=_no_number))
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


def _same(value: Any) -> Any:
    return value


class _Reading:
    """Makes the conversion of each type from a JSON document; `_same` where there is nothing to convert."""

    def __init__(self, parsed: type[float] | type[Decimal]) -> None:
        self._parsed = parsed
        self._records: dict[int, Convert] = {}

    def of(self, avro: AvroType, at: str) -> Convert:
        match avro.kind:
            case "record":
                return self._record(avro, at)
            case "array":
                item = self.of(avro.inner, under(at, "[]"))
                if item is _same:
                    return _same
                return lambda value: [item(one) for one in value] if isinstance(value, list) else value
            case "map":
                part = self.of(avro.inner, under(at, "{}"))
                if part is _same:
                    return _same
                return lambda value: (
                    {name: part(one) for name, one in value.items()} if isinstance(value, Mapping) else value
                )
            case "union":
                return _json_union(avro, [self.of(branch, at) for branch in avro.branches])
        return self._leaf(avro, at)

    def _record(self, avro: AvroType, at: str) -> Convert:
        known = self._records.get(id(avro))
        if known is not None:  # it contains itself
            return known
        fields: list[tuple[str, Convert]] = []

        def convert(value: Any) -> Any:
            if value.__class__ is not dict:
                raise misfit(at, f"expected an object for {describe(avro)}, got {value!r:.200}")
            made = value
            for name, read in fields:
                item = value.get(name, MISSING)
                found = item if item is MISSING else read(item)
                if found is not item:
                    if made is value:
                        made = value.copy()
                    made[name] = found
            return made

        self._records[id(avro)] = convert
        made = [(field.name, self.of(field.type, under(at, field.name))) for field in avro.fields]
        fields += [(name, read) for name, read in made if read is not _same]
        return convert

    def _leaf(self, avro: AvroType, at: str) -> Convert:
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
            return _number(avro, at)
        return _same if self._parsed is float else _whole


def _number(avro: AvroType, at: str) -> Convert:
    def convert(value: Any) -> Any:
        if value.__class__ is str:
            return _FLOATS.get(value, value)
        if value.__class__ is Decimal:
            value = float(value)
        if value.__class__ is float and not -math.inf < value < math.inf:  # JSON has no such number
            raise misfit(at, f"the number is too large for {describe(avro)}")
        return value

    return convert


def _whole(value: Any) -> Any:
    """Messages show a fraction where none may be as JSON does."""
    return float(value) if value.__class__ is Decimal else value


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
    alone = None if single is None else reads[avro.branches.index(single)]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping) and len(value) == 1:
            ((name, inner),) = value.items()
            if name in names and not (single is not None and _plain(single, name)):
                index = names[name]
                return avro.branches[index].branch_name, reads[index](inner)
        if alone is not None:
            return alone(value)
        found = _branch(avro, reads, value)
        return value if found is None else (avro.branches[found].branch_name, reads[found](value))

    return convert


def _plain(branch: AvroType, name: str) -> bool:
    """Returns whether {name: …} is a value of the branch itself."""
    return branch.kind == "map" or any(field.name == name for field in branch.fields)


def _names(avro: AvroType) -> dict[str, int]:
    return {name: index for name, index in branch_names(avro).items() if avro.branches[index].kind != "null"}


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


class _Printing:
    """Makes the function from a value of each type to its JSON."""

    def __init__(self) -> None:
        self._records: dict[int, Text] = {}

    def of(self, avro: AvroType) -> Text:
        match avro.kind:
            case "record":
                return self._record(avro)
            case "array":
                item = self.of(avro.inner)
                return lambda value: f"[{','.join([item(one) for one in value])}]"
            case "map":
                part = self.of(avro.inner)
                return lambda value: _object([(name, part(one)) for name, one in value.items()])
            case "union":
                return _union_text(avro, [self.of(branch) for branch in avro.branches])
        return _leaf_text(avro)

    def _record(self, avro: AvroType) -> Text:
        known = self._records.get(id(avro))
        if known is not None:  # it contains itself
            return known
        parts: list[tuple[str, Text]] = []
        names = [encode_basestring(field.name).replace("%", "%%") for field in avro.fields]
        template = f"{{{','.join([f'{name}:%s' for name in names])}}}"

        def text(value: Any) -> str:
            if NAME_KEY in value:
                named = [(NAME_KEY, encode_basestring(value[NAME_KEY]))]
                return _object([*named, *((name, part(value[name])) for name, part in parts)])
            return template % tuple([part(value[name]) for name, part in parts])

        self._records[id(avro)] = text
        parts += [(field.name, self.of(field.type)) for field in avro.fields]
        return text


def _object(members: Iterable[tuple[str, str]]) -> str:
    return f"{{{','.join([f'{encode_basestring(name)}:{text}' for name, text in members])}}}"


def _leaf_text(avro: AvroType) -> Text:
    if avro.logical == "decimal":
        return lambda value: f'"{value:f}"'
    if avro.logical == "uuid":
        return lambda value: encode_basestring(str(value))
    if avro.logical:
        return _iso
    match avro.kind:
        case "null":
            return lambda _: "null"
        case "boolean":
            return lambda value: "true" if value else "false"
        case "int" | "long":
            return str
        case "float" | "double":
            return float_text
        case "bytes" | "fixed":
            return lambda value: encode_basestring(value.decode("latin-1"))
    return encode_basestring


def float_text(value: float) -> str:
    """Returns the shortest digits that make the number, as Python prints them; text where JSON has no number."""
    text = repr(value)
    return text if text[-1] not in "fn" else f'"{text.replace("inf", "Infinity").replace("nan", "NaN")}"'


def _iso(value: Any) -> str:
    if isinstance(value, dt.date | dt.time):
        return f'"{value.isoformat().replace("+00:00", "Z")}"'
    return str(value)  # the number of a date or a time that Python has no object for


def _union_text(avro: AvroType, texts: list[Text]) -> Text:
    names = _names(avro)
    textual = len(_textual(avro)) > 1
    several = len(avro.values) > 1
    by_class = dict[type, int]()

    def text(value: Any) -> str:
        if value is None:
            return "null"
        kind = value.__class__
        if kind is tuple:
            name, inner = value
            return _object([(name, texts[names[name]](inner))])
        index = by_class.get(kind)
        if index is None:
            index = _index(avro, value)
            if kind is not dict:
                by_class[kind] = index
        made = texts[index](value)
        if not several:
            return made
        branch = avro.branches[index]
        tagged = textual and made[0] == '"' and (branch.kind != "string" or branch.logical)
        if tagged or (kind is dict and len(value) == 1 and next(iter(value)) in names):
            return _object([(branch.branch_name, made)])
        return made

    return text


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
