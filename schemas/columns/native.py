"""pyruhvro, behind a check that proves it can: a list of types that the tests decode with it and with fastavro.

It panics on what it does not know (`bytes`, `fixed`, decimal, uuid, times of day, local timestamps), with an
exception that no `except Exception` catches, and drops time zones (design D13).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from klamm.core.errors import SchemaError

from .avrotype import AvroType

try:
    import pyruhvro
except ModuleNotFoundError:  # of the extra `arrow`; without it fastavro does all
    pyruhvro = None

_PLAIN: Final = frozenset({"boolean", "int", "long", "float", "double", "string", "enum"})
_LOGICAL: Final = frozenset({("int", "date"), ("long", "timestamp-millis"), ("long", "timestamp-micros")})


def can_decode(avro: AvroType) -> bool:
    """Whether pyruhvro decodes this top-level type right. Everything that the tests have not shown is refused."""
    return pyruhvro is not None and avro.kind == "record" and _proven(avro)


def _proven(avro: AvroType) -> bool:
    if avro.logical and (avro.kind, avro.logical) not in _LOGICAL:
        return False
    if avro.kind in _PLAIN:
        return True
    if avro.kind in ("array", "map"):
        return _proven(avro.inner)
    if avro.kind == "record":
        return bool(avro.fields) and all(_proven(field.type) for field in avro.fields)
    if avro.kind == "union":
        return len(avro.branches) == 2 and len(avro.values) == 1 and _proven(avro.values[0])
    return False


def decode(payloads: pa.Array, text: str, target: pa.StructType) -> pa.StructArray | None:
    """Avro bytes of a schema that `can_decode` has passed, as `target`. `SchemaError` if one of them cannot be read.

    None when what was read does not make the same bytes again: pyruhvro passes over bytes after the payload and wraps
    numbers that are too long, so the caller must look closer.
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
    same = again.equals(payloads)
    return pa.StructArray.from_arrays(columns, fields=list(target)) if same else None


def _as(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Nullability and time zones as `wanted` has them; milliseconds beyond Arrow's microseconds are an error, and so is
    text that is no UTF-8, which pyruhvro lets through."""
    column.validate(full=True)
    return column if column.type == wanted else column.cast(wanted)


def fields(text: str) -> pa.Schema:
    """The columns that `encode` takes for a schema that `can_decode` has passed."""
    return pyruhvro.avro_to_arrow_schema(text)


def encode(rows: pa.StructArray, text: str, wanted: pa.Schema) -> pa.Array | None:
    """The payloads of rows without null that are of `arrow_type`; None where pyruhvro does not take them."""
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
