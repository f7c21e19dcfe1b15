"""pyruhvro, used only for types that it decodes correctly: those of a list that the tests decode with it and with
fastavro.

pyruhvro panics on types that it does not know (`bytes`, `fixed`, decimal, uuid, times of day, local timestamps), with
an exception that `except Exception` does not catch, and drops time zones (design D13).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from klamm.core.errors import SchemaError

from ..avro.model import NAME, AvroType
from .apply import map_entries, repeats

try:
    import pyruhvro
except ModuleNotFoundError:  # from the extra `arrow`; without it fastavro decodes everything
    pyruhvro = None

_MAX_DEPTH: Final = 16
"""Types within each other: the Arrow types that pyruhvro exports may be nested 64 deep, a map counting twice."""
_PLAIN: Final = frozenset({"boolean", "int", "long", "float", "double", "string", "enum"})
_LOGICAL: Final = frozenset({("int", "date"), ("long", "timestamp-millis"), ("long", "timestamp-micros")})


def can_decode(avro: AvroType) -> bool:
    """Returns True if pyruhvro decodes this top-level type correctly. A type that the tests do not cover is refused."""
    return pyruhvro is not None and avro.kind == "record" and _proven(avro, _MAX_DEPTH)


def _proven(avro: AvroType, depth: int) -> bool:
    if depth < 0:
        return False
    if avro.logical and (avro.kind, avro.logical) not in _LOGICAL:
        return False
    if not all(map(NAME.fullmatch, _names(avro))):
        return False  # its parser refuses what others have written
    if len(set(avro.symbols)) < len(avro.symbols):
        return False
    if avro.kind in _PLAIN:
        return True
    if avro.kind in ("array", "map"):
        return _proven(avro.inner, depth - 1)
    if avro.kind == "record":
        return bool(avro.fields) and all(_proven(field.type, depth - 1) for field in avro.fields)
    if avro.kind == "union":
        return len(avro.branches) == 2 and len(avro.values) == 1 and _proven(avro.values[0], depth - 1)
    return False


def _names(avro: AvroType) -> list[str]:
    own = avro.name.split(".") if avro.name else []
    return [*own, *avro.symbols, *(field.name for field in avro.fields)]


def decode(payloads: pa.Array, text: str, target: pa.StructType) -> pa.StructArray | None:
    """Decodes payloads of the schema `text`, which `can_decode` has passed, to the columns `target`.

    Raises `SchemaError` if a payload cannot be read. Returns None if the rows do not encode to the same bytes again;
    the caller then decodes with fastavro. pyruhvro ignores bytes after the payload and wraps numbers that are too
    long, and a map may have a key twice.
    """
    try:
        batch = pyruhvro.deserialize_array(payloads.to_pylist(), text)
        columns = [_as(column, field.type) for column, field in zip(batch.columns, target, strict=True)]
        (again,) = pyruhvro.serialize_record_batch(batch, text, 1)
    except Exception as error:
        raise SchemaError(str(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise SchemaError(f"pyruhvro panicked: {error}") from error
    same = again.equals(payloads) and not any(map(_has_repeated_keys, columns))
    return pa.StructArray.from_arrays(columns, fields=list(target)) if same else None


def _has_repeated_keys(array: pa.Array) -> bool:
    """Returns True if a map has a key twice, of which the last counts; pyruhvro keeps both."""
    kind = array.type
    if pa.types.is_map(kind):
        offsets, keys, items = map_entries(array)
        return repeats(offsets, keys) or _has_repeated_keys(items)
    if pa.types.is_struct(kind):
        return any(map(_has_repeated_keys, array.flatten()))
    return pa.types.is_list(kind) and _has_repeated_keys(array.flatten())


def _as(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Sets nullability and time zones as in `wanted`. Milliseconds beyond the range of Arrow's microseconds are an
    error, and so is text that is not UTF-8, which pyruhvro accepts."""
    column.validate(full=True)
    return column if column.type == wanted else column.cast(wanted)


def fields(text: str) -> pa.Schema:
    """The columns that `encode` accepts for a schema that passes `can_decode`."""
    return pyruhvro.avro_to_arrow_schema(text)


def encode(rows: pa.StructArray, text: str, wanted: pa.Schema) -> pa.Array | None:
    """Returns the payloads of rows without null that are of `arrow_type`; None if pyruhvro does not accept them."""
    try:
        columns = [c.cast(field.type) for c, field in zip(rows.flatten(), wanted, strict=True)]
        (payloads,) = pyruhvro.serialize_record_batch(pa.RecordBatch.from_arrays(columns, schema=wanted), text, 1)
    except Exception:
        return None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None
    return payloads if len(payloads) == len(rows) else None
