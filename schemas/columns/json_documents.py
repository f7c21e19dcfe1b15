"""Converts JSON documents to Avro payloads and back by columns, for records of plain fields, where the bytes are
certain to be those of `schemas.avro.values.json_values`, which converts one by one. Everything else is left to that
module.

No function here takes a Python list to Arrow by `pa.array`, nor a value by `pa.scalar`: both import pandas where it is
installed, which takes longer than the conversion of 100,000 records.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from json.encoder import encode_basestring
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.errors import KlammError, SchemaError
from klamm.core.records.arrow import scalar

from ..avro.model import MISSING, AvroField, AvroType
from ..avro.parsing import parse, rendered
from ..avro.values.json_values import float_text
from . import native
from .arrowtype import stored_type
from .decode import without_prefix
from .fit import Misfit
from .writer import ColumnWriter

_CLASSES: Final[dict[str, frozenset[type]]] = {
    "boolean": frozenset({bool}),
    "int": frozenset({int}),
    "long": frozenset({int}),
    "float": frozenset({int, float}),
    "double": frozenset({int, float}),
    "string": frozenset({str}),
}
"""The classes of a parsed document's values that are written as they are."""
_NONE: Final = type(None)
_PRINTED: Final = frozenset({"boolean", "int", "long", "float", "double", "string", "enum", "record"})
_ESCAPED: Final = r'["\\\x00-\x1f]'
"""The characters that `json.encoder.encode_basestring` escapes."""


class DocumentWriter:
    """Serializes documents, as `json` parses them, to payloads: a `DocumentsSerializer`."""

    def __init__(self, avro: AvroType, prefix: bytes) -> None:
        self._fields = avro.fields
        self._names = [field.name for field in avro.fields]
        self._writer = ColumnWriter(avro, b"")
        self._prefix = _bytes(prefix)

    @classmethod
    def of(cls, avro: AvroType, prefix: bytes) -> Self | None:
        """Returns the serializer; None for a schema that is no record of plain fields."""
        plain = avro.kind == "record" and all(_plain(field.type) is not None for field in avro.fields)
        return cls(avro, prefix) if plain and native.can_decode(avro) else None

    def __call__(self, documents: Sequence[Any]) -> list[bytes] | None:
        try:
            columns = self._columns(documents)
        except (Misfit, AttributeError, OverflowError, UnicodeEncodeError):
            return None
        payloads = self._writer.payloads(pa.StructArray.from_arrays(columns, self._names))
        if payloads is None:
            return None
        framed = pc.binary_join_element_wise(self._prefix, payloads.cast(pa.binary()), _bytes(b""))
        return list(framed.to_pylist())

    def _columns(self, documents: Sequence[Any]) -> list[pa.Array]:
        """Raises `AttributeError` for a document that is no object, `Misfit` for one that has other fields."""
        found, columns = 0, list[pa.Array]()
        for field in self._fields:
            name = field.name
            items = [document.get(name, MISSING) for document in documents]
            found += len(items)
            if MISSING in items:
                if field.default is not None:
                    raise Misfit
                found -= items.count(MISSING)
                items = [None if item is MISSING else item for item in items]
            columns.append(_column(field, items))
        if sum(map(len, documents)) != found:
            raise Misfit
        return columns


def _plain(avro: AvroType) -> AvroType | None:
    """Returns the type of a plain value, of which null may be the alternative; None if it is another type."""
    if avro.kind == "union" and avro.optional and len(avro.branches) == 2:
        avro = avro.values[0]
    return avro if avro.kind in _CLASSES and not avro.logical else None


def _column(field: AvroField, items: list[Any]) -> pa.Array:
    avro = _plain(field.type)
    classes = set(map(type, items))
    there: pa.Array | None = None
    if _NONE in classes and field.type.kind == "union":
        classes.remove(_NONE)
        there = _booleans([item is not None for item in items])
        empty = "" if avro is not None and avro.kind == "string" else 0
        items = [empty if item is None else item for item in items]
    if avro is None or classes - _CLASSES[avro.kind]:
        raise Misfit
    column = _values(avro.kind, items)
    return column if there is None else pc.if_else(there, column, pa.nulls(1, column.type)[0])


def _values(kind: str, items: list[Any]) -> pa.Array:
    if kind == "boolean":
        return _booleans(items)
    if kind == "string":
        return _texts(items)
    whole = kind in ("int", "long")
    column = pa.Array.from_buffers(
        pa.int64() if whole else pa.float64(), len(items), [None, pa.py_buffer(array("q" if whole else "d", items))]
    )
    if not whole and not pc.all(pc.is_finite(column)).as_py():  # too large a number
        raise Misfit
    return column


def _booleans(items: list[bool]) -> pa.Array:
    return pa.Array.from_buffers(pa.uint8(), len(items), [None, pa.py_buffer(bytes(items))]).cast(pa.bool_())


def _texts(items: Sequence[str]) -> pa.Array:
    data = "".join(items)
    raw = data.encode()
    sizes = map(len, items) if len(raw) == len(data) else (len(item.encode()) for item in items)
    ends = array("i", accumulate(sizes, initial=0))
    return pa.Array.from_buffers(pa.string(), len(items), [None, pa.py_buffer(ends), pa.py_buffer(raw)])


def _bytes(data: bytes) -> pa.Scalar:
    ends = array("i", (0, len(data)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])[0]


