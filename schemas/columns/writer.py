"""Converts rows of Arrow columns to Avro payloads, if pyruhvro is known to be correct for the schema and the columns
fit it."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..avro.model import AvroType
from ..avro.parsing import rendered
from . import native
from .fit import Misfit, check_zones, fit
from .pyvalue import python_values

ROWS: Final = 65_536
"""Rows that are written at a time, so that their payloads stay below the 2 GiB of one Arrow array."""


class ColumnWriter:
    """Writes rows with one schema: a `klamm.core.interfaces.serde.ArrowSerializer`."""

    def __init__(self, avro: AvroType, prefix: bytes) -> None:
        self.prefix = prefix
        self._text = json.dumps(rendered(avro, evolution=False))
        self._avro = avro
        self._fields = native.fields(self._text) if native.can_decode(avro) else None

    def values(self, rows: pa.Array) -> list[Any]:
        """Returns the rows as the serializer of single values takes them; see `pyvalue`."""
        return python_values(rows, self._avro)

    def payloads(self, rows: pa.Array) -> pa.Array | None:
        """The payload of each row of a struct array, null for a null row, as binary or large binary. Returns None if
        the rows must be written one by one, which gives the same bytes or an error that names the row. Raises
        `SchemaError` for a timestamp without a zone where the schema has an instant."""
        check_zones(rows.type, self._avro)
        if self._fields is None or not pa.types.is_struct(rows.type):
            return None
        there = rows.filter(pc.is_valid(rows)) if rows.null_count else rows
        try:
            fitted = fit(there, self._avro)
        except Misfit:
            return None
        parts = []
        for at in range(0, len(fitted), ROWS):
            part = native.encode(fitted[at : at + ROWS], self._text, self._fields)
            if part is None:
                return None
            parts.append(part)
        if sum(part.nbytes for part in parts) > 2**31 - 1:
            parts = [part.cast(pa.large_binary()) for part in parts]
        written = pa.concat_arrays(parts) if parts else pa.array([], pa.binary())
        if not rows.null_count:
            return written
        places = pc.cumulative_sum(pc.is_valid(rows).cast(pa.int64()))
        return written.take(pc.if_else(pc.is_valid(rows), pc.subtract(places, 1), None))
