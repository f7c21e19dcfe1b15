"""Converts a topic's payloads to Arrow columns: each is decoded with the schema that its envelope names, and read as
the topic's own.

Recursive types, which columns cannot represent, and pairs of schemas that do not resolve are left to the reader of
single records: it decodes the former and raises the error for the latter.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.errors import SchemaError

from ..avro.model import AvroType
from ..avro.parsing import parse_type
from .arrowtype import arrow_type
from .decode import PayloadDecoder, without_prefix

Decoded = tuple[pa.Array, SchemaError | None]
"""The values before the first that cannot be decoded, and the reason; None: its type contradicts that of the values
before it, which happens only if the topic has no schema of its own."""


class ColumnReader:
    """The reader of one topic. `schema_text` returns the writer's schema of a payload, by its first `prefix_size`
    bytes; `reader` None: values keep their writer's type.
    """

    def __init__(self, prefix_size: int, schema_text: Callable[[bytes], str], reader: AvroType | None) -> None:
        self._size = prefix_size
        self._schema_text = schema_text
        self._reader = reader
        self._decoders: dict[bytes, PayloadDecoder | None] = {}

    def __call__(self, values: pa.Array) -> Decoded | None:
        """Decodes the payloads; null payloads are null. Returns None if they must be decoded record by record."""
        prefixes = pc.binary_slice(values, 0, self._size).dictionary_encode()
        found = prefixes.dictionary.to_pylist()
        if len(found) == 1 and not values.null_count:
            return self._of(found[0], values)
        return self._mixed(values, prefixes.indices, found)

    def _mixed(self, values: pa.Array, kinds: pa.Array, prefixes: list[bytes]) -> Decoded | None:
        """Decodes the rows of each prefix separately, and restores their order."""
        nulls = pc.indices_nonzero(pc.is_null(values))
        places, parts, sources = [nulls], [], [pa.nulls(len(nulls), pa.int64())]
        end, problem, used = len(values), None, 0
        joined = pa.schema([])
        for number, prefix in enumerate(prefixes):
            rows = pc.indices_nonzero(pc.equal(kinds, number))
            decoded = self._of(prefix, values.take(rows))
            if decoded is None:
                return None
            part, error = decoded
            if error is not None and rows[len(part)].as_py() < end:
                end, problem = rows[len(part)].as_py(), error
            try:
                joined = pa.unify_schemas([joined, pa.schema([("value", part.type)])], promote_options="permissive")
            except pa.ArrowException:
                if rows[0].as_py() < end:
                    end, problem = rows[0].as_py(), None
                continue
            places.append(rows[: len(part)])
            parts.append(part)
            sources.append(pa.array(range(used, used + len(part)), pa.int64()))
            used += len(part)
        order = pc.sort_indices(pa.concat_arrays(places))[:end]
        return self._joined(parts).take(pa.concat_arrays(sources).take(order)), problem

    def _joined(self, parts: list[pa.Array]) -> pa.Array:
        """Without a schema of the topic's own, writers may differ: fields that one of them lacks are null."""
        if not parts:
            return pa.nulls(0, pa.null() if self._reader is None else arrow_type(self._reader))
        if all(part.type == parts[0].type for part in parts):
            return pa.concat_arrays(parts)
        tables = [pa.table({"value": part}) for part in parts]
        merged = pa.concat_tables(tables, promote_options="permissive")["value"].combine_chunks()
        return pa.concat_arrays(merged.chunks) if isinstance(merged, pa.ChunkedArray) else merged

    def _of(self, prefix: bytes, values: pa.Array) -> Decoded | None:
        try:
            decoder = self._decoder(prefix)
        except SchemaError as error:  # the envelope names no schema, or an unknown one
            return pa.nulls(0, pa.null() if self._reader is None else arrow_type(self._reader)), error
        if decoder is None:
            return None
        decoded = decoder.decode(without_prefix(values, self._size))
        if not decoded.bad:
            return decoded.rows, None
        first = min(decoded.bad)
        return decoded.rows[:first], SchemaError(decoded.bad[first])

    def _decoder(self, prefix: bytes) -> PayloadDecoder | None:
        if prefix not in self._decoders:
            text = self._schema_text(prefix)
            try:
                decoder = PayloadDecoder(text, self._reader or parse_type(text))
            except SchemaError:
                decoder = None
            self._decoders[prefix] = decoder
        return self._decoders[prefix]
