"""Avro payloads of one writer's schema as a struct array, and which of them cannot be read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from fastavro import parse_schema, schemaless_reader

from klamm.core.errors import SchemaError

from ..parsing import rendered
from . import native
from .arrowtype import arrow_type
from .avrotype import AvroType, parse_type
from .pyvalue import converter
from .resolve import resolve

Read = Callable[[pa.Array], pa.Array]

_LONGEST: Final = 2**31 - 1


@dataclass(frozen=True)
class Decoded:
    """`rows` as long as the payloads; those in `bad` (row → why) are null."""

    rows: pa.Array
    bad: dict[int, str] = field(default_factory=dict)


class PayloadDecoder:
    """Payloads of one writer's schema, as columns of the reader's. `SchemaError` when the two cannot be resolved."""

    def __init__(self, writer_text: str, reader: AvroType) -> None:
        self._writer = parse_type(writer_text)
        self._reader = reader
        self._type = arrow_type(reader)
        self.native = native.can_decode(self._writer)
        slow = self._python()
        self._read = self._native(json.dumps(rendered(self._writer, evolution=False)), slow) if self.native else slow
        resolve(pa.nulls(0, arrow_type(self._writer)), self._writer, reader)

    def decode(self, payloads: Sequence[bytes] | pa.Array) -> Decoded:
        """Decodes all of `payloads`, of which none is null, to one array. A bad payload is found by bisection."""
        given = payloads if isinstance(payloads, pa.Array) else pa.array(payloads, pa.binary())
        bad: dict[int, str] = {}
        parts = self._halves(given, 0, bad)
        rows = pa.concat_arrays(parts) if parts else pa.nulls(0, self._type)
        return Decoded(rows, bad)

    def _halves(self, payloads: pa.Array, first: int, bad: dict[int, str]) -> list[pa.Array]:
        if not len(payloads):
            return []
        try:
            return [resolve(self._read(payloads), self._writer, self._reader)]
        except SchemaError as error:
            if len(payloads) == 1:
                bad[first] = str(error)
                return [pa.nulls(1, self._type)]
        middle = len(payloads) // 2
        return [
            *self._halves(payloads[:middle], first, bad),
            *self._halves(payloads[middle:], first + middle, bad),
        ]

    def _native(self, text: str, slow: Read) -> Read:
        target = arrow_type(self._writer)

        def read(payloads: pa.Array) -> pa.Array:
            rows = native.decode(payloads, text, target)
            return slow(payloads) if rows is None else rows

        return read

    def _python(self) -> Read:
        schema = parse_schema(_render(self._writer, set()))
        convert, target = converter(self._writer), arrow_type(self._writer)

        def read(payloads: pa.Array) -> pa.Array:
            try:
                values = [_read_one(raw, schema) for raw in payloads.to_pylist()]
                return pa.array(values if convert is None else [convert(v) for v in values], target)
            except SchemaError:
                raise
            except Exception as error:  # fastavro may raise any exception on damaged bytes
                raise SchemaError(f"{type(error).__name__}: {error}") from error

        return read


def without_prefix(values: pa.Array, size: int) -> pa.Array:
    """Each value without its first bytes; null stays null."""
    whole = pa.concat_arrays([values]) if values.offset else values  # pyarrow 26 cannot slice a part of an array
    return pc.binary_slice(whole, size, _LONGEST)


def _read_one(raw: bytes, schema: Any) -> Any:
    stream = io.BytesIO(raw)
    value = schemaless_reader(stream, schema, None, return_named_type=True)
    if stream.tell() != len(raw):
        raise SchemaError(f"{len(raw) - stream.tell()} bytes left over after the payload")
    return value


def _render(avro: AvroType, seen: set[str]) -> Any:
    """The schema without logical types, aliases and defaults, so that fastavro returns values as they are stored."""
    if avro.name:
        if avro.name in seen:
            return avro.name
        seen.add(avro.name)
    if avro.kind == "record":
        fields = [{"name": f.name, "type": _render(f.type, seen)} for f in avro.fields]
        return {"type": "record", "name": avro.name, "fields": fields}
    if avro.kind == "enum":
        return {"type": "enum", "name": avro.name, "symbols": list(avro.symbols)}
    if avro.kind == "fixed":
        return {"type": "fixed", "name": avro.name, "size": avro.size}
    if avro.kind in ("array", "map"):
        return {"type": avro.kind, "items" if avro.kind == "array" else "values": _render(avro.inner, seen)}
    if avro.kind == "union":
        return [_render(branch, seen) for branch in avro.branches]
    return avro.kind
