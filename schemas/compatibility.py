"""Checks whether data written with one schema can be read with another, by Avro's resolution rules.

A topic's rule limits how its schema may change: BACKWARD: the new version reads data of the last one; FORWARD: the last
version reads data of the new one; FULL: both; …_TRANSITIVE: the same against all versions; NONE: no check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from klamm.core.errors import SchemaError

if TYPE_CHECKING:
    from .parsing import ParsedSchema


class Compatibility(StrEnum):
    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def reads_old(self) -> bool:
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def read_by_old(self) -> bool:
        return self.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        return self.endswith("TRANSITIVE")


def check(subject: str, new: str, versions: Sequence[tuple[int, str]], rule: Compatibility) -> None:
    """Checks a new schema against `versions`, (number, text), the oldest first. Raises `SchemaError`, which names the
    version, the field and the rule.
    """
    from .parsing import parse  # imports fastavro, which a caller that only needs the rules' names does not load

    asked = versions if rule.transitive else versions[-1:]
    for number, old in asked:
        if rule.reads_old:
            for problem in mismatches(parse(new), parse(old)):
                raise _refusal(subject, rule, f"the new schema cannot read data of version {number}", problem)
        if rule.read_by_old:
            for problem in mismatches(parse(old), parse(new)):
                raise _refusal(subject, rule, f"version {number} cannot read data of the new schema", problem)


def _refusal(subject: str, rule: Compatibility, what: str, problem: str) -> SchemaError:
    return SchemaError(f"{subject}: not {rule} compatible: {what}: {problem}")


_PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


def mismatches(reader: ParsedSchema, writer: ParsedSchema) -> Iterator[str]:
    """Returns why `reader` cannot read what `writer` wrote, one line per place; an empty list when it can."""
    return _Comparison(reader, writer).compare(reader.tree, writer.tree, "")


class _Comparison:
    """`reader` and `writer` in all methods are parts of the two schemas; `at` is the field they stand in."""

    def __init__(self, reader: ParsedSchema, writer: ParsedSchema) -> None:
        self._reader_named = reader.named
        self._writer_named = writer.named
        self._seen: set[tuple[str, str]] = set()

    def compare(self, reader: Any, writer: Any, at: str) -> Iterator[str]:
        reader = self._reader_named.get(reader, reader) if isinstance(reader, str) else reader
        writer = self._writer_named.get(writer, writer) if isinstance(writer, str) else writer
        if isinstance(writer, list):
            for branch in writer:
                yield from self.compare(reader, branch, at)
        elif isinstance(reader, list):
            if not any(self._fits(branch, writer, at) for branch in reader):
                yield _at(at, f"{_name(writer)} is none of {', '.join(map(_name, reader))}")
        else:
            yield from self._same_kind(reader, writer, at)

    def _fits(self, reader: Any, writer: Any, at: str) -> bool:
        before = set(self._seen)
        fits = next(self.compare(reader, writer, at), None) is None
        if not fits:
            self._seen = before
        return fits

    def _same_kind(self, reader: Any, writer: Any, at: str) -> Iterator[str]:
        read, written = _kind(reader), _kind(writer)
        if read != written:
            if (written, read) not in _PROMOTIONS:
                yield _at(at, f"{_name(writer)} cannot be read as {_name(reader)}")
        elif read == "array":
            yield from self.compare(reader["items"], writer["items"], at + "[]")
        elif read == "map":
            yield from self.compare(reader["values"], writer["values"], at + "{}")
        elif read in ("record", "enum", "fixed"):
            yield from self._named(read, reader, writer, at)
        if _logical(reader) != _logical(writer) and "decimal" in (_logical(reader)[0], _logical(writer)[0]):
            yield _at(at, f"{_name(writer)} and {_name(reader)} differ in decimal precision or scale")

    def _named(self, kind: str, reader: Any, writer: Any, at: str) -> Iterator[str]:
        if not _names_match(reader, writer):
            yield _at(at, f"{kind} {writer['name']} is not {reader['name']} and none of its aliases")
        elif kind == "record":
            pair = (reader["name"], writer["name"])
            if pair not in self._seen:
                self._seen.add(pair)
                yield from self._fields(reader, writer, at)
        elif kind == "enum":
            lost = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
            if lost and "default" not in reader:
                yield _at(at, f"enum {reader['name']} lacks {', '.join(lost)} and has no default")
        elif reader["size"] != writer["size"]:
            yield _at(at, f"fixed {reader['name']} has {writer['size']} bytes, not {reader['size']}")

    def _fields(self, reader: Any, writer: Any, at: str) -> Iterator[str]:
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            where = f"{at}.{field['name']}" if at else field["name"]
            names = [field["name"], *field.get("aliases", ())]
            found = next((written[name] for name in names if name in written), None)
            if found is not None:
                yield from self.compare(field["type"], found["type"], where)
            elif "default" not in field:
                yield _at(where, "is not in the data and has no default")


def _at(at: str, what: str) -> str:
    return f"field {at}: {what}" if at else what


def _kind(schema: Any) -> str:
    kind = schema["type"] if isinstance(schema, dict) else schema
    return "record" if kind == "error" else str(kind)


def _name(schema: Any) -> str:
    """The name in messages: a named type by its name, a logical type with its type."""
    if not isinstance(schema, dict):
        return str(schema)
    if "name" in schema:
        return f"{_kind(schema)} {schema['name']}"
    logical = schema.get("logicalType")
    return f"{_kind(schema)} ({logical})" if logical else _kind(schema)


def _logical(schema: Any) -> tuple[str | None, int, int]:
    if not isinstance(schema, dict) or schema.get("logicalType") != "decimal":
        return (None, 0, 0)
    return ("decimal", schema.get("precision", 0), schema.get("scale", 0))


def _names_match(reader: Any, writer: Any) -> bool:
    """The specification compares unqualified names, and the reader's aliases in full."""

    def short(name: str) -> str:
        return name.rpartition(".")[2]

    if short(reader["name"]) == short(writer["name"]):
        return True
    return any(alias == writer["name"] or short(alias) == short(writer["name"]) for alias in reader.get("aliases", ()))
