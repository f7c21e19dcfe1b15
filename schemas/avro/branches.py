"""Chooses the branch of a union for a Python value, and finds the values that must name their branch.

A value names its branch as a pair (name, value): the full name of a named type, or Avro's name of any other kind. A
record may also name it by the key `-type`, or as a dataclass of that name. Other values belong to the branch that their
class fits best: a whole number to `int` and `long` before `double`, text to `string` before an enum. If two named types
fit equally well the value must name one, and a value that is read from such a branch names it.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from numbers import Integral, Real
from typing import Final
from uuid import UUID

from .logical import read_class
from .model import MISSING, AvroType

NAME_KEY: Final = "-type"
"""The key of a record's dict that names its type; Avro's names have no hyphen."""
_NUMBERS: Final = frozenset({"int", "long", "float", "double"})
_EQUAL: Final = (Decimal, UUID)
Ranked = list[tuple[int, int]]
"""(rank, branch), the best first."""


def candidates(union: AvroType, kind: type) -> Ranked:
    """Returns the branches that may take a value of a class."""
    found = [(rank, index) for index, one in enumerate(union.branches) if (rank := _rank(one, kind)) is not None]
    return sorted(found)


def _rank(branch: AvroType, kind: type) -> int | None:
    """Returns how well a branch fits a class, 0 best; None if it does not."""
    logical = branch.logical
    if kind is type(None):
        return 0 if branch.kind == "null" else None
    if issubclass(kind, bool) or kind.__name__ in ("bool_", "bool"):
        return 0 if branch.kind == "boolean" else None
    if issubclass(kind, Integral):
        if logical:  # only nanoseconds are read, and sent, as numbers
            return 1 if read_class(branch) is int else None
        return {"int": 0, "long": 0, "double": 3, "float": 4}.get(branch.kind)
    if issubclass(kind, Real):
        return {"double": 0, "float": 1}.get(branch.kind)
    if issubclass(kind, str):
        return {"string": 2 if logical else 0, "enum": 1}.get(branch.kind)
    if issubclass(kind, bytes | bytearray | memoryview):
        return {"bytes": 2 if logical else 0, "fixed": 2 if logical else 1}.get(branch.kind)
    if issubclass(kind, Decimal | UUID):
        return 0 if logical == ("decimal" if issubclass(kind, Decimal) else "uuid") else None
    if issubclass(kind, dt.datetime):
        return 0 if "timestamp" in logical else None
    if issubclass(kind, dt.date):
        return 0 if logical == "date" else None
    if issubclass(kind, dt.time):
        return {"time-micros": 0, "time-millis": 1}.get(logical)  # the one that loses nothing comes first
    if issubclass(kind, dict) or hasattr(kind, "keys"):
        return {"record": 0, "map": 1}.get(branch.kind)
    if hasattr(kind, "__dataclass_fields__"):
        return 0 if branch.kind == "record" else None
    return 0 if branch.kind == "array" and hasattr(kind, "__iter__") else None


def must_be_named(union: AvroType) -> frozenset[int]:
    """Returns the indexes of the branches whose values, once read as Python objects, would be written as another
    branch. Numbers, decimals and UUIDs are not among them, because they are equal in each branch."""
    return frozenset(index for index, branch in enumerate(union.branches) if _ambiguous(union, index, branch))


def class_beyond(union: AvroType, index: int) -> type | None:
    """Returns the class of stored values that Python cannot represent as date, time or UUID (they are read as stored),
    if such values would be written to another branch; None if they would not, or if there are none."""
    branch = union.branches[index]
    if branch.kind not in ("int", "long", "string") or not branch.logical or read_class(branch) is int:
        return None
    kind = str if branch.kind == "string" else int
    others = (one for i, one in enumerate(union.branches) if i != index)
    return kind if any(_rank(one, kind) is not None for one in others) else None


def _ambiguous(union: AvroType, index: int, branch: AvroType) -> bool:
    others = [one for i, one in enumerate(union.branches) if i != index]
    if branch.kind == "record":
        names = {field.name for field in branch.fields}
        return any(one.kind == "map" or (one.kind == "record" and takes_names(one, names)) for one in others)
    if branch.kind == "map":
        return any(one.kind == "record" for one in others)
    kind = read_class(branch)
    if kind is None or kind in _EQUAL or (branch.kind in _NUMBERS and not branch.logical):
        return False
    mine = _rank(branch, kind) or 0
    for one in others:
        rank = _rank(one, kind)
        if rank is not None and (rank < mine or (rank == mine and _alike(branch, one))):
            return True
    return False


def _alike(branch: AvroType, other: AvroType) -> bool:
    """Returns True if two branches of one rank may take the same value."""
    if branch.kind == other.kind == "fixed" and not branch.logical:
        return branch.size == other.size
    return not (branch.kind == other.kind == "enum") or bool(set(branch.symbols) & set(other.symbols))


def takes_names(record: AvroType, names: set[str]) -> bool:
    """Returns True if a record may be written from a dict with these keys."""
    missing = [field for field in record.fields if field.name not in names]
    known = {field.name for field in record.fields}
    return names <= known and all(field.default is not MISSING for field in missing)
