"""Compares two JSON Schemas: can data that the original accepts be read with the update?

The rules are structural, those of Confluent's registry (docs/registry-formats.md). Recursion: a pair of schemas is
compared once; a pair that is met within itself counts as compatible at first, and the whole is repeated with the pairs
that proved incompatible until none is added. The problem is exponential in the worst case: a `Budget` bounds the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from klamm.schemas.differences import Budget, ComparisonLimitError, CompatibilityPolicy, Difference, path_of

from .changes import BOUNDS, COMPATIBLE, LENIENT, TEMPLATES
from .nodes import COMBINED, MISSING, SchemaNode
from .patterns import compiled
from .schema import JsonSchema
from .text import JsonNumber

_Change = tuple[str, tuple[str, ...]]
"""A kind of difference and its path from the pair that is compared."""
_Changes = list[_Change]
_MARKS: Final = ('"', '"', "'")
"""Confluent closes the text by another mark than it opens it; clients' tests compare it."""


def differences(
    original: JsonSchema,
    update: JsonSchema,
    policy: CompatibilityPolicy = CompatibilityPolicy.STRICT,
    *,
    budget: Budget | None = None,
) -> list[Difference]:
    """Returns the differences; data of `original` can be read with `update` if all of them are compatible.

    Raises `ComparisonLimitError` beyond the budget, `SchemaError` for a text that was not checked before and is not a
    schema.
    """
    accepted = LENIENT if policy is CompatibilityPolicy.LENIENT else COMPATIBLE
    comparison = _Comparison(accepted, budget or Budget())
    try:
        changes = comparison.run(original.root, update.root)
    except RecursionError:
        raise ComparisonLimitError("the schemas are too complex to be compared: nested too deeply") from None
    return [
        Difference(kind, path_of(*path), kind in accepted, TEMPLATES.get(kind, ""), marks=_MARKS)
        for kind, path in changes
    ]


