"""Parses the text of Avro schemas; a text that is not a schema is an error of one line.

`parse` accepts every schema that a reader can use: it does not check names, defaults and logical types, since others
wrote them. `check_new` checks a schema before it is registered, by the rules of Java's Avro.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from klamm.core.errors import SchemaError

from .defaults import DefaultsLimit, default_value
from .model import MISSING, NAME, NAMED, PRIMITIVES, AvroField, AvroType, types_of, under

MAX_TEXT: Final = 256 * 1024
"""Characters of a new schema's text: the coordination takes nodes of 1 MB."""
MAX_DEPTH: Final = 64
"""Types within each other in a schema: a program that reads or writes values needs several calls for each."""
MAX_NODES: Final = 20_000
"""The most types in a schema of columns with its references expanded; doubled references would grow without bound."""
_ORDERS: Final = ("ascending", "descending", "ignore")
_MAX_SIZE: Final = 2**31 - 1
"""Bytes of a `fixed`, as in Java's Avro."""
_DEFINED: Final = ("record", "error", "enum", "fixed")
RESERVED: Final = frozenset(
    {"type", "name", "namespace", "doc", "fields", "symbols", "size", "items", "values", "aliases"}
)
"""Avro's own attributes of a type; all others are properties. An enum has `default`, too."""
RESERVED_IN_FIELDS: Final = frozenset({"name", "type", "doc", "default", "order", "aliases"})
_LOGICAL: Final = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    **{f"{clock}timestamp-{unit}": "long" for clock in ("", "local-") for unit in ("millis", "micros", "nanos")},
}
"""The kind of each logical type that has one kind only."""


@dataclass(frozen=True, eq=False)
class ParsedSchema:
    """`root` is the schema's type; `text` the text that was parsed, with its references written out."""

    root: AvroType
    text: str

    @cached_property
    def canonical(self) -> str:
        """Avro's parsing canonical form: drops doc, aliases, default and logicalType."""
        return _canonical(self.root, set())


def parse(text: str, references: Sequence[str] = ()) -> ParsedSchema:
    """Parses a schema, which may use the named types of `references`; each of these may use those before it. Raises
    `SchemaError` in one line if a text is not an Avro schema.
    """
    return _parse(text, tuple(references))


@lru_cache(maxsize=1024)
def _parse(text: str, references: tuple[str, ...]) -> ParsedSchema:
    parser = _Parser()
    try:
        for index, other in enumerate(references):
            parser.refer(parse(other, references[:index]).root)
        root = parser.whole(parse_json(text))
        _check_depth(root, 1, {}, set())
        return ParsedSchema(root, json.dumps(rendered(root)) if references else text)
    except RecursionError as error:
        raise SchemaError("not an Avro schema: it is nested too deeply") from error


def parse_type(text: str) -> AvroType:
    """Returns the type of a schema whose values can be columns. Raises `SchemaError` when it is not an Avro schema,
    recursive or too large."""
    root = parse(text).root
    _check_expanded(root, (), 0)
    return root


def _check_expanded(avro: AvroType, inside: tuple[str, ...], before: int) -> int:
    """Returns `before` plus the number of types in `avro`, with its references written out."""
    count = before + 1
    if count > MAX_NODES:
        raise SchemaError(f"the schema has more than {MAX_NODES} types once its references are written out")
    if avro.kind == "record":
        if avro.name in inside:
            raise SchemaError(f"the schema's type {avro.name} contains itself; a table's columns cannot")
        inside = (*inside, avro.name)
    for part in avro.parts:
        count = _check_expanded(part, inside, count)
    return count


def _check_depth(avro: AvroType, level: int, heights: dict[int, int], inside: set[int]) -> int:
    """Returns how many types are within each other from `avro` on, one that contains itself counted once. `level` is
    its own depth; `heights` has the results, `inside` the types around it."""
    if id(avro) in inside:
        return 0
    height = heights.get(id(avro), 1)
    if id(avro) not in heights and level <= MAX_DEPTH:
        inside.add(id(avro))
        height = 1 + max((_check_depth(part, level + 1, heights, inside) for part in avro.parts), default=0)
        inside.discard(id(avro))
        heights[id(avro)] = height
    if level + height - 1 > MAX_DEPTH:
        raise SchemaError(f"not an Avro schema: its types are nested deeper than {MAX_DEPTH}")
    return height


