"""Defects that the judge must find. Each changes a text on its way to Klamm, as a defect of Klamm would change its
meaning."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from klamm.schemas.avro.canonical import canonical_text
from klamm.schemas.avro.parsing import parse_json

Json = Any


@dataclass(frozen=True, slots=True)
class Plant:
    """`change` is applied to each object in the reader's schema as Klamm sees it."""

    what: str
    change: Callable[[Json], None]

    def reader(self, text: str) -> str:
        return json.dumps(_changed(json.loads(text), self.change))


def _changed(node: Json, change: Callable[[Json], None]) -> Json:
    if isinstance(node, list):
        return [_changed(part, change) for part in node]
    if isinstance(node, dict):
        made = {key: part if key == "default" else _changed(part, change) for key, part in node.items()}
        change(made)
        return made
    return node


def _other_default(node: Json) -> None:
    if type(node.get("default")) is int:
        node["default"] += 1 if node["default"] < 100 else -1


def _bytes_for_text(node: Json) -> None:
    if node.get("type") == "string":
        node["type"] = "bytes"


def _last_branch_first(node: Json) -> None:
    if isinstance(node.get("type"), list) and "default" not in node:
        node["type"].reverse()


PLANTS: Final = (
    Plant("aliases are ignored", lambda node: node.pop("aliases", None)),
    Plant("logical types of the reader are ignored", lambda node: node.pop("logicalType", None)),
    Plant("a whole number's default is off by one", _other_default),
    Plant("enum defaults are ignored", lambda node: node.get("type") == "enum" and node.pop("default", None)),
    Plant("text is read as bytes", _bytes_for_text),
    Plant("the branches of a union are reversed", _last_branch_first),
)


def _without(*names: str) -> Callable[[str], str]:
    def drop(node: Json) -> None:
        for name in names:
            node.pop(name, None)

    return lambda text: canonical_text(json.dumps(_changed(parse_json(text), drop)))


PLANTED_TEXTS: Final[dict[str, Callable[[str], str]]] = {
    "a text loses doc": _without("doc"),
    "a text loses a property": _without("extra"),
    "a text loses its order": _without("order"),
    "a text keeps white space": lambda text: text,
}
