"""Converts Python values to Avro payloads and checks each against the schema.

A value that is not of its type is a `SchemaError`, which names the field's path. Takes time in proportion to the value.
Records may be nested as deep as Python's recursion limit allows: a record takes one call, an array or a map another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

from klamm.core.errors import SchemaError

from ..branches import NAME_KEY, Ranked, candidates, takes_names
from ..defaults import default_value
from ..logical import misfit, writer_of
from ..model import MISSING, AvroField, AvroType, branch_names, describe, under
from .dataclass import field_names
from .encoding import Encode, Put, counted, default_bytes, leaf, varint


def value_writer(avro: AvroType) -> Encode:
    """Returns a function that writes a value: its arguments are the value, and a function that takes the pieces of the
    payload. It raises `SchemaError` for a value that does not match the schema; the caller then discards the pieces."""
    return _Compiler().of(avro, "")


@dataclass(eq=False, slots=True)
class _Field:
    """A field of a record. `present` and `absent` are the branches of an optional field's value, encoded; `default` is
    an encoded default."""

    name: str
    encode: Encode
    present: bytes | None = None
    absent: bytes = b""
    union: Encode | None = None
    default: bytes | None = None


class _Compiler:
    """Makes the encoding of each type. `at` is the path of a value's field."""

    def __init__(self) -> None:
        self._records: dict[int, Encode] = {}

    def of(self, avro: AvroType, at: str) -> Encode:
        match avro.kind:
            case "record":
                return self._record(avro, at)
            case "array":
                return _array(avro, self.of(avro.inner, under(at, "[]")), at)
            case "map":
                return _map(avro, self.of(avro.inner, under(at, "{}")), at)
            case "union":
                return _Union(avro, [self.of(branch, at) for branch in avro.branches], at)
        return leaf(avro, at)

    def _record(self, avro: AvroType, at: str) -> Encode:
        known = self._records.get(id(avro))
        if known is not None:  # it contains itself: messages have the path of the outer one
            return known
        fields: list[_Field] = []
        encode = self._records[id(avro)] = _record(avro, fields, at)
        fields += [self._field(field, under(at, field.name)) for field in avro.fields]
        return encode

    def _field(self, field: AvroField, at: str) -> _Field:
        avro = field.type
        if avro.kind == "union" and len(avro.branches) == 2 and len(avro.values) == 1 and avro.optional:
            index = 0 if avro.branches[1].kind == "null" else 1
            encode = self.of(avro.branches[index], at)
            made = _Field(field.name, encode, varint(index), varint(1 - index), self.of(avro, at))
        else:
            made = _Field(field.name, self.of(avro, at))
        if field.default is not MISSING:
            with contextlib.suppress(SchemaError):  # others have registered it: the field is required
                made.default = default_bytes(avro, default_value(avro, field.default))
        return made


def _record(avro: AvroType, fields: list[_Field], at: str) -> Encode:
    """An optional field's value is encoded here, so that nested records take one call for each level."""

    def encode(value: Any, put: Put) -> None:
        given = value if value.__class__ is dict else _as_dict(value, at)
        found = 0
        for field in fields:
            item = given.get(field.name, MISSING)
            if item is MISSING:
                if field.default is None:
                    raise misfit(under(at, field.name), "is missing and has no default")
                put(field.default)
                continue
            found += 1
            if field.present is None:
                field.encode(item, put)
            elif item is None:
                put(field.absent)
            elif item.__class__ is tuple and field.union is not None:
                field.union(item, put)
            else:
                put(field.present)
                field.encode(item, put)
        if found != len(given):
            _check_keys(avro, given, at)

    return encode


def _check_keys(avro: AvroType, given: Mapping[str, Any], at: str) -> None:
    """Raises `SchemaError` for a field too many, and for another type's name."""
    known = {field.name for field in avro.fields}
    for name in given:
        if name not in known and name != NAME_KEY:
            raise misfit(under(at, str(name)), f"is no field of {describe(avro)}")
    named = given.get(NAME_KEY, avro.name)
    if named not in (avro.name, avro.short_name):
        raise misfit(at, f"a value of type {named!r} is no {describe(avro)}")


def _as_dict(value: Any, at: str) -> dict[str, Any]:
    kind = value.__class__
    names = field_names(kind)
    if names:
        return dict(zip(names, _getter(kind)(value), strict=True))
    if names is not None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    raise misfit(at, f"expected a dict or a dataclass, got {kind.__name__}")


