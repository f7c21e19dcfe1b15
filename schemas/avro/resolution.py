"""Schema resolution: how a reader's schema reads each type of a writer's schema. Records, columns, Spark and the
compatibility check use this one rule; `docs/schemas.md` documents it, with its differences from Java's Avro.

`resolve` returns a plan: a graph parallel to the writer's types, made before any value is read. A part that cannot be
read is a `Refused` in its place, since it matters only if a value is there (an empty array has no items).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.core.errors import SchemaError

from .defaults import DefaultsLimit, default_value
from .model import MISSING, NAMED, AvroField, AvroType, describe, under

PROMOTIONS: Final = frozenset(
    {
        ("int", "long"),
        ("int", "float"),
        ("int", "double"),
        ("long", "float"),
        ("long", "double"),
        ("float", "double"),
        ("string", "bytes"),
        ("bytes", "string"),
    }
)
_FAMILIES: Final = {
    "time-millis": ("time", 1_000_000),
    "time-micros": ("time", 1000),
    **{
        f"{clock}timestamp-{unit}": ("timestamp", nanos)
        for clock in ("", "local-")
        for unit, nanos in (("millis", 1_000_000), ("micros", 1000), ("nanos", 1))
    },
}
"""The logical types whose numbers are converted to each other's, within a family: (family, unit in nanoseconds)."""


@dataclass(eq=False, slots=True)
class Resolution:
    """The plan by which values of the writer's type are read as the reader's. `identical`: every value is read
    unchanged (names of types may differ)."""

    writer: AvroType
    reader: AvroType
    identical: bool = field(default=True, init=False)

    def parts(self) -> Sequence[Resolution]:
        """The plans of the types within."""
        return ()


@dataclass(eq=False, slots=True)
class Leaf(Resolution):
    """A primitive or a fixed: promoted from the writer's kind to the reader's, then read as the reader's logical type.
    The writer's number is multiplied by `factor` and divided by `divisor`, rounding down; a product beyond 64 bits
    cannot be read. At least one of the two is 1."""

    factor: int = 1
    divisor: int = 1


@dataclass(eq=False, slots=True)
class EnumPlan(Resolution):
    """`symbols` has the reader's symbol for each of the writer's; None if the reader lacks it and has no default: a
    value with it cannot be read."""

    symbols: tuple[str | None, ...] = ()


@dataclass(eq=False, slots=True)
class ItemsPlan(Resolution):
    """An array or a map: `items` is the plan of its items or values."""

    items: Resolution = None  # type: ignore[assignment]  # set before the plan is returned: types may contain themselves

    def parts(self) -> Sequence[Resolution]:
        return (self.items,)


@dataclass(eq=False, slots=True)
class FieldPlan:
    """A field of the reader: the writer's field number `source` by `plan`, or (`source` None) `default`, which is the
    stored value as `default_value` returns it."""

    field: AvroField
    source: int | None = None
    plan: Resolution | None = None
    default: Any = MISSING


@dataclass(eq=False, slots=True)
class RecordPlan(Resolution):
    """`fields` has every field of the reader, in its order. Fields of the writer that no plan names are skipped."""

    fields: tuple[FieldPlan, ...] = ()

    def parts(self) -> Sequence[Resolution]:
        return tuple(one.plan for one in self.fields if one.plan is not None)


@dataclass(eq=False, slots=True)
class FromUnion(Resolution):
    """The writer's type is a union: `branches` has the plan of each of its branches to the whole reader's type."""

    branches: tuple[Resolution, ...] = ()

    def parts(self) -> Sequence[Resolution]:
        return self.branches


@dataclass(eq=False, slots=True)
class IntoUnion(Resolution):
    """Only the reader's type is a union: the value belongs to its branch number `index`, and is read by the plan
    `branch`."""

    index: int = 0
    branch: Resolution = None  # type: ignore[assignment]  # as above

    def parts(self) -> Sequence[Resolution]:
        return (self.branch,)


@dataclass(eq=False, slots=True)
class Refused(Resolution):
    """No value of the writer's type can be read. `at` is the path of the reader's field ("" at the top)."""

    at: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"field {self.at}: {self.reason}" if self.at else self.reason


def resolve(writer: AvroType, reader: AvroType) -> Resolution:
    """Returns the plan of a pair of schemas."""
    resolver = _Resolver()
    plan = resolver.plan(writer, reader, "")
    _mark_identical(resolver.made)
    return plan