_COMMENT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|/\*.*?\*/|//[^\n]*', re.DOTALL)


def parse_json(text: str) -> Any:
    """Returns the JSON of a text, which may have comments, but not at its end, as Java's Avro allows."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        bare = _COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " ", text) if "/" in text else text
        if bare == text or len(bare.rstrip()) < len(bare) - (len(text) - len(text.rstrip())):
            raise SchemaError(f"not an Avro schema: not JSON: {error}") from error
        return parse_json(bare)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _wrong(at: str, what: str) -> SchemaError:
    where = f"field {at}: " if at else ""
    return SchemaError(f"not an Avro schema: {where}{what[:500]}")


class _Parser:
    """One text. `space` is the enclosing namespace, `at` the field's path for messages; `strict`: as Java's parser."""

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._named: dict[str, AvroType] = {}
        self._referenced: dict[str, AvroType] = {}
        self._later: dict[str, tuple[Mapping[str, Any], str]] | None = None
        self._made: dict[int, AvroType] = {}
        """Types that were named before their definition, by the identity of this."""
        self._words: dict[str, dict[str, Any]] = {}

    def refer(self, root: AvroType) -> None:
        """Makes the named types of another schema known. A text may define them again."""
        self._referenced |= {avro.name: avro for avro in types_of(root) if avro.name}

    def whole(self, raw: Any) -> AvroType:
        """Returns the type of a whole text."""
        self._raw = raw
        return self.type_of(raw, "", "")

    def type_of(self, raw: Any, space: str, at: str) -> AvroType:
        if isinstance(raw, str):
            return self._by_name(raw, space, at)
        if isinstance(raw, list):
            branches = tuple(self.type_of(part, space, at) for part in raw)
            if any(branch.kind == "union" for branch in branches):
                raise _wrong(at, "a union directly within a union")
            return AvroType("union", branches=branches)
        if not isinstance(raw, dict):
            raise _wrong(at, f"{raw!r} is no type")
        if "type" not in raw:
            raise _wrong(at, "'type' is missing")
        kind = raw["type"]
        if kind in _DEFINED:
            return self._definition(raw, kind, space, at)
        if kind in ("array", "map"):
            self._check_properties(raw, at)
            part, sign = ("items", "[]") if kind == "array" else ("values", "{}")
            return AvroType(kind, item=self.type_of(_attribute(raw, part, at), space, under(at, sign)))
        if isinstance(kind, str) and kind in PRIMITIVES:
            return AvroType(kind, **logical_attributes(raw, kind, 0))
        if self._strict and not isinstance(kind, str):
            raise _wrong(at, "'type' is no name; write its content in its place")
        return self.type_of(kind, space, at)  # attributes beside a type's name are ignored

    def _definition(self, raw: dict[str, Any], kind: str, space: str, at: str) -> AvroType:
        """Returns a named type. It may be defined again with the same text, except `doc` and aliases."""
        if id(raw) in self._made:
            return self._made[id(raw)]
        space, name = _full_name(raw, space, at)
        if name in self._named and self._words.get(name) == _words(raw):
            return self._named[name]
        make = {"enum": self._enum, "fixed": self._fixed}.get(kind, self._record)
        made = make(raw, space, name, at)
        self._words[name] = _words(raw)
        return made

    def _by_name(self, name: str, space: str, at: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        full = f"{space}.{name}" if space and "." not in name else name
        for known in (self._named, self._referenced):
            found = known.get(full) or known.get(name)
            if found is not None:
                return found
        if self._later is None:
            self._later = dict(definitions(self._raw, ""))
        for candidate in (full,) if self._strict else (full, name):
            if candidate in self._later:
                definition, around = self._later[candidate]
                self._made[id(definition)] = self.type_of(definition, around, at)
                return self._made[id(definition)]
        raise _wrong(at, f"unknown type {full!r}")

    def _record(self, raw: Mapping[str, Any], space: str, name: str, at: str) -> AvroType:
        made = AvroType("record", name, self._aliases(raw, space, at))
        self._define(made, at)
        self._check_properties(raw, at)
        fields: dict[str, AvroField] = {}
        for part in _list(raw, "fields", at):
            if not isinstance(part, dict) or not isinstance(part.get("name"), str):
                raise _wrong(at, f"a field of {name} has no name")
            where = under(at, part["name"])
            if part["name"] in fields:
                raise _wrong(where, f"occurs twice in {name}")
            kind = self.type_of(_attribute(part, "type", where), space, where)
            aliases = self._aliases(part, "", where)
            if self._strict and str(part.get("order", "ignore")).lower() not in _ORDERS:
                raise _wrong(where, f"'order' is {part['order']!r:.100}, not ascending, descending or ignore")
            fields[part["name"]] = AvroField(part["name"], kind, aliases, part.get("default", MISSING))
        object.__setattr__(made, "fields", tuple(fields.values()))  # last, since a field may have the record's type
        return made

    def _enum(self, raw: Mapping[str, Any], space: str, name: str, at: str) -> AvroType:
        symbols = tuple(_list(raw, "symbols", at))
        if not all(isinstance(symbol, str) for symbol in symbols):
            raise _wrong(at, f"a symbol of {name} is no text")
        default = raw.get("default")
        given = default if isinstance(default, str) else None
        return self._define(AvroType("enum", name, self._aliases(raw, space, at), symbols=symbols, default=given), at)

    def _fixed(self, raw: Mapping[str, Any], space: str, name: str, at: str) -> AvroType:
        size = _attribute(raw, "size", at)
        if not _is_int(size) or not 0 <= size <= _MAX_SIZE:
            raise _wrong(at, f"the size of {name} is {size!r:.100}")
        return self._define(
            AvroType("fixed", name, self._aliases(raw, space, at), size=size, **logical_attributes(raw, "fixed", size)),
            at,
        )

    def _aliases(self, raw: Mapping[str, Any], space: str, at: str) -> tuple[str, ...]:
        """Returns full names: an alias without a dot is in the namespace of the type."""
        given = raw.get("aliases", [])
        names = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
        if self._strict and names != given:
            raise _wrong(at, f"'aliases' is {given!r}, not a list of names")
        return tuple(f"{space}.{name}" if space and "." not in name else name for name in names)

    def _check_properties(self, raw: Mapping[str, Any], at: str) -> None:
        """Java's parser refuses a whole number beyond 64 bits in a property of a record, an array or a map."""
        for name, value in raw.items() if self._strict else ():
            if name not in RESERVED and _has_big(value):
                raise _wrong(at, f"the property {name!r} has a whole number beyond 64 bits: {value!r:.100}")

    def _define(self, avro: AvroType, at: str) -> AvroType:
        if avro.name in self._named:
            raise _wrong(at, f"{avro.name} is defined twice")
        self._named[avro.name] = avro
        return avro