@cache
def _getter(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    names = field_names(kind) or ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _array(avro: AvroType, item: Encode, at: str) -> Encode:
    def encode(value: Any, put: Put) -> None:
        items: Sequence[Any] | None = value
        if value.__class__ is not list:
            try:
                items = None if isinstance(value, str | bytes | bytearray | Mapping) else list(value)
            except TypeError:  # numpy's arrays of no dimension have __iter__, too
                items = None
            if items is None:
                raise misfit(at, f"expected {describe(avro)}, got {value!r:.200}")
        if items:
            put(varint(len(items)))
            for one in items:
                item(one, put)
        put(b"\0")

    return encode


def _map(avro: AvroType, item: Encode, at: str) -> Encode:
    key = writer_of(AvroType("string"), f"the key of {at}" if at else "")

    def encode(value: Any, put: Put) -> None:
        if not isinstance(value, Mapping):
            raise misfit(at, f"expected {describe(avro)}, got {value!r:.200}")
        if value:
            put(varint(len(value)))
            for name, part in value.items():
                put(counted(key(name).encode()))
                item(part, put)
        put(b"\0")

    return encode


class _Union:
    """The encoding of a union's value."""

    def __init__(self, avro: AvroType, encodes: list[Encode], at: str) -> None:
        self._avro = avro
        self._at = at
        self._encodes = encodes
        self._by_class: dict[type, Ranked] = {}
        self._by_name = branch_names(avro)
        self._has_records = any(branch.kind == "record" for branch in avro.branches)

    def __call__(self, value: Any, put: Put) -> None:
        kind = value.__class__
        if kind is tuple and len(value) == 2 and isinstance(value[0], str) and value[0] in self._by_name:
            return self._put(self._by_name[value[0]], value[1], put)
        if self._has_records and kind is dict and NAME_KEY in value:
            return self._put(self._named(value[NAME_KEY]), value, put)
        found = self._by_class.get(kind)
        if found is None:
            found = self._by_class[kind] = candidates(self._avro, kind)
        if len(found) == 1:
            return self._put(found[0][1], value, put)
        if not found:
            raise misfit(self._at, f"{value!r:.200} is of no branch of the {describe(self._avro)}")
        if kind is dict or field_names(kind) is not None or isinstance(value, Mapping):
            return self._put(self._by_keys(value, found), value, put)
        return self._ranked(value, found, put)

    def _put(self, index: int, value: Any, put: Put) -> None:
        put(varint(index))
        self._encodes[index](value, put)

    def _named(self, name: Any) -> int:
        index = self._by_name.get(name) if isinstance(name, str) else None
        if index is None:
            raise misfit(self._at, f"{name!r:.200} is no branch of the {describe(self._avro)}")
        return index

    def _by_keys(self, value: Any, found: Ranked) -> int:
        """Returns the branch of a dict or a dataclass among several: by the class's name, else by its keys."""
        branches = self._avro.branches
        if field_names(value.__class__) is not None:
            alike = [index for _, index in found if branches[index].short_name == value.__class__.__name__]
            if len(alike) == 1:
                return alike[0]
        keys = set(field_names(value.__class__) or value)
        fits = [i for _, i in found if branches[i].kind == "map" or takes_names(branches[i], keys)]
        if len(fits) == 1:
            return fits[0]
        if not fits:
            raise misfit(self._at, f"a value with the keys {', '.join(map(str, keys))} fits no branch of the union")
        raise self._several(fits)

    def _ranked(self, value: Any, found: Ranked, put: Put) -> None:
        """Encodes the value as the best branch that takes it."""
        error = SchemaError("")
        for rank in sorted({rank for rank, _ in found}):
            taken: list[tuple[int, list[bytes]]] = []
            for index in (index for other, index in found if other == rank):
                pieces: list[bytes] = []
                try:
                    self._put(index, value, pieces.append)
                except SchemaError as one:
                    error = one
                else:
                    taken.append((index, pieces))
            if len(taken) > 1 and isinstance(value, str | bytes | bytearray | memoryview):
                raise self._several([index for index, _ in taken])
            if taken:
                return put(b"".join(taken[0][1]))
        raise error

    def _several(self, fits: list[int]) -> SchemaError:
        names = [self._avro.branches[index].branch_name for index in fits]
        record = f', as a dict with "{NAME_KEY}" or as a dataclass' if self._avro.branches[fits[0]].fields else ""
        return misfit(
            self._at, f'the value may be of {" or ".join(names)}: name one, as ("{names[0]}", value){record}'
        )  # fmt: skip
