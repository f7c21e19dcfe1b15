"""The canonical text of an Avro schema: the result of `Schema.toString()` in Java's Avro.

It keeps all content: `doc`, `default`, `aliases` and all properties. It does not keep white space, the order of Avro's
own attributes, a full name where the short one suffices, and `{"type": "int"}` for `"int"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from klamm.core.errors import SchemaError

from ..java_json import dumps
from .model import NAMED, PRIMITIVES
from .parsing import RESERVED, RESERVED_IN_FIELDS, definitions, parse_json

_KINDS: Final = frozenset({"record", "error", "enum", "fixed", "array", "map"})


def canonical_text(text: str, known: Iterable[str] = ()) -> str:
    """Returns the canonical text of a schema that `check_new` accepts. `known` are the full names of types that it has
    from its references: they stay names. Raises `SchemaError` for properties that cannot be stored."""
    raw = parse_json(text)
    try:
        printed = dumps(_Printer(known, dict(definitions(raw, ""))).of(raw, ""))
        printed.encode()
    except RecursionError as error:
        raise SchemaError("not an Avro schema: a property is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise SchemaError(f"not an Avro schema: text that cannot be UTF-8: {error.reason}") from error
    return printed


class _Printer:
    """`space` is the enclosing namespace, empty for none."""

    def __init__(self, known: Iterable[str], later: Mapping[str, tuple[Mapping[str, Any], str]]) -> None:
        self._known = set(known)
        self._later = later

    def of(self, raw: Any, space: str) -> Any:
        if isinstance(raw, str):
            return raw if raw in PRIMITIVES else self._name(raw, space)
        if isinstance(raw, list):
            return [self.of(branch, space) for branch in raw]
        kind = raw["type"]
        if kind not in PRIMITIVES | _KINDS:
            return self._name(kind, space)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return {"type": kind, part: self.of(raw.get(part), space), **_properties(raw, RESERVED)}
        if kind in PRIMITIVES:
            properties = _properties(raw, RESERVED)
            return {"type": kind, **properties} if properties else kind
        return self._named(raw, kind, space, space)

    def _name(self, raw: str, space: str) -> Any:
        within = f"{space}.{raw}" if space and "." not in raw else raw
        for full in (within, raw):
            if full in self._known:
                return _short(full, space)
        for full in (within, raw):
            if full in self._later:  # it is defined further on; it is printed where it is used first
                definition, around = self._later[full]
                return self._named(definition, definition["type"], space, around)
        return raw

    def _named(self, raw: Mapping[str, Any], kind: str, outer: str, around: str) -> Any:
        """`outer` is the namespace where it is printed, `around` where it is defined."""
        name, own = raw["name"], raw.get("namespace")
        space = own if isinstance(own, str) else around
        if "." in name:
            space, _, name = name.rpartition(".")
        full = f"{space}.{name}" if space else name
        if full in self._known:
            return _short(full, outer)
        self._known.add(full)
        made: dict[str, Any] = {"type": kind, "name": name}
        if space != outer:
            made["namespace"] = space
        made |= _doc(raw)
        if kind == "enum":
            made["symbols"] = raw["symbols"]
            made |= {"default": raw["default"]} if isinstance(raw.get("default"), str) else {}
        elif kind == "fixed":
            made["size"] = raw["size"]
        else:
            made["fields"] = [self._field(field, space) for field in raw["fields"]]
        made |= _properties(raw, RESERVED | ({"default"} if kind == "enum" else set()))
        aliases = [alias if "." in alias or not space else f"{space}.{alias}" for alias in raw.get("aliases", ())]
        return made | _aliases(_short(alias, space) for alias in aliases)

    def _field(self, raw: Mapping[str, Any], space: str) -> dict[str, Any]:
        made: dict[str, Any] = {"name": raw["name"], "type": self.of(raw["type"], space), **_doc(raw)}
        if "default" in raw:
            made["default"] = _default(made["type"], raw["default"])
        order = raw.get("order", "ascending").lower()
        if order != "ascending":
            made["order"] = order
        return {**made, **_aliases(raw.get("aliases", ())), **_properties(raw, RESERVED_IN_FIELDS)}


def _short(full: str, space: str) -> str:
    """Returns a type's name as it is written within a namespace; one that would be read as a kind stays in full."""
    outer, _, name = full.rpartition(".")
    return name if outer and outer == space and name not in PRIMITIVES | NAMED | {"array", "map", "union"} else full


def _doc(raw: Mapping[str, Any]) -> dict[str, str]:
    return {"doc": raw["doc"]} if isinstance(raw.get("doc"), str) else {}


def _properties(raw: Mapping[str, Any], reserved: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in reserved}


def _aliases(given: Iterable[str]) -> dict[str, list[str]]:
    names = list(dict.fromkeys(given))
    return {"aliases": names} if names else {}


def _default(kind: Any, value: Any) -> Any:
    """Text in the place of a float is a number that JSON lacks ("NaN"), or one as text."""
    if isinstance(value, str) and (kind["type"] if isinstance(kind, dict) else kind) in ("float", "double"):
        return float(value)
    return value
