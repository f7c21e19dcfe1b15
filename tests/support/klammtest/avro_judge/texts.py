"""Texts of schemas, good and bad: what Java's parser accepts, and how it prints it, beside what Klamm registers.

A text is a generated schema with properties, `doc`, aliases and orders, in a random order of keys. In most a part is
then lost, doubled, moved, or replaced by something that may not stand there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from klamm.schemas.avro.canonical import canonical_text
from klamm.schemas.avro.parsing import check_new

from . import rules
from .java_avro import JavaAvro
from .klamm_avro import Refused, attempt
from .schemas import SchemaMaker, text_of

Json = Any
_ODD: Final[tuple[Json, ...]] = (
    None, True, 0, 3, -1, 1.5, 3.0, 2**31, 2**63, 1e-7, 1e21, "", "int", "null", "no.such", "R-x", "1R", "a$b", "a.b",
    "é", "n..R", ".R", "R.", "n.int", "up", "DESCENDING", "ignore", "NaN", "record", "array", [], {}, [1], ["A", "A"],
    ["int"], ["int", "int"], ["null", ["int"]], {"type": "int"}, {"type": ["int"]}, {"type": {"type": "int"}},
    {"type": "no.such"}, {"type": "fixed", "name": "F", "size": 2}, {"type": "record", "name": "P", "fields": []},
    {"type": "enum", "name": "n.E", "symbols": ["A", "B"], "default": "B"},
    {"type": "error", "name": "Er", "fields": []}, {"type": "array", "items": "int"},
    {"type": "map", "values": {"type": "string", "avro.java.string": "String"}},
    {"name": "f", "type": "long", "default": 1},
    {"type": "int", "logicalType": "date", "extra": {"b": [1.0], "a": None}},
)  # fmt: skip
_PROPERTIES: Final = (
    "doc", "alias", "extra", "logicalType", "precision", "avro.java.string", "default", "size", "order",
)  # fmt: skip
_TEXTS: Final = ("a doc", "", 'quoted "\\/', "é\U0001f600\x7f", "line\nbreak\t\x01\x1f", "\u2028")


def make_text(seed: int, number: int) -> str:
    rng = Random(f"text {seed}/{number}")
    schema = SchemaMaker(rng, ("", "n", "n.m", "o"), depth=2).top()
    tree = json.loads(text_of(schema, rng))
    for node in list(_objects(tree)):
        _decorate(rng, node)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        tree = _damaged(rng, [tree])[0]
    return _written(rng, _shuffled(rng, tree))


def _objects(node: Json) -> Iterator[dict[str, Json]]:
    if isinstance(node, dict):
        yield node
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _objects(part)


def _decorate(rng: Random, node: dict[str, Json]) -> None:
    if rng.random() < 0.15:
        node["doc"] = rng.choice(_TEXTS)
    if rng.random() < 0.15:
        node[rng.choice(_PROPERTIES)] = rng.choice((*_TEXTS, 1, 2.50, 1e10, -0.0, [1, {"x": None}], {"b": 1, "a": 2}))
    if rng.random() < 0.1:
        node["aliases"] = rng.sample(("x", "y", "n.x", "o.P", "n.m.Q"), rng.randint(0, 3))
    if rng.random() < 0.1 and "type" in node and "name" in node:
        node["order"] = rng.choice(("ascending", "descending", "ignore"))


def _slots(node: Json) -> Iterator[tuple[Json, Any]]:
    """Yields each container with each of its keys or places."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from _slots(node[key])


def _damaged(rng: Random, root: list[Json]) -> list[Json]:
    """Returns a list of one tree with a change in a random place."""
    slots = list(_slots(root))
    holder, key = rng.choice(slots)
    roll = rng.random()
    if roll < 0.15 and holder is not root:
        del holder[key]
    elif roll < 0.3 and isinstance(holder, list) and holder is not root:
        holder.insert(rng.randint(0, len(holder)), json.loads(json.dumps(holder[key])))
    elif roll < 0.45 and isinstance(holder, list):
        rng.shuffle(holder)
    elif roll < 0.6:
        other, place = rng.choice(slots)
        holder[key] = json.loads(json.dumps(other[place]))
    else:
        holder[key] = json.loads(json.dumps(rng.choice(_ODD)))
    return root


def _shuffled(rng: Random, node: Json) -> Json:
    if isinstance(node, list):
        return [_shuffled(rng, part) for part in node]
    if not isinstance(node, dict):
        return node
    names = list(node)
    if rng.random() < 0.5:
        rng.shuffle(names)
    return {name: _shuffled(rng, node[name]) for name in names}


def _written(rng: Random, tree: Json) -> str:
    text = json.dumps(tree, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 2)))
    if rng.random() < 0.05:
        text = f'/* a comment: // " */\n{text}{rng.choice(("", " // another"))}'
    return text


@dataclass(frozen=True, slots=True)
class JudgedText:
    """`difference` is None where Klamm does as Java does; a difference is wanted by `rule`."""

    number: int
    text: str
    accepted: bool
    difference: str | None = None
    rule: str | None = None


def judge_texts(
    java: JavaAvro, seed: int, numbers: Iterable[int], canonical: Callable[[str], str] = canonical_text
) -> list[JudgedText]:
    """Judges the texts of these numbers. `canonical` prints a text that Klamm accepts."""
    texts = {number: make_text(seed, number) for number in numbers}
    asked = ({"writer": text, "reader": '"null"', "values": [], "payloads": []} for text in texts.values())
    return [_judged(*one, answer, canonical) for one, answer in zip(texts.items(), java.ask(asked), strict=True)]


def _judged(number: int, text: str, java: dict[str, Any], canonical: Callable[[str], str]) -> JudgedText:
    error = java.get("writer_error")
    ours = attempt(lambda: canonical(check_new(text).text))
    if isinstance(ours, Refused):
        if error is not None and ours.expected:
            return JudgedText(number, text, accepted=False)
        rule = rules.of_schema(ours) if ours.expected else None
        return JudgedText(number, text, error is None, f"Java accepts it, Klamm: {ours.why}", rule)
    if error is not None:
        return JudgedText(number, text, False, f"Klamm accepts it, Java: {error}", rules.of_java(error))
    if ours != java["writer_text"]:
        return JudgedText(number, text, True, f"Java prints {java['writer_text']}, Klamm {ours}")
    return JudgedText(number, text, accepted=True)
