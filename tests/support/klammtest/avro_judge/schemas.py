"""Generates writers' schemas: JSON trees whose named types have full names, defined once and then named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Final

from .values import EndlessDefaultError, ValueMaker

Json = Any
PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL: Final[dict[str, tuple[str, ...]]] = {
    "int": ("date", "time-millis"),
    "long": (
        "time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos", "local-timestamp-millis",
        "local-timestamp-micros", "local-timestamp-nanos",
    ),
    "string": ("uuid",),
}  # fmt: skip
NAMED: Final = ("record", "enum", "fixed")
_INVALID: Final = (
    {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 5},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -1},
    {"type": "bytes", "logicalType": "decimal", "precision": 0},
    {"type": "bytes", "logicalType": "decimal"},
    {"type": "string", "logicalType": "decimal", "precision": 4},
    {"type": "long", "logicalType": "date"},
    {"type": "int", "logicalType": "timestamp-millis"},
    {"type": "int", "logicalType": "uuid"},
    {"type": "string", "logicalType": "no-such-type"},
)
"""Logical types that Avro ignores."""
_NAMES: Final = ("P", "Q", "Kind", "Hash", "Order")
_FIELDS: Final = ("id", "note", "amount", "at", "tags", "inner", "x", "y")


def kind_of(schema: Json) -> str:
    """Returns Avro's kind of a type that is written out: `union`, or the value of its `type`."""
    if isinstance(schema, list):
        return "union"
    kind = schema["type"] if isinstance(schema, dict) else schema
    return str(kind) if isinstance(kind, str) else kind_of(kind)


def definitions(schema: Json) -> dict[str, Json]:
    """Returns the named types of a schema by full name."""
    named = [node for node in nodes(schema) if isinstance(node, dict) and "name" in node]
    return {node["name"]: node for node in named if node["name"] not in PRIMITIVES}


def nodes(schema: Json) -> Iterator[Json]:
    """Yields a schema and all types in it, each reference once as its name."""
    yield schema
    if isinstance(schema, list):
        parts = schema
    elif isinstance(schema, dict):
        parts = [schema[key] for key in ("items", "values") if key in schema]
        parts += [field["type"] for field in schema.get("fields", ())]
    else:
        return
    for part in parts:
        yield from nodes(part)


def closed(schema: Json, known: Mapping[str, Json]) -> Json:
    """Returns a schema in which each named type is written out where it comes first, and only there. Definitions that
    the schema has lost come from `known`."""
    own = {**known, **definitions(schema)}
    return _closed(schema, own, set())


def _closed(schema: Json, known: Mapping[str, Json], seen: set[str]) -> Json:
    if isinstance(schema, list):
        return [_closed(branch, known, seen) for branch in schema]
    if isinstance(schema, str):
        return _closed(known[schema], known, seen) if schema in known and schema not in seen else schema
    if "name" in schema:
        if schema["name"] in seen:
            return str(schema["name"])
        seen.add(schema["name"])
    made = dict(schema)
    for key in ("items", "values"):
        if key in made:
            made[key] = _closed(made[key], known, seen)
    if "fields" in made:
        made["fields"] = [{**field, "type": _closed(field["type"], known, seen)} for field in made["fields"]]
    return made


