"""Derives the reader's schema from the writer's: changes that Avro resolves, and changes that it does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from .schemas import LOGICAL, SchemaMaker, closed, definitions, kind_of, nodes

Json = Any
Change = Callable[["Evolution"], bool]
"""Changes the tree; returns False where it finds no place for itself."""

_WIDER: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


class Evolution:
    """A copy of a schema that changes are applied to; `names` are those of the changes that found a place."""

    def __init__(self, rng: Random, writer: Json, namespaces: tuple[str, ...]) -> None:
        self.rng = rng
        self._box = [json.loads(json.dumps(writer))]
        self._known = definitions(writer)
        self.namespaces = namespaces
        self.names: list[str] = []

    def apply(self, changes: int) -> Json:
        for _ in range(changes):
            rare = self.rng.sample(_RARE, 3) if self.rng.random() < 0.5 else []
            for name in (*rare, *self.rng.sample(sorted(CHANGES), 6)):
                if CHANGES[name](self):
                    self.names.append(name)
                    self._box[0] = closed(self._box[0], self._known)
                    break
        return self._box[0]

    def slots(self) -> Iterator[tuple[Any, Any]]:
        """Yields the place of each type: a container and the key in it."""
        places: list[tuple[Any, Any]] = [(self._box, 0)]
        while places:
            container, key = places.pop()
            yield container, key
            schema = container[key]
            if isinstance(schema, list):
                places += [(schema, index) for index in range(len(schema))]
            elif isinstance(schema, dict):
                places += [(schema, part) for part in ("items", "values") if part in schema]
                places += [(field, "type") for field in schema.get("fields", ())]

    def pick(self, wanted: Callable[[Json], bool]) -> tuple[Any, Any] | None:
        """Returns the place of a type that is `wanted`; None if there is none."""
        found = [(container, key) for container, key in self.slots() if wanted(container[key])]
        return self.rng.choice(found) if found else None

    def one(self, kind: str) -> Json | None:
        """Returns a type of this kind, written out."""
        slot = self.pick(
            lambda schema: isinstance(schema, list if kind == "union" else dict) and kind_of(schema) == kind
        )
        return None if slot is None else slot[0][slot[1]]

    def record(self) -> Json | None:
        found = self.one("record")
        return found if found is not None and found["fields"] else None

    def maker(self) -> SchemaMaker:
        return SchemaMaker(self.rng, self.namespaces, depth=1, taken=definitions(self._box[0]))

    def rename(self, old: str, new: str) -> None:
        for container, key in list(self.slots()):
            schema = container[key]
            if schema == old:
                container[key] = new
            elif isinstance(schema, dict) and schema.get("name") == old:
                schema["name"] = new
        self._known.pop(old, None)

    def taken(self, name: str) -> bool:
        return name in definitions(self._box[0]) or name in self._known


def _add_field(change: Evolution, default: bool) -> bool:
    record = change.one("record")
    if record is None:
        return False
    maker = change.maker()
    field = {"name": f"added{len(record['fields'])}", "type": maker.type_of(1)}
    if default:
        maker.set_default(field)
    record["fields"].insert(change.rng.randint(0, len(record["fields"])), field)
    return True


def _remove_field(change: Evolution) -> bool:
    record = change.record()
    if record is not None:
        record["fields"].pop(change.rng.randrange(len(record["fields"])))
    return record is not None


def _reorder_fields(change: Evolution) -> bool:
    record = change.record()
    if record is not None:
        change.rng.shuffle(record["fields"])
    return record is not None


def _rename_field(change: Evolution, alias: bool) -> bool:
    record = change.record()
    if record is None:
        return False
    field = change.rng.choice(record["fields"])
    if alias:
        field["aliases"] = [*field.get("aliases", ()), field["name"]]
    field["name"] = f"{field['name']}_new"
    return True


def _default_field(change: Evolution) -> bool:
    record = change.record()
    if record is not None:
        change.maker().set_default(change.rng.choice(record["fields"]))
    return record is not None


def _promote(change: Evolution) -> bool:
    slot = change.pick(lambda schema: kind_of(schema) in _WIDER and not isinstance(schema, list))
    if slot is None:
        return False
    slot[0][slot[1]] = change.rng.choice(_WIDER[kind_of(slot[0][slot[1]])])
    return True


def _other_type(change: Evolution) -> bool:
    slot = change.pick(lambda schema: not isinstance(schema, list))
    if slot is None or slot == (change._box, 0):
        return False
    slot[0][slot[1]] = change.rng.choice(("int", "long", "double", "string", "bytes", "boolean"))
    return True


def _into_union(change: Evolution) -> bool:
    slot = change.pick(lambda schema: kind_of(schema) not in ("union", "null"))
    if slot is None or (isinstance(slot[0], list) and slot[0] is not change._box):
        return False
    old = slot[0][slot[1]]
    branches = ["null", old] if change.rng.random() < 0.5 else [old, "null"]
    if change.rng.random() < 0.4:
        wider = _WIDER.get(kind_of(old), ("boolean",))[0]
        branches.insert(change.rng.randint(0, 2), wider if kind_of(old) != wider else {"type": "array", "items": "int"})
    slot[0][slot[1]] = branches
    return True


def _out_of_union(change: Evolution) -> bool:
    slot = change.pick(lambda schema: isinstance(schema, list) and any(kind_of(branch) != "null" for branch in schema))
    if slot is None:
        return False
    slot[0][slot[1]] = change.rng.choice([branch for branch in slot[0][slot[1]] if branch != "null"])
    return True


def _add_branch(change: Evolution) -> bool:
    union = change.one("union")
    if union is None:
        return False
    kinds = {kind_of(branch) for branch in union}
    free = [kind for kind in ("boolean", "int", "long", "float", "double", "bytes", "string") if kind not in kinds]
    if free:
        union.insert(change.rng.randint(0, len(union)), change.rng.choice(free))
    return bool(free)


def _add_record_branch(change: Evolution) -> bool:
    """Adds a record that differs from one in the union only in its namespace or by one field with a default."""
    union = change.one("union")
    records = (
        []
        if union is None
        else [branch for branch in union if isinstance(branch, dict) and branch.get("type") == "record"]
    )
    if union is None or not records:
        return False
    short = records[0]["name"].rpartition(".")[2]
    names = [f"{space}.{short}" for space in change.namespaces if space] + [f"{short}_b"]
    free = [name for name in names if not change.taken(name)]
    if not free:
        return False
    fields = [
        f
        for f in json.loads(json.dumps(records[0]["fields"]))
        if not any(isinstance(n, dict) and "name" in n for n in nodes(f["type"]))
    ]
    if change.rng.random() < 0.5:
        fields.append({"name": "more", "type": "int", "default": 7})
    union.insert(
        change.rng.randint(0, len(union)), {"type": "record", "name": change.rng.choice(free), "fields": fields}
    )
    return True


def _remove_branch(change: Evolution) -> bool:
    union = change.one("union")
    if union is None or len(union) < 2:
        return False
    union.pop(change.rng.randrange(len(union)))
    return True


def _reorder_branches(change: Evolution) -> bool:
    union = change.one("union")
    if union is not None:
        change.rng.shuffle(union)
    return union is not None


def _enum_symbols(change: Evolution, add: bool, default: bool | None = None) -> bool:
    enum = change.one("enum")
    if enum is None:
        return False
    if add:
        enum["symbols"].insert(change.rng.randint(0, len(enum["symbols"])), "ADDED")
        return "ADDED" not in enum["symbols"][1:] or enum["symbols"].count("ADDED") == 1
    if len(enum["symbols"]) < 2:
        return False
    lost = enum["symbols"].pop(change.rng.randrange(len(enum["symbols"])))
    if default is False or enum.get("default") == lost:
        enum.pop("default", None)
    if default:
        enum["default"] = change.rng.choice(enum["symbols"])
    return True


def _rename_type(change: Evolution, how: str) -> bool:
    slot = change.pick(lambda schema: isinstance(schema, dict) and "name" in schema)
    if slot is None:
        return False
    schema = slot[0][slot[1]]
    old = schema["name"]
    space, _, short = old.rpartition(".")
    if how.startswith("move"):
        spaces = [other for other in change.namespaces if other != space and not change.taken(f"{other}.{short}")]
        if not spaces or not space:
            return False
        new = f"{change.rng.choice(spaces)}.{short}"
    else:
        new = f"{old}_new"
    if change.taken(new):
        return False
    if how.endswith("alias"):
        schema["aliases"] = [*schema.get("aliases", ()), old]
    elif how.endswith("short"):
        schema["aliases"] = [*schema.get("aliases", ()), short]
    change.rename(old, new)
    return True


def _fixed_size(change: Evolution) -> bool:
    fixed = change.one("fixed")
    if fixed is None or fixed.get("logicalType"):
        return False
    fixed["size"] += 1
    return True


def _logical_add(change: Evolution) -> bool:
    slot = change.pick(lambda schema: schema in ("int", "long", "string", "bytes"))
    if slot is None:
        return False
    kind = slot[0][slot[1]]
    if kind == "bytes":
        slot[0][slot[1]] = {"type": "bytes", **change.maker().decimal()}
    else:
        slot[0][slot[1]] = {"type": kind, "logicalType": change.rng.choice(LOGICAL[kind])}
    return True


def _logical(change: Evolution) -> Json | None:
    slot = change.pick(lambda schema: isinstance(schema, dict) and "logicalType" in schema)
    return None if slot is None else slot[0][slot[1]]


def _logical_remove(change: Evolution) -> bool:
    schema = _logical(change)
    if schema is not None:
        for key in ("logicalType", "precision", "scale"):
            schema.pop(key, None)
    return schema is not None


def _logical_change(change: Evolution) -> bool:
    schema = _logical(change)
    if schema is None or schema["type"] not in LOGICAL:
        return False
    schema["logicalType"] = change.rng.choice(LOGICAL[schema["type"]])
    return True


def _logical_promote(change: Evolution) -> bool:
    slot = change.pick(lambda schema: kind_of(schema) == "int")
    if slot is None:
        return False
    slot[0][slot[1]] = {"type": "long", "logicalType": change.rng.choice(LOGICAL["long"])}
    return True


def _decimal_change(change: Evolution) -> bool:
    slot = change.pick(lambda schema: isinstance(schema, dict) and schema.get("logicalType") == "decimal")
    if slot is None:
        return False
    schema = slot[0][slot[1]]
    if change.rng.random() < 0.5:
        schema["precision"] = schema.get("precision", 4) + 1
    else:
        schema["scale"] = schema.get("scale", 0) + 1
    return True


CHANGES: Final[dict[str, Change]] = {
    "add a field with a default": lambda change: _add_field(change, True),
    "add a field without a default": lambda change: _add_field(change, False),
    "remove a field": _remove_field,
    "reorder fields": _reorder_fields,
    "rename a field, with an alias": lambda change: _rename_field(change, True),
    "rename a field, without": lambda change: _rename_field(change, False),
    "change a default": _default_field,
    "promote": _promote,
    "another type": _other_type,
    "type to union": _into_union,
    "union to type": _out_of_union,
    "add a branch": _add_branch,
    "add a record of the same shape to a union": _add_record_branch,
    "remove a branch": _remove_branch,
    "reorder branches": _reorder_branches,
    "add a symbol": lambda change: _enum_symbols(change, True),
    "remove a symbol": lambda change: _enum_symbols(change, False),
    "remove a symbol, no default": lambda change: _enum_symbols(change, False, False),
    "remove a symbol, with a default": lambda change: _enum_symbols(change, False, True),
    "rename a type, with an alias": lambda change: _rename_type(change, "alias"),
    "rename a type, with a short alias": lambda change: _rename_type(change, "short"),
    "rename a type, without": lambda change: _rename_type(change, "none"),
    "move a namespace": lambda change: _rename_type(change, "move"),
    "move a namespace, with an alias": lambda change: _rename_type(change, "move alias"),
    "move a namespace, with a short alias": lambda change: _rename_type(change, "move short"),
    "another fixed size": _fixed_size,
    "add a logical type": _logical_add,
    "remove a logical type": _logical_remove,
    "change a logical type": _logical_change,
    "int to a logical type of long": _logical_promote,
    "another precision or scale": _decimal_change,
}


_RARE: Final = (
    "add a record of the same shape to a union", "add a symbol", "another fixed size", "another precision or scale",
    "remove a branch", "remove a symbol, no default", "remove a symbol, with a default", "reorder branches",
)  # fmt: skip
"""Changes that seldom find a place; they are tried first in half of the cases."""


def broken(rng: Random, schema: Json) -> tuple[str, Json]:
    """Returns a schema with an error that a parser should find, and what was done to it."""
    tree = json.loads(json.dumps(schema))
    records = [node for node in nodes(tree) if isinstance(node, dict) and node.get("fields")]
    if not records:
        return "an unknown type", ["null", "no.such.Type"]
    record = rng.choice(records)
    field = rng.choice(record["fields"])
    name = rng.choice(sorted(_BREAKS))
    _BREAKS[name](rng, record, field)
    return name, tree


def _set(owner: Json, key: str, value: Json) -> None:
    owner[key] = value


_BAD_NAMES: Final = ("a.b", "a b", "a-b", "é", "1a", "", "a\u0000")
_BREAKS: Final[dict[str, Callable[[Random, Json, Json], None]]] = {
    "a field's name": lambda rng, _, field: _set(field, "name", rng.choice(_BAD_NAMES)),
    "a type's name": lambda rng, record, _: _set(
        record, "name", rng.choice(("1a", "", "a-b", "a..b", ".a", "é", "int", "a.1b", "a b.c"))
    ),
    "a field twice": lambda _, record, field: record["fields"].append({"name": field["name"], "type": "int"}),
    "a branch twice": lambda rng, _, field: _set(
        field,
        "type",
        rng.choice(
            (
                ["int", "int"],
                ["null", "string", "string"],
                [{"type": "array", "items": "int"}, {"type": "array", "items": "long"}],
                ["string", {"type": "string", "logicalType": "uuid"}],
            )
        ),
    ),
    "a union in a union": lambda _, __, field: _set(field, "type", ["null", ["int", "string"]]),
    "an unknown type": lambda rng, _, field: _set(
        field, "type", rng.choice(("no.such.Type", "Int", "", {"type": "nothing"}))
    ),
    "a fixed without size": lambda rng, _, field: _set(
        field,
        "type",
        {"type": "fixed", "name": "zz.F", **rng.choice(({}, {"size": -1}, {"size": "4"}, {"size": 0}, {"size": 1.5}))},
    ),
    "an enum": lambda rng, _, field: _set(
        field,
        "type",
        {
            "type": "enum",
            "name": "zz.E",
            **rng.choice(
                (
                    {},
                    {"symbols": ["A", "A"]},
                    {"symbols": ["a-b"]},
                    {"symbols": ["A"], "default": "B"},
                    {"symbols": []},
                    {"symbols": "A"},
                    {"symbols": [1]},
                )
            ),
        },
    ),
    "a default": lambda rng, _, field: field.update(
        rng.choice(
            (
                {"type": "string", "default": None},
                {"type": "int", "default": 2**31},
                {"type": "int", "default": 1.5},
                {"type": "int", "default": "1"},
                {"type": "double", "default": "NaN"},
                {"type": "bytes", "default": 1},
                {"type": "bytes", "default": "\u0100"},
                {"type": "long", "default": 1.0},
                {"type": ["null", "string"], "default": "x"},
                {"type": ["null", "int"], "default": "x"},
                {"type": {"type": "array", "items": "int"}, "default": {}},
                {"type": {"type": "fixed", "name": "zz.F", "size": 2}, "default": "x"},
                {"type": {"type": "enum", "name": "zz.E", "symbols": ["A"]}, "default": "B"},
                {"type": "boolean", "default": 0},
                {"type": "float", "default": 1e300},
                {"type": "null", "default": 0},
                {"type": "long", "default": 2**63},
                {"type": {"type": "map", "values": "int"}, "default": {"a": "b"}},
                {"type": {"type": "bytes", "logicalType": "decimal", "precision": 4}, "default": "text is long"},
            )
        )
    ),
    "no type": lambda _, __, field: field.pop("type"),
    "no name": lambda _, __, field: field.pop("name"),
    "no fields": lambda _, record, __: record.pop("fields"),
    "a name twice": lambda _, record, field: _set(field, "type", {"type": "fixed", "name": record["name"], "size": 2}),
    "an alias": lambda rng, record, _: _set(record, "aliases", rng.choice((["1a"], ["a-b"], "x", [""], [1]))),
    "a field's alias": lambda rng, _, field: _set(field, "aliases", rng.choice((["1a"], "x", [1]))),
    "an array without items": lambda _, __, field: _set(field, "type", {"type": "array"}),
    "a nested type": lambda rng, _, field: _set(
        field, "type", {"type": rng.choice(({"type": "int"}, ["int"], {"type": "array", "items": "int"}))}
    ),
}