class _Comparison:
    def __init__(self, accepted: frozenset[str], budget: Budget) -> None:
        self._accepted = accepted
        self._budget = budget
        self._known: dict[tuple[int, int], _Changes] = {}
        self._refused: dict[tuple[int, int], _Changes] = {}
        self._inside: set[tuple[int, int]] = set()
        self._assumed = False
        self._patterns: dict[str, Any] = {}

    def run(self, original: SchemaNode, update: SchemaNode) -> _Changes:
        while True:
            self._known, self._assumed = {}, False
            changes = self._compare(original, update)
            refused = {pair: found for pair, found in self._known.items() if not self._fine(found)}
            if not self._assumed or refused.keys() <= self._refused.keys():
                return changes
            self._refused |= refused

    def _fine(self, changes: _Changes) -> bool:
        return all(kind in self._accepted for kind, _path in changes)

    def _compare(self, original: SchemaNode | None, update: SchemaNode | None, *path: str) -> _Changes:
        """Returns the changes from one schema to another, which are at `path`."""
        if original is None or update is None:
            if original is update:
                return []
            return [("SCHEMA_REMOVED" if update is None else "SCHEMA_ADDED", path)]
        original, update = original.resolved(), update.resolved()
        pair = (id(original), id(update))
        found = self._known.get(pair)
        if found is None:
            if pair in self._inside:
                self._assumed = True
                found = self._refused.get(pair, [])
            else:
                self._budget.spend()
                self._inside.add(pair)
                found = self._known[pair] = self._of_pair(original, update)
                self._inside.discard(pair)
        self._budget.spend(len(found))
        return [(kind, path + inner) for kind, inner in found] if path else found

    def _of_pair(self, original: SchemaNode, update: SchemaNode) -> _Changes:
        found = self._as_combination(original, update)
        if found is not None:
            return found
        combined = original.kind in COMBINED and update.kind in COMBINED
        if original.kind != update.kind and not combined:
            both_bytes = original.connect_bytes and update.connect_bytes  # Connect's two forms of a decimal
            if original.kind == "false" or update.kind == "any" or both_bytes:
                return []
            return [("TYPE_CHANGED", ())]
        changes: _Changes = []
        for name in ("id", "title", "description", "default"):
            if getattr(original, name) != getattr(update, name):
                changes.append((f"{name.upper()}_CHANGED", ()))
        if combined:
            return changes + self._combinations(original, update)
        changes += self._bounds(original, update)
        match original.kind:
            case "string":
                changes += _presence("PATTERN", original.pattern, update.pattern, "pattern")
            case "number":
                changes += _number(original, update)
            case "object":
                changes += self._objects(original, update)
            case "array":
                changes += self._arrays(original, update)
            case "enum" | "const":
                changes += _values(original, update)
            case "not":  # the other way round: what is excluded may only shrink
                inner = self._compare(update.target, original.target)
                if inner:
                    changes.append(("NOT_TYPE_NARROWED" if self._fine(inner) else "NOT_TYPE_EXTENDED", ("not",)))
        return changes

    def _as_combination(self, original: SchemaNode, update: SchemaNode) -> _Changes | None:
        """A single schema against a combination: one of its branches may do; None if none does or both are the same."""
        single, several = original.kind not in COMBINED, update.kind not in COMBINED
        if single == several:
            return None
        branches = update.branches if single else original.branches
        kinds = ("anyOf", "oneOf") if single else ("allOf",)
        if len(branches) != 1 and (update if single else original).kind not in kinds:
            return None
        for branch in branches:
            changes = self._compare(original, branch) if single else self._compare(branch, update)
            if self._fine(changes):
                if len(branches) == 1:
                    return changes
                return [*changes, ("SUM_TYPE_EXTENDED" if single else "PRODUCT_TYPE_NARROWED", ())]
        return None

    def _combinations(self, original: SchemaNode, update: SchemaNode) -> _Changes:
        changes: _Changes = []
        if original.kind != update.kind:
            before, after = len(original.branches) == 1, len(update.branches) == 1
            extended = (
                update.kind == "anyOf"
                or (before and after)
                or (before and update.kind == "oneOf")
                or (after and original.kind == "allOf")
            )
            if not extended:
                return [("COMBINED_TYPE_CHANGED", ())]
            changes.append(("COMBINED_TYPE_EXTENDED", ()))
        before_count, after_count = len(original.branches), len(update.branches)
        if before_count < after_count:
            changes.append(("PRODUCT_TYPE_EXTENDED" if update.kind == "allOf" else "SUM_TYPE_EXTENDED", ()))
        elif before_count > after_count:
            changes.append(("PRODUCT_TYPE_NARROWED" if original.kind == "allOf" else "SUM_TYPE_NARROWED", ()))

        def between(left: int, right: int) -> _Changes:
            return self._compare(original.branches[left], update.branches[right], original.kind, str(left))

        def partners(left: int) -> Iterator[int]:  # the nearest first: branches seldom move far
            for right in sorted(range(after_count), key=lambda right: abs(right - left)):
                if self._fine(between(left, right)):
                    yield right

        pairs = _matching(before_count, partners, self._budget)
        for left, right in sorted(pairs.items()):
            changes += between(left, right)
        if len(pairs) < min(before_count, after_count):
            changes.append(("COMBINED_TYPE_SUBSCHEMAS_CHANGED", ()))
        return changes

    def _bounds(self, original: SchemaNode, update: SchemaNode) -> _Changes:
        changes: _Changes = []
        for keyword, name in BOUNDS.items():
            before, after = original.bounds.get(keyword), update.bounds.get(keyword)
            if before is None or after is None:
                changes += _presence(name, before, after, keyword)
            elif _exact(before) != _exact(after):
                word = "INCREASED" if _exact(before) < _exact(after) else "DECREASED"
                changes.append((f"{name}_{word}", (keyword,)))
        return changes

    def _objects(self, original: SchemaNode, update: SchemaNode) -> _Changes:
        changes: _Changes = []
        for name in original.properties:
            before, after = name in original.required, name in update.required
            if name not in update.properties or before == after:
                continue
            default = "WITH_DEFAULT_" if update.properties[name].default is not MISSING else ""
            changes.append((f"REQUIRED_ATTRIBUTE_{'REMOVED' if before else f'{default}ADDED'}", ("required", name)))
        for name in original.properties | update.properties:
            old, new = original.properties.get(name), update.properties.get(name)
            if new is None:
                assert old is not None
                changes += self._removed("PROPERTY", old, update, ("properties", name))
            elif old is None:
                changes += self._property_added(new, original, update, name)
            else:
                changes += self._compare(old, new, "properties", name)
        changes += self._dependencies(original, update)
        changes += self._further("PROPERTIES", "Properties", original, update)
        return changes

    def _arrays(self, original: SchemaNode, update: SchemaNode) -> _Changes:
        changes = self._compare(original.item, update.item, "items")
        for index in range(max(len(original.first_items), len(update.first_items))):
            path = ("items", str(index))
            if index >= len(update.first_items):
                changes = changes + self._removed("ITEM", original.first_items[index], update, path)
            elif index >= len(original.first_items):
                changes = changes + self._item_added(update.first_items[index], original, path)
            else:
                changes = changes + self._compare(original.first_items[index], update.first_items[index], *path)
        changes = changes + self._further("ITEMS", "Items", original, update)
        if original.unique != update.unique:
            changes.append((f"UNIQUE_ITEMS_{'REMOVED' if original.unique else 'ADDED'}", ("uniqueItems",)))
        return changes

    def _removed(self, what: str, old: SchemaNode, update: SchemaNode, path: tuple[str, ...]) -> _Changes:
        """A property or item that only the original has: what does the update do with it?"""
        if update.open:
            return [(f"{what}_REMOVED_FROM_OPEN_CONTENT_MODEL", path)]
        covering, certain = self._covering(update, path[-1])
        if covering is None and certain:
            false = "WITH_FALSE_" if old.resolved().kind == "false" else ""
            return [(f"{what}_{false}REMOVED_FROM_CLOSED_CONTENT_MODEL", path)]
        changes = self._compare(old, covering, *path) if covering is not None else []
        word = "IS" if certain and self._fine(changes) else "NOT"
        return [*changes, (f"{what}_REMOVED_{word}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)]

    def _property_added(self, new: SchemaNode, original: SchemaNode, update: SchemaNode, name: str) -> _Changes:
        path = ("properties", name)
        is_required = name in update.required
        default = "WITH_DEFAULT_" if new.default is not MISSING else ""
        kind = f"REQUIRED_PROPERTY_{default}ADDED" if is_required else "OPTIONAL_PROPERTY_ADDED"
        if original.open:
            if new.resolved().kind == "any":
                kind = "PROPERTY_WITH_EMPTY_SCHEMA_ADDED"
            return [(f"{kind}_TO_OPEN_CONTENT_MODEL", path)]
        changes = self._covered_before("PROPERTY", new, original, path)
        return [*changes, (f"{kind}_TO_UNOPEN_CONTENT_MODEL", path)]

    def _item_added(self, new: SchemaNode, original: SchemaNode, path: tuple[str, ...]) -> _Changes:
        if original.open:
            kind = "ITEM_WITH_EMPTY_SCHEMA_ADDED" if new.resolved().kind == "any" else "ITEM_ADDED"
            return [(f"{kind}_TO_OPEN_CONTENT_MODEL", path)]
        return self._covered_before("ITEM", new, original, path) or [("ITEM_ADDED_TO_CLOSED_CONTENT_MODEL", path)]

    def _covered_before(self, what: str, new: SchemaNode, original: SchemaNode, path: tuple[str, ...]) -> _Changes:
        """A property or item that only the update has, where the original had a schema for all such."""
        covering, certain = self._covering(original, path[-1])
        if covering is None and certain:
            return []
        changes = self._compare(covering, new, *path) if covering is not None else []
        word = "IS" if certain and self._fine(changes) else "NOT"
        return [*changes, (f"{what}_ADDED_{word}_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", path)]

    def _covering(self, node: SchemaNode, name: str) -> tuple[SchemaNode | None, bool]:
        """Returns the schema that a property or item without an own one must fulfil, and whether that is certain."""
        for pattern, schema in node.patterns:
            matches = self._matches(pattern, name)
            if matches is None:
                return None, False
            if matches:
                return schema, True
        return node.covering, True

    def _matches(self, pattern: str, name: str) -> bool | None:
        """By RE2, whose time is linear. None if it does not know the pattern (look-around, back-references)."""
        self._budget.spend(1 + len(name) // 1000)
        if pattern not in self._patterns:
            self._patterns[pattern] = compiled(pattern)
        known = self._patterns[pattern]
        return None if known is None else known.search(name) is not None

    def _dependencies(self, original: SchemaNode, update: SchemaNode) -> _Changes:
        changes: _Changes = []
        for name in original.dependencies | update.dependencies:
            before, after = original.dependencies.get(name), update.dependencies.get(name)
            if before == after:
                continue
            if before is None or after is None:
                word = "REMOVED" if after is None else "ADDED"
            else:
                word = "EXTENDED" if before < after else "NARROWED" if before > after else "CHANGED"
            changes.append((f"DEPENDENCY_ARRAY_{word}", ("dependencies", name)))
        for name in original.dependent_schemas | update.dependent_schemas:
            old, new = original.dependent_schemas.get(name), update.dependent_schemas.get(name)
            if old is None or new is None:
                word = "REMOVED" if new is None else "ADDED"
                changes.append((f"DEPENDENCY_SCHEMA_{word}", ("dependencies", name)))
            else:
                changes += self._compare(old, new, "dependencies", name)
        return changes

    def _further(self, what: str, keyword: str, original: SchemaNode, update: SchemaNode) -> _Changes:
        """`additionalProperties`, `unevaluatedProperties` and those of items."""
        path = (f"additional{keyword}",)
        if original.closed != update.closed:
            changes: _Changes = [(f"ADDITIONAL_{what}_{'ADDED' if original.closed else 'REMOVED'}", path)]
        elif (original.rest is None) != (update.rest is None):
            changes = [(f"ADDITIONAL_{what}_{'NARROWED' if original.rest is None else 'EXTENDED'}", path)]
        else:
            changes = self._compare(original.rest, update.rest, *path)
        before, after = original.unevaluated, update.unevaluated
        if before is None and after is None:
            return changes
        path = (f"unevaluated{keyword}",)
        kinds = [node.resolved().kind if node is not None else "" for node in (before, after)]
        word = _unevaluated(*kinds)
        if not word:
            return changes + self._compare(before, after, *path)
        return [*changes, (f"UNEVALUATED_{what}_{word}", path)]


def _unevaluated(before: str, after: str) -> str:
    """The word for a change of `unevaluated…` by the kinds of its schema ("" if absent); "" if two schemas differ."""
    if (before == "false") != (after == "false"):
        return "ADDED" if before == "false" else "REMOVED"
    if before and after:
        if (before == "any") == (after == "any"):
            return ""
        return "NARROWED" if before == "any" else "EXTENDED"
    return "EXTENDED" if before else "NARROWED"


def _presence(name: str, before: Any, after: Any, keyword: str) -> _Changes:
    if before == after:
        return []
    word = "ADDED" if before is None else "REMOVED" if after is None else "CHANGED"
    return [(f"{name}_{word}", (keyword,))]


def _number(original: SchemaNode, update: SchemaNode) -> _Changes:
    changes: _Changes = []
    before, after = (None if node.multiple_of is None else _exact(node.multiple_of) for node in (original, update))
    if before is None or after is None:
        changes += _presence("MULTIPLE_OF", before, after, "multipleOf")
    elif before != after:
        word = "EXPANDED" if _divides(before, after) else "REDUCED" if _divides(after, before) else "CHANGED"
        changes.append((f"MULTIPLE_OF_{word}", ("multipleOf",)))
    if original.integer != update.integer:
        changes.append(("TYPE_EXTENDED" if original.integer else "TYPE_NARROWED", ()))
    return changes


def _exact(number: Any) -> Decimal:
    return Decimal(number.text if isinstance(number, JsonNumber) else number)


def _divides(divisor: Decimal, number: Decimal) -> bool:
    try:
        return divisor != 0 and number % divisor == 0
    except InvalidOperation:  # the quotient has too many digits
        return False


def _values(original: SchemaNode, update: SchemaNode) -> _Changes:
    before, after = original.values, update.values
    if before == after:
        return []
    word = "CHANGED"
    if original.kind == "enum":
        word = "EXTENDED" if before < after else "NARROWED" if before > after else "CHANGED"
    return [(f"ENUM_ARRAY_{word}", (original.kind,))]


def _matching(count: int, edges: Callable[[int], Iterator[int]], budget: Budget) -> dict[int, int]:
    """Returns a maximum bipartite matching, by augmenting paths. `edges(i)` are possible partners of `i < count`."""
    partners: dict[int, int] = {}
    owners: dict[int, int] = {}
    for start in range(count):
        reached: dict[int, int] = {}
        queue = [start]
        free: int | None = None
        for left in queue:
            budget.spend()
            for right in edges(left):
                if right not in reached:
                    reached[right] = left
                    if right not in owners:
                        free = right
                        break
                    queue.append(owners[right])
            if free is not None:
                break
        while free is not None:
            left = reached[free]
            owners[free] = left
            partners[left], free = free, partners.get(left)
    return partners
