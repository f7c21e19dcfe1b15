"""Parses the text of Avro schemas with fastavro; a text that is not a schema is an error of one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType, to_parsing_canonical_form
from fastavro.validation import ValidationError, validate

from klamm.core.errors import SchemaError

MAX_TEXT = 256 * 1024
"""Characters of a schema's text: the coordination takes nodes of 1 MB."""


@dataclass(frozen=True, eq=False)
class ParsedSchema:
    """`tree` is fastavro's parsed form (names in full, repeated types by name); `named` holds its named types."""

    tree: Any
    named: Mapping[str, Any] = field(default_factory=dict)

    @property
    def canonical(self) -> str:
        """Avro's parsing canonical form: drops doc, aliases, default and logicalType."""
        return str(to_parsing_canonical_form(self.tree))


@lru_cache(maxsize=1024)
def parse(text: str) -> ParsedSchema:
    """Parses a schema; raises `SchemaError` in one line if the text is not an Avro schema."""
    if len(text) > MAX_TEXT:
        raise SchemaError(f"a schema of {len(text)} characters; the limit is {MAX_TEXT}")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"not an Avro schema: not JSON: {error}") from error
    named: dict[str, Any] = {}
    try:
        tree = parse_schema(raw, named_schemas=named)
        parsed = ParsedSchema(tree, named)
        for problem in _problems(parsed):
            raise SchemaError(f"not an Avro schema: {problem}")
    except UnknownType as error:
        raise SchemaError(f"not an Avro schema: unknown type {error.name!r}") from error
    except KeyError as error:
        raise SchemaError(f"not an Avro schema: {error.args[0]!r} is missing") from error
    except (SchemaParseException, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise SchemaError(f"not an Avro schema: {error or type(error).__name__}") from error
    return parsed


def tree_for_writing(parsed: ParsedSchema) -> Any:
    """A copy of the tree in which defaults of `bytes` and `fixed` are bytes. A schema's text writes them as strings, a
    code point for each byte, and fastavro writes the default of a missing field unchanged."""
    tree, named = deepcopy((parsed.tree, dict(parsed.named)))  # copied together, so that shared parts stay shared
    for record in named.values():
        for member in record.get("fields", ()):
            if "default" in member:
                member["default"] = _as_written(member["default"], member["type"], named)
    return tree


def _as_written(default: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    """Returns a default as a value of its type; a union's is of its first branch."""
    if isinstance(schema, list):
        return _as_written(default, schema[0], named)
    if isinstance(schema, str):
        return _as_written(default, named[schema], named) if schema in named else _primitive(default, schema)
    kind = schema["type"]
    if kind == "array":
        return [_as_written(item, schema["items"], named) for item in default]
    if kind == "map":
        return {key: _as_written(item, schema["values"], named) for key, item in default.items()}
    if kind in ("record", "error"):
        types = {member["name"]: member["type"] for member in schema["fields"]}
        return {
            name: _as_written(item, types[name], named) if name in types else item for name, item in default.items()
        }
    return _primitive(default, kind)


def _primitive(default: Any, kind: Any) -> Any:
    return default.encode("latin-1") if kind in ("bytes", "fixed") and isinstance(default, str) else default


def _problems(parsed: ParsedSchema) -> Iterator[str]:
    """Finds errors that fastavro accepts in a schema, and fails at when it reads a record."""
    for name, record in parsed.named.items():
        if record.get("type") not in ("record", "error"):
            continue
        names: set[str] = set()
        for member in record["fields"]:
            where = f"field {name}.{member['name']}"
            if member["name"] in names:
                yield f"{where} occurs twice"
            names.add(member["name"])
            if "default" in member and not default_fits(member["default"], member["type"], parsed.named):
                yield f"the default of {where} is {member['default']!r}, which is not of its type"


def default_fits(value: Any, schema: Any, named: Mapping[str, Any]) -> bool:
    """Returns True if a default has the form that the Avro specification requires: bytes as text, a union's by its
    first branch.
    """
    if isinstance(schema, list):
        return any(default_fits(value, branch, named) for branch in schema)
    if isinstance(schema, str) and schema in named:
        return default_fits(value, named[schema], named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in ("bytes", "fixed"):
        return isinstance(value, str)
    if kind == "array":
        return isinstance(value, list) and all(default_fits(v, schema["items"], named) for v in value)
    if kind == "map":
        return isinstance(value, dict) and all(default_fits(v, schema["values"], named) for v in value.values())
    if kind in ("record", "error"):
        return isinstance(value, dict) and all(
            default_fits(value.get(f["name"], f.get("default")), f["type"], named) for f in schema["fields"]
        )
    if kind == "enum":
        return value in schema["symbols"]
    try:
        return bool(validate(value, kind, raise_errors=False))
    except (ValidationError, TypeError, ValueError):
        return False


def identity(text: str) -> str:
    """Returns a text that is equal for equivalent schemas: white space, the order of keys and `doc` do not count."""
    return json.dumps(_without_doc(json.loads(text)), sort_keys=True, separators=(",", ":"))


def _without_doc(node: Any) -> Any:
    """Removes `doc` where it is Avro's attribute; a default that has such a key keeps it."""
    if isinstance(node, list):
        return [_without_doc(part) for part in node]
    if not isinstance(node, dict):
        return node
    kept = {}
    for name, value in node.items():
        if name in ("type", "items", "values", "fields"):
            kept[name] = _without_doc(value)
        elif name != "doc":
            kept[name] = value
    return kept
