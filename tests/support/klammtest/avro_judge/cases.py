"""One case: a writer's schema, a reader's, and values. It is made from a seed and a number alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from .evolution import Evolution, broken
from .schemas import SchemaMaker, definitions, kind_of, nodes, text_of
from .values import ValueMaker

Json = Any
VALUES: Final = 4
_FOREIGN: Final = 0.03
_BROKEN: Final = 0.06


@dataclass(frozen=True)
class Case:
    """`foreign`: for each value whether Klamm may refuse to write it. `changes` are the evolution's."""

    name: str
    writer: Json
    reader: Json
    writer_text: str
    reader_text: str
    values: tuple[Json, ...]
    foreign: tuple[bool, ...]
    changes: tuple[str, ...]

    def question(self, payloads: tuple[str, ...] = ()) -> dict[str, Any]:
        return {
            "writer": self.writer_text,
            "reader": self.reader_text,
            "values": list(self.values),
            "payloads": list(payloads),
        }

    def back(self, payloads: tuple[str, ...]) -> dict[str, Any]:
        """Returns a question for what payloads of the writer's schema mean."""
        return {"writer": self.writer_text, "reader": self.writer_text, "values": [], "payloads": list(payloads)}

    def count(self, counts: Counter[str]) -> None:
        """Adds what the case has: its types, logical types and changes, and the kinds of its values."""
        for schema in (self.writer,):
            for node in set(_kinds(schema)):
                counts[node] += 1
        for change in self.changes or ("no change",):
            counts[f"change: {change}"] += 1

    def with_schemas(self, writer: Json, reader: Json, values: tuple[Json, ...], foreign: tuple[bool, ...]) -> Case:
        return replace(
            self,
            writer=writer,
            reader=reader,
            writer_text=text_of(writer),
            reader_text=text_of(reader),
            values=values,
            foreign=foreign,
        )


def _kinds(schema: Json) -> list[str]:
    found = []
    names = definitions(schema)
    for node in nodes(schema):
        if isinstance(node, str) and node in names:
            found.append("type: a named type again")
            continue
        found.append(f"type: {kind_of(node)}")
        if isinstance(node, list):
            values = [branch for branch in node if branch != "null"]
            found.append(
                f"union: {'null and ' if len(values) < len(node) else ''}{'several' if len(values) > 1 else 'one'}"
            )
            records = [
                branch
                for branch in values
                if kind_of(names.get(branch, branch) if isinstance(branch, str) else branch) == "record"
            ]
            if len(records) > 1:
                found.append("union: several records")
        if isinstance(node, dict) and "logicalType" in node:
            found.append(f"logical type: {node['logicalType']} of {kind_of(node)}")
        for field in node.get("fields", ()) if isinstance(node, dict) else ():
            if "default" in field:
                inner = names.get(field["type"], field["type"]) if isinstance(field["type"], str) else field["type"]
                found.append(f"default: {kind_of(inner)}")
    return found


def make_case(seed: int, number: int) -> Case:
    """Returns the case of this number."""
    rng = Random(f"{seed}/{number}")
    namespaces = rng.choice((("",), ("n1", "n2"), ("n1", "n2", "a.b")))
    writer = SchemaMaker(rng, namespaces, depth=rng.choice((1, 2, 2, 3))).top()
    evolution = Evolution(rng, writer, namespaces)
    reader = evolution.apply(rng.choice((0, 1, 1, 1, 2, 2, 3)))
    changes = evolution.names
    if rng.random() < _BROKEN:
        what, reader = broken(rng, reader)
        changes = [*changes, f"broken: {what}"]
    values, foreign = [], []
    for _ in range(VALUES):
        maker = ValueMaker(rng, definitions(writer), _FOREIGN)
        values.append(maker.value(writer))
        foreign.append(maker.is_foreign)
    rendering = rng if not any(change.startswith("broken") for change in changes) else None
    return Case(
        f"{seed}/{number}",
        writer,
        reader,
        text_of(writer, rng),
        text_of(reader, rendering),
        tuple(values),
        tuple(foreign),
        tuple(changes),
    )