def refusals(plan: Resolution) -> Iterator[str]:
    """Yields a line for each place at which a value may not be readable; nothing if the reader can read every value of
    the writer (except text that is not UTF-8, and numbers beyond a narrower unit or precision)."""
    seen: set[int] = set()
    waiting: list[tuple[Resolution, str]] = [(plan, "")]
    while waiting:
        one, at = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Refused):
            yield str(one)
        elif isinstance(one, EnumPlan) and None in one.symbols:
            lost = [symbol for symbol, known in zip(one.writer.symbols, one.symbols, strict=True) if known is None]
            yield _at(at, f"enum {one.reader.name} lacks {', '.join(lost)} and has no default")
        elif isinstance(one, RecordPlan):
            waiting += [(f.plan, under(at, f.field.name)) for f in reversed(one.fields) if f.plan is not None]
        elif isinstance(one, ItemsPlan):
            waiting.append((one.items, under(at, "[]" if one.writer.kind == "array" else "{}")))
        else:
            waiting += [(part, at) for part in reversed(one.parts())]


def _at(at: str, what: str) -> str:
    return f"field {at}: {what}" if at else what


class _Resolver:
    def __init__(self) -> None:
        self.made: list[Resolution] = []
        self._records: dict[tuple[int, int], Resolution] = {}
        self._limit = DefaultsLimit()

    def plan(self, writer: AvroType, reader: AvroType, at: str) -> Resolution:
        made = self._plan(writer, reader, at)
        self.made.append(made)
        return made

    def _plan(self, writer: AvroType, reader: AvroType, at: str) -> Resolution:
        if writer.kind == "union":
            return FromUnion(writer, reader, tuple(self.plan(branch, reader, at) for branch in writer.branches))
        if reader.kind == "union":
            return self._into_union(writer, reader, at)
        if writer.kind != reader.kind and (writer.kind, reader.kind) not in PROMOTIONS:
            return Refused(writer, reader, at, f"{describe(writer)} cannot be read as {describe(reader)}")
        if writer.kind in NAMED and not _same_name(writer, reader):
            reason = f"{writer.kind} {writer.name} is not {reader.name} and none of its aliases"
            return Refused(writer, reader, at, reason)
        match reader.kind:
            case "record":
                return self._record(writer, reader, at)
            case "array" | "map":
                sign = "[]" if reader.kind == "array" else "{}"
                return ItemsPlan(writer, reader, self.plan(writer.inner, reader.inner, under(at, sign)))
            case "enum":
                known = set(reader.symbols)
                default = reader.default if reader.default in known else None
                return EnumPlan(writer, reader, tuple(s if s in known else default for s in writer.symbols))
            case _:
                return _leaf(writer, reader, at)

    def _record(self, writer: AvroType, reader: AvroType, at: str) -> Resolution:
        pair = (id(writer), id(reader))
        if pair in self._records:
            return self._records[pair]
        sources = _sources(writer, reader)
        defaults: dict[str, Any] = {}
        for target in reader.fields:
            if target.name in sources:
                continue
            try:
                defaults[target.name] = _default(target, self._limit)
            except SchemaError as error:
                self._records[pair] = Refused(writer, reader, under(at, target.name), str(error))
                return self._records[pair]
        made = self._records[pair] = RecordPlan(writer, reader)  # before its fields, which may contain it
        fields = []
        for target in reader.fields:
            if target.name in defaults:
                fields.append(FieldPlan(target, default=defaults[target.name]))
                continue
            source = sources[target.name]
            plan = self.plan(writer.fields[source].type, target.type, under(at, target.name))
            fields.append(FieldPlan(target, source, plan))
        made.fields = tuple(fields)
        return made

    def _into_union(self, writer: AvroType, reader: AvroType, at: str) -> Resolution:
        index = self._branch(writer, reader, at)
        if index is None:
            reason = f"{describe(writer)} is in no branch of the {describe(reader)}"
            return Refused(writer, reader, at, reason)
        return IntoUnion(writer, reader, index, self.plan(writer, reader.branches[index], at))

    def _branch(self, writer: AvroType, reader: AvroType, at: str) -> int | None:
        """Returns the branch that takes the writer's type: of the same kind, a named type by its full name or an alias,
        else by its short name (of records only those that resolve; the last, as in Java); else the first to which the
        type is promoted."""
        same = [index for index, branch in enumerate(reader.branches) if branch.kind == writer.kind]
        if writer.kind not in NAMED:
            promoted = (i for i, b in enumerate(reader.branches) if (writer.kind, b.kind) in PROMOTIONS)
            return same[0] if same else next(promoted, None)
        for index in same:
            if writer.name == reader.branches[index].name or writer.name in reader.branches[index].aliases:
                return index
        alike = [i for i in same if reader.branches[i].short_name == writer.short_name]
        if writer.kind != "record":
            return alike[0] if alike else None
        return next((i for i in reversed(alike) if self._resolves(writer, reader.branches[i], at)), None)

    def _resolves(self, writer: AvroType, reader: AvroType, at: str) -> bool:
        """Returns True if no field of the record is refused; fields within fields are not asked."""
        made = self._record(writer, reader, at)
        return not isinstance(made, Refused) and not any(isinstance(part, Refused) for part in made.parts())


