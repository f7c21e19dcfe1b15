"""The parts of a JSON Schema that are compared, the same for all drafts.

A schema object with keywords of several kinds (`type: string` and `enum`; `type: [string, "null"]`) becomes a
combination of nodes of one kind each, as in the two Java libraries that Confluent's registry uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from referencing import Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import SchemaRegistry

from klamm.core.errors import SchemaError

from .changes import BOUNDS
from .text import frozen

MISSING: Final = object()
COMBINED: Final = ("allOf", "anyOf", "oneOf")
KEYWORDS: Final = {
    "array": (
        "items", "prefixItems", "additionalItems", "unevaluatedItems", "maxItems", "minItems", "uniqueItems",
        "contains", "maxContains", "minContains",
    ),
    "object": (
        "properties", "required", "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
        "maxProperties", "minProperties", "dependencies", "dependentRequired", "dependentSchemas",
    ),
    "number": ("maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf"),
    "string": ("maxLength", "minLength", "pattern"),
}  # fmt: skip
"""What makes a schema one of a kind where `type` does not say it."""


@dataclass(eq=False)
class SchemaNode:
    """One schema of one kind: any (`true`), false, string, number, boolean, null, array, object, const, enum, not, if,
    allOf, anyOf, oneOf, ref. `bounds` are its numeric limits by keyword; the other attributes are those of its kind.
    """

    kind: str = "any"
    id: str | None = None
    title: Any = None
    description: Any = None
    default: Any = MISSING
    connect_bytes: bool = False
    bounds: dict[str, Any] = field(default_factory=dict)
    multiple_of: Any = None
    integer: bool = False
    pattern: str | None = None
    values: frozenset[Any] = frozenset()
    unique: bool = False
    item: SchemaNode | None = None
    first_items: list[SchemaNode] = field(default_factory=list)
    properties: dict[str, SchemaNode] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    patterns: list[tuple[str, SchemaNode]] = field(default_factory=list)
    closed: bool = False
    rest: SchemaNode | None = None
    unevaluated: SchemaNode | None = None
    dependencies: dict[str, frozenset[str]] = field(default_factory=dict)
    dependent_schemas: dict[str, SchemaNode] = field(default_factory=dict)
    branches: list[SchemaNode] = field(default_factory=list)
    target: SchemaNode | None = None

    def resolved(self) -> SchemaNode:
        """Returns the node that a reference leads to; itself if it is none."""
        node = self
        while node.kind == "ref":
            assert node.target is not None
            node = node.target
        return node

    @property
    def open(self) -> bool:
        """True if any further property or item is accepted."""
        unevaluated = self.unevaluated is None or self.unevaluated.resolved().kind == "any"
        return not self.closed and self.rest is None and not self.patterns and unevaluated

    @property
    def covering(self) -> SchemaNode | None:
        """The schema of further properties or items, those with patterns excepted."""
        if self.closed or self.rest is not None or self.unevaluated is None:
            return self.rest
        return None if self.unevaluated.resolved().kind in ("any", "false") else self.unevaluated


class Builder:
    """Makes the nodes of a document. Every schema object becomes one node, so that a recursive schema ends."""

    def __init__(self, registry: SchemaRegistry, specification: Specification[Any], *, modern: bool) -> None:
        self._resolver = registry.resolver()
        self._specification = specification
        self._modern = modern
        """Draft 2019-09 or later: keywords beside `$ref` count."""
        self._nodes: dict[int, SchemaNode] = {}
        self._waiting: deque[tuple[SchemaNode, Any, Any]] = deque()
        self._references: list[tuple[SchemaNode, str]] = []
        self._interned: dict[Any, int] = {}
        self._numbers: dict[int, int] = {}

    def build(self, document: Any) -> SchemaNode:
        root = self._node(document, self._resolver)
        while self._waiting:  # no recursion: a chain of references may be long
            self._fill(*self._waiting.popleft())
        ends: set[int] = set()
        for node, reference in self._references:
            _check_end(node, reference, ends)
        return root

    def _node(self, raw: Any, resolver: Any) -> SchemaNode:
        if not isinstance(raw, dict):
            return SchemaNode("false" if raw is False else "any")
        found = self._nodes.get(id(raw))
        if found is None:
            found = self._nodes[id(raw)] = SchemaNode()
            self._waiting.append((found, raw, resolver))
        return found

    def _fill(self, node: SchemaNode, raw: dict[str, Any], resolver: Any) -> None:
        if self._modern or "$ref" not in raw:
            resolver = resolver.in_subresource(self._specification.create_resource(raw))
        for keyword in ("definitions", "$defs"):  # a reference in one that nothing uses must lead somewhere, too
            for part in _object(raw, keyword).values():
                self._node(part, resolver)
        parts = list(self._parts(raw, resolver))
        if len(parts) == 1:
            node.__dict__.update(parts[0].__dict__)
        elif parts:
            node.kind, node.branches = "allOf", parts
        name = raw.get("$id") if self._modern or "$id" in raw else raw.get("id")
        node.id = name if isinstance(name, str) else None
        node.title, node.description = raw.get("title"), raw.get("description")
        node.default = frozen(raw["default"]) if "default" in raw else MISSING
        node.connect_bytes = raw.get("connect.type") == "bytes"

    def _parts(self, raw: dict[str, Any], resolver: Any) -> Iterator[SchemaNode]:
        """Yields a node for each kind of keywords."""
        for name in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(raw.get(name), str):
                yield self._reference(raw[name], resolver)
                if not self._modern:
                    return
        kinds = raw.get("type")
        left = {name for name in raw if name != "properties" or raw[name] or not self._modern}
        if isinstance(kinds, str):
            yield self._of_kind(kinds, raw, resolver)
        elif isinstance(kinds, list):
            branches = [self._of_kind(kind, raw, resolver) for kind in kinds if isinstance(kind, str)]
            yield SchemaNode("anyOf", branches=branches)
        given = kinds if isinstance(kinds, list) else [kinds]
        named = {_NUMBERS.get(kind, kind) for kind in given if isinstance(kind, str)}
        for kind, keywords in KEYWORDS.items():
            if kind not in named and not left.isdisjoint(keywords):
                yield self._of_kind(kind, raw, resolver)
        for name in COMBINED:
            if isinstance(raw.get(name), list):
                yield self._combined(name, raw[name], resolver)
        if "enum" in raw:
            yield SchemaNode("enum", values=frozenset(frozen(value) for value in _list(raw, "enum")))
        if "const" in raw:
            yield SchemaNode("const", values=frozenset((frozen(raw["const"]),)))
        if "not" in raw:
            yield SchemaNode("not", target=self._node(raw["not"], resolver))
        if "if" in raw:
            for name in ("if", "then", "else"):
                self._node(raw.get(name), resolver)
            yield SchemaNode("if")

    def _reference(self, name: str, resolver: Any) -> SchemaNode:
        try:
            found = self._lookup(name, resolver)
        except (Unresolvable, ValueError, TypeError):
            found = None
        if found is None or not isinstance(found.contents, dict | bool):
            raise SchemaError(
                f"not a JSON Schema: $ref {name[:200]!r} leads to no schema in the text or in its references"
                " (nothing is fetched)"
            )
        made = SchemaNode("ref", target=self._node(found.contents, found.resolver))
        self._references.append((made, name))
        return made

    def _lookup(self, name: str, resolver: Any) -> Any:
        try:
            return resolver.lookup(name)
        except Unresolvable:
            if "#/$defs/" not in name:
                raise
            return resolver.lookup(name.replace("#/$defs/", "#/definitions/"))  # as Confluent's registry

    def _combined(self, name: str, branches: list[Any], resolver: Any) -> SchemaNode:
        different = {self._intern(branch): branch for branch in branches}
        return SchemaNode(name, branches=[self._node(branch, resolver) for branch in different.values()])

    def _intern(self, value: Any) -> int:
        """Returns a number that is equal for equal JSON values."""
        if not isinstance(value, dict | list):
            return self._interned.setdefault((type(value), value), len(self._interned))
        found = self._numbers.get(id(value))
        if found is None:
            key: Any = tuple(self._intern(part) for part in value)
            if isinstance(value, dict):
                key = frozenset((name, self._intern(part)) for name, part in value.items())
            found = self._numbers[id(value)] = self._interned.setdefault(key, len(self._interned))
        return found

    def _of_kind(self, kind: str, raw: dict[str, Any], resolver: Any) -> SchemaNode:
        made = SchemaNode(_NUMBERS.get(kind, kind), integer=kind == "integer")
        own = KEYWORDS.get(made.kind, ())
        made.bounds = {name: raw[name] for name in BOUNDS if name in own and _is_number(raw.get(name))}
        match made.kind:
            case "number":
                for name, limit in (("exclusiveMaximum", "maximum"), ("exclusiveMinimum", "minimum")):
                    if raw.get(name) is True and _is_number(raw.get(limit)):  # draft 4
                        made.bounds[name] = raw[limit]
                made.multiple_of = raw.get("multipleOf")
            case "string":
                made.pattern = raw.get("pattern")
            case "array":
                self._array(made, raw, resolver)
            case "object":
                self._object(made, raw, resolver)
        return made

    def _array(self, made: SchemaNode, raw: dict[str, Any], resolver: Any) -> None:
        made.unique = raw.get("uniqueItems") is True
        items = raw.get("items", True)
        if isinstance(items, list):
            first, rest = items, raw.get("additionalItems", True)
        elif "prefixItems" in raw:
            first, rest = _list(raw, "prefixItems"), items
        else:
            first, rest = [], raw.get("additionalItems", True) if items is True else items
            if isinstance(items, dict):
                made.item, rest = self._node(items, resolver), True
        made.first_items = [self._node(part, resolver) for part in first]
        self._further(made, rest, "unevaluatedItems", raw, resolver)
        if "contains" in raw:
            self._node(raw["contains"], resolver)
            if self._modern:
                made.bounds.setdefault("minContains", 1)

    def _object(self, made: SchemaNode, raw: dict[str, Any], resolver: Any) -> None:
        made.properties = {name: self._node(part, resolver) for name, part in _object(raw, "properties").items()}
        made.required = frozenset(name for name in _list(raw, "required") if isinstance(name, str))
        made.patterns = [(name, self._node(part, resolver)) for name, part in _object(raw, "patternProperties").items()]
        self._further(made, raw.get("additionalProperties", True), "unevaluatedProperties", raw, resolver)
        self._node(raw.get("propertyNames"), resolver)
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, part in _object(raw, keyword).items():
                if isinstance(part, list):
                    made.dependencies[name] = frozenset(other for other in part if isinstance(other, str))
                else:
                    made.dependent_schemas[name] = self._node(part, resolver)

    def _further(self, made: SchemaNode, rest: Any, keyword: str, raw: dict[str, Any], resolver: Any) -> None:
        """`rest` is the schema of further properties or items."""
        made.closed = rest is False
        made.rest = self._node(rest, resolver) if isinstance(rest, dict) and rest else None
        if self._modern and keyword in raw:
            made.unevaluated = self._node(raw[keyword], resolver)


_NUMBERS: Final = {"integer": "number"}


def _check_end(node: SchemaNode, reference: str, ends: set[int]) -> None:
    """Raises `SchemaError` if a chain of references comes back to itself. `ends` are nodes known to lead somewhere."""
    at, seen = node, set[int]()
    while at.kind == "ref" and id(at) not in ends:
        if id(at) in seen:
            raise SchemaError(f"not a JSON Schema: $ref {reference[:200]!r} leads to itself only")
        seen.add(id(at))
        assert at.target is not None
        at = at.target
    ends |= seen


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _object(raw: dict[str, Any], name: str) -> dict[str, Any]:
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


def _list(raw: dict[str, Any], name: str) -> list[Any]:
    found = raw.get(name)
    return found if isinstance(found, list) else []