# -- payloads as documents


class DocumentReader:
    """Prints payloads as JSON: a `DocumentsDeserializer`. `schema_text` returns the writer's schema of a payload, by
    its first `prefix_size` bytes. Values are printed if they were written with the schema `reader`; None: with any."""

    def __init__(self, prefix_size: int, schema_text: Callable[[bytes], str], reader: AvroType | None) -> None:
        self._size = prefix_size
        self._schema_text = schema_text
        self._reader = None if reader is None else _schema(reader)
        self._printers: dict[bytes, _Printer | None] = {}

    def __call__(self, values: pa.Array) -> list[bytes] | None:
        payloads = values.drop_null() if values.null_count else values
        if not len(payloads):
            return None
        prefix = payloads[0].as_py()[: self._size]
        if len(prefix) < self._size or not pc.all(pc.starts_with(payloads, prefix)).as_py():
            return None
        if prefix not in self._printers:
            self._printers[prefix] = self._printer(prefix)
        printer = self._printers[prefix]
        texts = None if printer is None else printer.texts(without_prefix(payloads, self._size))
        if texts is None:
            return None
        found = texts.cast(pa.binary()).to_pylist()
        if not values.null_count:
            return list(found)
        following = iter(found)
        return [next(following) if there else b"null" for there in values.is_valid().to_pylist()]

    def _printer(self, prefix: bytes) -> _Printer | None:
        try:
            avro = parse(self._schema_text(prefix)).root
        except KlammError:  # the reader of single values reports it
            return None
        if not native.can_decode(avro) or not _printed(avro):
            return None
        return _Printer(avro) if self._reader in (None, _schema(avro)) else None


def _schema(avro: AvroType) -> str:
    return json.dumps(rendered(avro, evolution=False))


def _printed(avro: AvroType) -> bool:
    if avro.kind == "union":
        return _printed(avro.values[0])
    parts = (field.type for field in avro.fields)
    return avro.kind in _PRINTED and not avro.logical and all(map(_printed, parts))


_NULL: Final = scalar("null", pa.string())
_QUOTE: Final = scalar('"', pa.string())
_NOTHING: Final = scalar("", pa.string())
_POINT: Final = scalar(".0", pa.string())
_ZERO, _LEAST, _MOST = pa.Array.from_buffers(pa.float64(), 3, [None, pa.py_buffer(array("d", (0.0, 1e-4, 1e9)))])
"""Numbers from `_LEAST` to below `_MOST`, and 0, are printed by Arrow as by Python, except the `.0` of whole ones."""


class _Printer:
    """Prints payloads of one schema, which `native.can_decode` and `_printed` have passed."""

    def __init__(self, avro: AvroType) -> None:
        self._avro = avro
        self._text = _schema(avro)
        self._stored = stored_type(avro)

    def texts(self, payloads: pa.Array) -> pa.Array | None:
        """Returns None if a payload cannot be read, or is not as its own values are written."""
        try:
            rows = native.decode(payloads, self._text, self._stored)
            return None if rows is None else _text(self._avro, rows)
        except (SchemaError, pa.ArrowException):
            return None


def _text(avro: AvroType, column: pa.Array) -> pa.Array:
    """Returns the JSON of each value that is not null."""
    match avro.kind:
        case "union":
            return pc.fill_null(_text(avro.values[0], column), _NULL)
        case "record":
            return _record(avro, column)
        case "string" | "enum":
            return _string(column)
        case "float" | "double":
            return _float(column.cast(pa.float64()))
    return column.cast(pa.string())


def _record(avro: AvroType, column: pa.StructArray) -> pa.Array:
    pieces: list[pa.Array | pa.Scalar] = []
    before = "{"
    for field, items in zip(avro.fields, column.flatten(), strict=True):
        pieces += (scalar(f"{before}{encode_basestring(field.name)}:", pa.string()), _text(field.type, items))
        before = ","
    joined = pc.binary_join_element_wise(*pieces, scalar("}", pa.string()), _NOTHING)
    return pc.if_else(pc.is_valid(column), joined, scalar(None, pa.string())) if column.null_count else joined


def _string(column: pa.Array) -> pa.Array:
    quoted = pc.binary_join_element_wise(_QUOTE, column, _QUOTE, _NOTHING)
    return _replaced(quoted, pc.match_substring_regex(column, _ESCAPED), column, encode_basestring)


def _float(column: pa.Array) -> pa.Array:
    size = pc.abs(column)
    plain = pc.and_(pc.greater_equal(size, _LEAST), pc.less(size, _MOST))
    plain = pc.or_(plain, pc.equal(column, _ZERO))
    point = pc.if_else(pc.equal(pc.trunc(column), column), _POINT, _NOTHING)
    shortest = pc.binary_join_element_wise(column.cast(pa.string()), point, _NOTHING)
    return _replaced(shortest, pc.invert(plain), column, float_text)


def _replaced(texts: pa.Array, mask: pa.Array, column: pa.Array, text: Callable[[Any], str]) -> pa.Array:
    """Returns `texts`, with those of the rows in `mask` made by Python."""
    mask = pc.and_(mask, pc.is_valid(column)) if column.null_count else mask
    others = column.filter(mask)
    if not len(others):
        return texts
    return pc.replace_with_mask(texts, mask, _texts([text(item) for item in others.to_pylist()]))