def _has_big(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, int) and not -(2**63) <= value < 2**63) or any(_has_big(part) for part in parts)


def _words(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in ("doc", "aliases")}


def definitions(raw: Any, space: str) -> Iterator[tuple[str, tuple[Mapping[str, Any], str]]]:
    """Yields the full name of each type that a text defines, with its definition and the namespace around it."""
    if isinstance(raw, list):
        for part in raw:
            yield from definitions(part, space)
    if not isinstance(raw, dict):
        return
    kind, inner = raw.get("type"), space
    if kind in _DEFINED and isinstance(raw.get("name"), str):
        inner, full = _full_name(raw, space, "")
        yield full, (raw, space)
    if kind in ("record", "error") and isinstance(raw.get("fields"), list):
        for field in raw["fields"]:
            yield from definitions(field.get("type") if isinstance(field, dict) else None, inner)
    elif not isinstance(kind, str):
        yield from definitions(kind, space)
    else:
        yield from definitions(raw.get({"array": "items", "map": "values"}.get(kind, "")), space)


def _attribute(raw: Mapping[str, Any], name: str, at: str) -> Any:
    if name not in raw:
        raise _wrong(at, f"{name!r} is missing")
    return raw[name]


def _list(raw: Mapping[str, Any], name: str, at: str) -> list[Any]:
    found = _attribute(raw, name, at)
    if not isinstance(found, list):
        raise _wrong(at, f"{name!r} is no list")
    return found