def _default(target: AvroField, limit: DefaultsLimit) -> Any:
    if target.default is MISSING:
        raise SchemaError("is not in the data and has no default")
    try:
        return default_value(target.type, target.default, limit)
    except SchemaError as error:
        raise SchemaError(f"is not in the data, and its default is not of its type: {error}") from error
    except RecursionError as error:
        raise SchemaError("is not in the data, and its default contains itself") from error


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    """By the specification: unqualified names, and the reader's aliases in full."""
    return writer.short_name == reader.short_name or writer.name in reader.aliases


def _sources(writer: AvroType, reader: AvroType) -> dict[str, int]:
    """Returns for each field of the reader the number of the writer's: by name, else by one of the reader's aliases.
    A field of the writer is read by one field of the reader."""
    written = {one.name: index for index, one in enumerate(writer.fields)}
    sources = {one.name: written[one.name] for one in reader.fields if one.name in written}
    for one in reader.fields:
        if one.name in sources:
            continue
        for alias in one.aliases:
            if alias in written and alias not in sources and written[alias] not in sources.values():
                sources[one.name] = written[alias]
                break
    return sources


def _leaf(writer: AvroType, reader: AvroType, at: str) -> Resolution:
    if writer.kind == "fixed" and writer.size != reader.size:
        return Refused(writer, reader, at, f"fixed {reader.name} has {writer.size} bytes, not {reader.size}")
    problem = _logical_problem(writer, reader)
    if problem is not None:
        return Refused(writer, reader, at, problem)
    if writer.logical in _FAMILIES and reader.logical in _FAMILIES:
        written, read = _FAMILIES[writer.logical][1], _FAMILIES[reader.logical][1]
        return Leaf(writer, reader, max(written // read, 1), max(read // written, 1))
    return Leaf(writer, reader)


def _logical_problem(writer: AvroType, reader: AvroType) -> str | None:
    """Returns why a value of the writer's logical type is none of the reader's; None if it is one. Where one of the two
    has no logical type, the stored value counts."""
    mine, theirs = writer.logical, reader.logical
    if not mine or not theirs:
        return None
    if mine == theirs == "decimal" and (writer.scale != reader.scale or writer.precision > reader.precision):
        return f"{describe(writer)} cannot be read as {describe(reader)}: another scale, or fewer digits"
    if mine == theirs or (mine in _FAMILIES and theirs in _FAMILIES and _FAMILIES[mine][0] == _FAMILIES[theirs][0]):
        return None
    return f"{describe(writer)} cannot be read as {describe(reader)}"


def _mark_identical(made: Sequence[Resolution]) -> None:
    """Clears `identical` where a value changes, then in everything that contains such a place."""
    for one in made:
        one.identical = _unchanged(one)
    changed = True
    while changed:
        changed = False
        for one in made:
            if one.identical and not all(part.identical for part in _within(one)):
                one.identical, changed = False, True


def _within(one: Resolution) -> Sequence[Resolution]:
    if isinstance(one, FromUnion):
        return [branch.branch for branch in one.branches if isinstance(branch, IntoUnion)]
    return one.parts()


def _unchanged(one: Resolution) -> bool:
    """Returns True if a plan changes nothing by itself."""
    writer, reader = one.writer, one.reader
    match one:
        case Leaf():
            same = writer.kind == reader.kind and writer.logical == reader.logical
            return same and (writer.precision, writer.scale) == (reader.precision, reader.scale)
        case EnumPlan():
            return one.symbols == writer.symbols == reader.symbols
        case RecordPlan():
            names = [(f.source, f.field.name) for f in one.fields]
            return names == [(index, f.name) for index, f in enumerate(writer.fields)]
        case FromUnion():
            places = [branch.index if isinstance(branch, IntoUnion) else None for branch in one.branches]
            return places == list(range(len(reader.branches)))
        case _:
            return isinstance(one, ItemsPlan)
