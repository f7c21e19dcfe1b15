"""The text that all Avro schemas share that mean the same: `normalize=true` of Confluent's registry.

It is the parsing canonical form of Avro's specification with what that drops: doc, aliases, default, order and
properties, in this order, sets and properties sorted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from .canonical import canonical_text
from .java_json import dumps
from .model import PRIMITIVES

__all__ = ["normalized_text"]

_STRUCTURE: Final = frozenset({"type", "name", "namespace", "fields", "symbols", "size", "items", "values"})
_FURTHER: Final = ("order", "doc", "aliases", "default")


def normalized_text(text: str, known: Iterable[str] = ()) -> str:
    """Returns the normalized text of a schema that `check_new` accepts; `known` as in `canonical_text`."""
    return dumps(_of(json.loads(canonical_text(text, known)), ""))


def _of(raw: Any, space: str) -> Any:
    if isinstance(raw, str):
        return _full(raw, space)
    if isinstance(raw, list):
        return [_of(branch, space) for branch in raw]
    kind = raw["type"]
    if kind in ("array", "map"):
        part = "items" if kind == "array" else "values"
        return {"type": kind, part: _of(raw[part], space), **_rest(raw)}
    if "name" not in raw:
        return {"type": _of(kind, space), **_rest(raw)}
    inside = raw.get("namespace", space)
    name = f"{inside}.{raw['name']}" if inside and "." not in raw["name"] else raw["name"]
    made: dict[str, Any] = {"name": name, "type": kind}
    if kind == "enum":
        made["symbols"] = raw["symbols"]
    elif kind == "fixed":
        made["size"] = raw["size"]
    else:
        made["fields"] = [
            {"name": field["name"], "type": _of(field["type"], inside), **_rest(field)} for field in raw["fields"]
        ]
    return {**made, **_rest(raw)}


def _full(name: str, space: str) -> str:
    return name if name in PRIMITIVES or "." in name or not space else f"{space}.{name}"


def _rest(raw: Mapping[str, Any]) -> dict[str, Any]:
    further = {key: sorted(raw[key]) if key == "aliases" else raw[key] for key in _FURTHER if key in raw}
    return {**further, **{key: raw[key] for key in sorted(raw) if key not in _STRUCTURE | further.keys()}}