def _full_name(raw: Mapping[str, Any], space: str, at: str) -> tuple[str, str]:
    """Returns (namespace, full name)."""
    name = _attribute(raw, "name", at)
    if not isinstance(name, str):
        raise _wrong(at, f"the name {name!r} is no text")
    if "." in name:
        return name.rpartition(".")[0], name
    own = raw.get("namespace")
    space = own if isinstance(own, str) else space
    return space, f"{space}.{name}" if space else name


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def logical_attributes(raw: Mapping[str, Any], kind: str, size: int) -> dict[str, Any]:
    """Returns the attributes of a valid logical type, none for an invalid one (`LogicalTypes` of Java's Avro)."""
    name = raw.get("logicalType")
    if name == "decimal":
        return _decimal(raw, kind, size)
    if name == "uuid":
        valid = kind == "string" or (kind == "fixed" and size == 16)
    elif name == "duration":
        valid = kind == "fixed" and size == 12
    else:
        valid = isinstance(name, str) and _LOGICAL.get(name) == kind
    return {"logical": name} if valid else {}


def _decimal(raw: Mapping[str, Any], kind: str, size: int) -> dict[str, Any]:
    precision, scale = raw.get("precision"), raw.get("scale", 0)
    if kind not in ("bytes", "fixed") or not _is_int(precision) or not _is_int(scale):
        return {}
    assert isinstance(precision, int)
    if kind == "fixed" and precision > math.floor(math.log10(2) * (8 * size - 1)):
        return {}
    return {"logical": "decimal", "precision": precision, "scale": scale} if 0 <= scale <= precision > 0 else {}


def _canonical(avro: AvroType, defined: set[str]) -> str:
    if avro.kind == "union":
        return f"[{','.join(_canonical(branch, defined) for branch in avro.branches)}]"
    if avro.kind in PRIMITIVES or avro.name in defined:
        return f'"{avro.branch_name}"'
    if avro.kind in ("array", "map"):
        part = "items" if avro.kind == "array" else "values"
        return f'{{"type":"{avro.kind}","{part}":{_canonical(avro.inner, defined)}}}'
    defined.add(avro.name)
    if avro.kind == "record":
        fields = (f'{{"name":"{field.name}","type":{_canonical(field.type, defined)}}}' for field in avro.fields)
        rest = f'"fields":[{",".join(fields)}]'
    elif avro.kind == "enum":
        symbols = (f'"{symbol}"' for symbol in avro.symbols)
        rest = f'"symbols":[{",".join(symbols)}]'
    else:
        rest = f'"size":{avro.size}'
    return f'{{"name":"{avro.name}","type":"{avro.kind}",{rest}}}'


def rendered(root: AvroType, *, evolution: bool = True) -> Any:
    """Returns the JSON form of a type: full names, each type defined where it is first used. Without `evolution` it has
    no aliases and no defaults, which a writer's schema does not need.
    """
    return _Rendering(evolution).of(root)


