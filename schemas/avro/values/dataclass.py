"""Dataclasses from the dicts of records."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..branches import NAME_KEY

Build = Callable[[Any], Any]


@cache
def field_names(kind: type) -> tuple[str, ...] | None:
    """Returns the names of a dataclass's fields, or None for another type."""
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


@cache
def from_plain(kind: type) -> Build:
    """Returns a function that makes a `kind` from a dict, nested dataclasses included; it raises `TypeError` for
    unknown names, and for required names that the dict lacks."""
    hints = get_type_hints(kind)
    nested: dict[str, Build] = {}
    for field in dataclasses.fields(kind):
        if field.init and (build := _builder(hints[field.name])) is not None:
            nested[field.name] = build
    if not nested:
        return lambda given: kind(**given)

    def make(given: Mapping[str, Any]) -> Any:
        return kind(**{name: nested[name](item) if name in nested else item for name, item in given.items()})

    return make


def _builder(hint: Any) -> Build | None:
    """Returns a function that converts a plain value to the hinted type; None when no conversion is needed."""
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        made = hint
        return lambda value: from_plain(made)(value) if value.__class__ is dict else value
    if origin in (Union, types.UnionType):
        return _of_several(arguments)
    item = _builder(arguments[-1]) if origin in (list, dict) and arguments else None
    if item is None:
        return None
    build = item
    if origin is list:
        return lambda value: [build(part) for part in value] if value.__class__ is list else value
    return lambda value: {name: build(part) for name, part in value.items()} if value.__class__ is dict else value


def _of_several(hints: tuple[Any, ...]) -> Build | None:
    """Returns the builder for a union of types: a record that names its type becomes the dataclass of that name. Avro
    permits a union one array and one map; a map that may be taken for a record is a pair."""
    shapes = {get_origin(hint): made for hint in hints if (made := _builder(hint)) is not None}
    listed, mapped = shapes.get(list), shapes.get(dict)
    classes: dict[str, type] = {
        hint.__name__: hint for hint in hints if isinstance(hint, type) and dataclasses.is_dataclass(hint)
    }
    if not shapes:
        return None
    [only, *others] = classes.values() or [None]

    def of_dict(value: dict[str, Any]) -> Any:
        if not classes:
            return value if mapped is None else mapped(value)
        named = NAME_KEY in value
        kind = classes.get(value[NAME_KEY].rpartition(".")[2]) if named else None
        if kind is None and not others:
            kind = only
        if kind is None:
            return value
        return from_plain(kind)({name: part for name, part in value.items() if name != NAME_KEY} if named else value)

    def build(value: Any) -> Any:
        if value.__class__ is dict:
            return of_dict(value)
        if value.__class__ is list:
            return value if listed is None else listed(value)
        if mapped is not None and value.__class__ is tuple and value[0] == "map":
            return "map", mapped(value[1])
        return value

    return build
