"""Avro payloads of one writer's schema as a struct array, and which of them cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.errors import SchemaError

from ..avro.model import AvroType
from ..avro.parsing import parse_type, rendered
from ..avro.resolution import resolve
from . import native
from .apply import apply, never
from .arrowtype import arrow_type, stored_type
from .stored import stored_reader

Read = Callable[[pa.Array], pa.Array]

_LONGEST: Final = 2**31 - 1


@dataclass(frozen=True)
class Decoded:
    """`rows` as long as the payloads; those in `bad` (row → why) are null."""

    rows: pa.Array
    bad: dict[int, str] = field(default_factory=dict)


class PayloadDecoder:
    """Payloads of one writer's schema, as columns of the reader's. Raises `SchemaError` for a writer's schema that
    contains itself."""

    def __init__(self, writer_text: str, reader: AvroType) -> None:
        self._writer = parse_type(writer_text)
        self._type = arrow_type(reader)
        self._plan = resolve(self._writer, reader)
        self._never = never(self._plan)
        self.native = native.can_decode(self._writer)
        self._read = self._native() if self.native else self._python()

    def decode(self, payloads: Sequence[bytes] | pa.Array) -> Decoded:
        """Decodes all of `payloads`, of which none is null, to one array. A bad payload is found by bisection."""
        given = payloads if isinstance(payloads, pa.Array) else pa.array(payloads, pa.binary())
        if self._never is not None:
            return Decoded(pa.nulls(len(given), self._type), dict.fromkeys(range(len(given)), self._never))
        bad: dict[int, str] = {}
        parts = self._halves(given, 0, bad)
        rows = pa.concat_arrays(parts) if parts else pa.nulls(0, self._type)
        return Decoded(rows, bad)

    def _halves(self, payloads: pa.Array, first: int, bad: dict[int, str]) -> list[pa.Array]:
        if not len(payloads):
            return []
        try:
            return [apply(self._plan, self._read(payloads))]
        except SchemaError as error:
            if len(payloads) == 1:
                bad[first] = str(error)
                return [pa.nulls(1, self._type)]
        middle = len(payloads) // 2
        return [
            *self._halves(payloads[:middle], first, bad),
            *self._halves(payloads[middle:], first + middle, bad),
        ]

    def _native(self) -> Read:
        slow, target = self._python(), stored_type(self._writer)
        text = json.dumps(rendered(self._writer, evolution=False))

        def read(payloads: pa.Array) -> pa.Array:
            rows = native.decode(payloads, text, target)
            return slow(payloads) if rows is None else rows

        return read

    def _python(self) -> Read:
        read_one, target = stored_reader(self._writer), stored_type(self._writer)

        def read(payloads: pa.Array) -> pa.Array:
            try:
                return pa.array([read_one(raw) for raw in payloads.to_pylist()], target)
            except SchemaError:
                raise
            except Exception as error:  # fastavro may raise any exception on damaged bytes
                raise SchemaError(f"{type(error).__name__}: {error}") from error

        return read


def without_prefix(values: pa.Array, size: int) -> pa.Array:
    """Each value without its first bytes; null stays null."""
    whole = pa.concat_arrays([values]) if values.offset else values  # pyarrow 26 cannot slice a part of an array
    return pc.binary_slice(whole, size, _LONGEST)