class _Rendering:
    def __init__(self, evolution: bool) -> None:
        self._evolution = evolution
        self._defined: set[str] = set()

    def of(self, avro: AvroType) -> Any:
        if avro.kind == "union":
            return [self.of(branch) for branch in avro.branches]
        if avro.name in self._defined:
            return avro.name
        made: dict[str, Any] = {"type": avro.kind}
        if avro.name:
            self._defined.add(avro.name)
            made["name"] = avro.name
            if "." not in avro.name:
                made["namespace"] = ""  # an enclosing type's namespace must not apply
        if avro.aliases and self._evolution:
            made["aliases"] = list(avro.aliases)
        if avro.kind == "record":
            made["fields"] = [self._field(field) for field in avro.fields]
        elif avro.kind == "enum":
            made["symbols"] = list(avro.symbols)
            if avro.default is not None and self._evolution:
                made["default"] = avro.default
        elif avro.kind == "fixed":
            made["size"] = avro.size
        elif avro.kind in ("array", "map"):
            made["items" if avro.kind == "array" else "values"] = self.of(avro.inner)
        if avro.logical:
            made["logicalType"] = avro.logical
        if avro.logical == "decimal":
            made |= {"precision": avro.precision, "scale": avro.scale}
        return avro.kind if made == {"type": avro.kind} else made

    def _field(self, field: AvroField) -> dict[str, Any]:
        made = {"name": field.name, "type": self.of(field.type)}
        if field.aliases and self._evolution:
            made["aliases"] = list(field.aliases)
        if field.default is not MISSING and self._evolution:
            made["default"] = field.default
        return made


def check_new(text: str, references: Sequence[str] = ()) -> ParsedSchema:
    """Parses a schema that is to be registered; `references` as in `parse`. Raises `SchemaError` where Java's Avro
    refuses it (names, branches of unions, defaults), and for a text that is too long.
    """
    if len(text) > MAX_TEXT:
        raise SchemaError(f"a schema of {len(text)} characters; the limit is {MAX_TEXT}")
    parsed = parse(text, references)
    strict = _Parser(strict=True)
    for at, other in enumerate(references):
        strict.refer(parse(other, references[:at]).root)
    strict.whole(parse_json(text))
    for problem in _problems(parsed.root):
        raise SchemaError(f"not an Avro schema: {problem}")
    return parsed


def _problems(root: AvroType) -> Iterator[str]:
    limit = DefaultsLimit()
    for avro in types_of(root):
        if avro.kind in NAMED:
            yield from _bad_names(avro)
        if avro.kind == "union":
            yield from _bad_union(avro)
        for field in avro.fields:
            where = f"field {avro.name}.{field.name}"
            if not NAME.fullmatch(field.name):
                yield f"{where}: {field.name!r} is no Avro name {_RULE}"
            if field.default is MISSING:
                continue
            try:
                default_value(field.type, field.default, limit)
            except SchemaError as error:
                yield f"the default of {where} is {field.default!r}, which is not of its type: {error}"
            except RecursionError:
                yield f"the default of {where} contains itself"


_RULE: Final = "(a letter or _, then letters, digits and _, all of ASCII)"


def _bad_names(avro: AvroType) -> Iterator[str]:
    for what, name in (("name", avro.name), *(("alias", alias) for alias in avro.aliases)):
        for part in name.split("."):
            if not NAME.fullmatch(part):
                yield f"the {what} {name!r} of the {avro.kind}: {part!r} is no Avro name {_RULE}"
    if avro.name in PRIMITIVES:
        yield f"the {avro.kind} {avro.name} has the name of a primitive type"
    seen: set[str] = set()
    for symbol in avro.symbols:
        if not NAME.fullmatch(symbol):
            yield f"the symbol {symbol!r} of {avro.name} is no Avro name {_RULE}"
        if symbol in seen:
            yield f"the symbol {symbol} of {avro.name} occurs twice"
        seen.add(symbol)
    if avro.default is not None and avro.default not in seen:
        yield f"the default {avro.default!r} of {avro.name} is none of its symbols"


def _bad_union(avro: AvroType) -> Iterator[str]:
    seen: set[str] = set()
    for branch in avro.branches:
        if branch.branch_name in seen:
            yield f"a union with two branches {branch.branch_name}"
        seen.add(branch.branch_name)