class SchemaMaker:
    """Makes one schema; `small` values bound depth and width, so that a case is read at a glance."""

    def __init__(
        self, rng: Random, namespaces: tuple[str, ...], depth: int = 3, taken: Mapping[str, Json] | None = None
    ) -> None:
        self._rng = rng
        self._namespaces = namespaces
        self._depth = depth
        self._defined: dict[str, Json] = dict(taken or {})
        self._open: list[str] = []

    def top(self) -> Json:
        made = self.record(0) if self._rng.random() < 0.9 else self.type_of(0)
        return closed(made, self._defined)

    def type_of(self, depth: int) -> Json:
        makers: list[tuple[int, Callable[[int], Json]]] = [
            (10, lambda _: self._rng.choice(PRIMITIVES[1:])),
            (1, lambda _: "null"),
            (8, lambda _: self.logical()),
            (2, self.enum),
            (2, self.fixed),
        ]
        if self._defined:
            makers.append((2, lambda _: self._reference()))
        if depth < self._depth:
            makers += [(3, self.array), (3, self.map), (3, self.record), (9, self.union)]
        weights = [weight for weight, _ in makers]
        return self._rng.choices([make for _, make in makers], weights)[0](depth)

    def _reference(self) -> Json:
        name = self._rng.choice(sorted(self._defined))
        return name if name not in self._open else "string"

    def logical(self) -> Json:
        rng = self._rng
        roll = rng.random()
        if roll < 0.08:
            return dict(rng.choice(_INVALID))
        if roll < 0.28:
            return {"type": "bytes", **self.decimal()}
        if roll < 0.34:
            return self.fixed_decimal()
        if roll < 0.38:
            size, logical = rng.choice(((12, "duration"), (16, "uuid")))
            return self._define({"type": "fixed", "name": self.name(), "size": size, "logicalType": logical})
        kind = rng.choice(("int", "int", "long", "long", "long", "long", "long", "string"))
        return {"type": kind, "logicalType": rng.choice(LOGICAL[kind])}

    def decimal(self) -> dict[str, Json]:
        precision = self._rng.choice((1, 2, 5, 9, 10, 18, 19, 38, 38, 40))
        scale = self._rng.choice((0, 0, 1, 2, precision))
        made: dict[str, Json] = {"logicalType": "decimal", "precision": precision}
        if scale or self._rng.random() < 0.5:
            made["scale"] = min(scale, precision)
        return made

    def fixed_decimal(self) -> Json:
        size = self._rng.choice((1, 4, 9, 16))
        decimal = self.decimal()
        if self._rng.random() < 0.9:  # else a precision that the bytes cannot hold: Avro ignores the logical type
            decimal["precision"] = min(decimal["precision"], len(str(2 ** (8 * size - 1) - 1)) - 1)
            if "scale" in decimal:
                decimal["scale"] = min(decimal["scale"], decimal["precision"])
        return self._define({"type": "fixed", "name": self.name(), "size": size, **decimal})

    def enum(self, _: int) -> Json:
        symbols = self._rng.sample(["A", "B", "C", "D", "red", "_x"], self._rng.randint(1, 4))
        made: dict[str, Json] = {"type": "enum", "name": self.name(), "symbols": symbols}
        if self._rng.random() < 0.4:
            made["default"] = self._rng.choice(symbols)
        return self._define(made)

    def fixed(self, _: int) -> Json:
        return self._define({"type": "fixed", "name": self.name(), "size": self._rng.choice((1, 2, 4, 16))})

    def array(self, depth: int) -> Json:
        return {"type": "array", "items": self.type_of(depth + 1)}

    def map(self, depth: int) -> Json:
        return {"type": "map", "values": self.type_of(depth + 1)}

    def record(self, depth: int) -> Json:
        made: dict[str, Json] = {"type": "record", "name": self.name(), "fields": []}
        self._open.append(made["name"])
        for name in self._rng.sample(
            _FIELDS, self._rng.choice((0, 1, 2, 2, 3, 3, 4)) if depth else self._rng.randint(1, 5)
        ):
            made["fields"].append(self.field(name, depth))
        if depth and self._rng.random() < 0.04:  # a type that contains itself
            made["fields"].append({"name": "next", "type": ["null", made["name"]], "default": None})
        self._open.pop()
        return self._define(made)

    def field(self, name: str, depth: int) -> Json:
        made = {"name": name, "type": self.type_of(depth + 1)}
        if self._rng.random() < 0.3:
            self.set_default(made)
        return made

    def set_default(self, field: Json) -> None:
        """Gives a field a default of its type, in the form of the specification, if there is one."""
        with suppress(EndlessDefaultError):
            field["default"] = ValueMaker(self._rng, self._defined | definitions(field["type"])).default(field["type"])

    def union(self, depth: int) -> Json:
        rng = self._rng
        roll = rng.random()
        if roll < 0.45:
            only = self._branch(depth)
            return ["null", only] if rng.random() < 0.7 else [only, "null"]
        branches: list[Json] = ["null"] if rng.random() < 0.6 else []
        if rng.random() < 0.3:
            branches += self.twins(depth)
        branches += [self._branch(depth) for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.3:
            rng.shuffle(branches)
        return self._distinct(branches)

    def twins(self, depth: int) -> list[Json]:
        """Returns two records of equal shape, or of equal short name."""
        one = self.record(depth + 1)
        fields = [
            dict(field)
            for field in one["fields"]
            if not any(isinstance(n, dict) and "name" in n for n in nodes(field["type"]))
        ]
        short = one["name"].rpartition(".")[2]
        others = [f"{space}.{short}" for space in self._namespaces if space and f"{space}.{short}" not in self._defined]
        name = self._rng.choice(others) if others and self._rng.random() < 0.5 else self.name()
        if self._rng.random() < 0.3:
            fields.append({"name": "more", "type": "string"})
        return [one, self._define({"type": "record", "name": name, "fields": fields})]

    def _branch(self, depth: int) -> Json:
        made = self.type_of(depth + 1)
        return made if kind_of(made) not in ("union", "null") else "string"

    def _distinct(self, branches: list[Json]) -> list[Json]:
        """Leaves out branches that a union may not have beside the others; their definitions must stay."""
        kept: list[Json] = []
        seen: set[str] = set()
        for branch in branches:
            name = branch["name"] if isinstance(branch, dict) and "name" in branch else kind_of(branch)
            if name not in seen:
                seen.add(name)
                kept.append(branch)
        return kept

    def name(self) -> str:
        while True:
            short = self._rng.choice(_NAMES) + self._rng.choice(("", "", "2", "3", "4", "5", "6"))
            space = self._rng.choice(self._namespaces)
            name = f"{space}.{short}" if space else short
            if name not in self._defined and name not in self._open:
                return name

    def _define(self, schema: Json) -> Json:
        self._defined[schema["name"]] = schema
        return schema


def text_of(schema: Json, rng: Random | None = None) -> str:
    """Returns a schema's text. With `rng` the names are written in one of the ways that mean the same."""
    return json.dumps(schema if rng is None else _rendered(schema, rng, ""))


def _rendered(schema: Json, rng: Random, space: str) -> Json:
    if isinstance(schema, list):
        return [_rendered(branch, rng, space) for branch in schema]
    if not isinstance(schema, dict):
        own, _, short = schema.rpartition(".")
        return short if own and own == space and rng.random() < 0.5 else schema
    made = dict(schema)
    if "name" in made:
        own, _, short = made["name"].rpartition(".")
        if own and own == space and rng.random() < 0.5:
            made["name"] = short
        elif own and rng.random() < 0.5:
            made["name"], made["namespace"] = short, own
        space = own
    for key in ("items", "values"):
        if key in made:
            made[key] = _rendered(made[key], rng, space)
    if "fields" in made:
        made["fields"] = [{**field, "type": _rendered(field["type"], rng, space)} for field in made["fields"]]
        if rng.random() < 0.1:
            made["doc"] = "a record"
    return made
