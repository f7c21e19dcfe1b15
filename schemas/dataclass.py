"""Dataclasses to the dicts that fastavro takes, and back."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Union, get_args, get_origin, get_type_hints

_PLAIN = {int, float, str, bytes, bool, type(None)}
Build = Callable[[Any], Any]


def to_plain(value: Any) -> Any:
    """Converts as `dataclasses.asdict` does, without its copies of everything (a third of the time)."""
    kind = value.__class__
    if kind in _PLAIN:
        return value
    if kind is list:
        return [to_plain(item) for item in value]
    if kind is dict:
        return {name: to_plain(item) for name, item in value.items()}
    names = field_names(kind)
    if names is None:
        return value
    if (get := _flat(kind)) is not None:
        return dict(zip(names, get(value), strict=True))
    return {name: to_plain(getattr(value, name)) for name in names}


@cache
def _flat(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """Returns a function that gets all fields at once, for a class whose field types cannot hold a dataclass."""
    try:
        hints = get_type_hints(kind)
    except NameError:  # a forward reference to a name that does not exist at run time
        return None
    names = field_names(kind) or ()
    if len(names) < 2 or not all(_is_plain(hints[name]) for name in names):
        return None
    return attrgetter(*names)


def _is_plain(hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return all(_is_plain(part) for part in get_args(hint))
    return hint in _PLAIN


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
        return lambda value: value if value is None else from_plain(made)(value)
    if origin in (Union, types.UnionType):
        builders = [build for build in map(_builder, arguments) if build is not None]
        return builders[0] if len(builders) == 1 else None
    item = _builder(arguments[-1]) if origin in (list, dict) and arguments else None
    if item is None:
        return None
    build = item
    if origin is list:
        return lambda value: [build(part) for part in value]
    return lambda value: {name: build(part) for name, part in value.items()}
