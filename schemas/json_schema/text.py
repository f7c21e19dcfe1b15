"""JSON texts: read without loss of numbers, printed compact.

A number that is no integer is a `JsonNumber`, which keeps how it was written: `1.10` stays `1.10`, and 10^400 is no
infinity.
"""

from __future__ import annotations

import json
from typing import Any, Final

from klamm.core.errors import SchemaError

from ..java_json import java_order

MAX_TEXT: Final = 1024 * 1024
"""Characters of a schema."""
MAX_DEPTH: Final = 128
"""Objects and arrays within each other: `jsonschema` needs several calls for each."""
MAX_OBJECTS: Final = 10_000
"""Objects in a schema: `jsonschema` needs up to 0.25 ms for each."""


class JsonNumber(float):
    """A number with a fraction or an exponent. `text` is how it was written."""

    text: str

    def __new__(cls, text: str) -> JsonNumber:
        made = super().__new__(cls, text)
        made.text = text
        return made


def load(text: str) -> Any:
    """Returns the value of a JSON text. Raises `SchemaError` if it is none or beyond the limits."""
    if len(text) > MAX_TEXT:
        raise SchemaError(f"a schema of {len(text)} characters; the limit is {MAX_TEXT}")
    try:
        value = json.loads(text, parse_float=JsonNumber, parse_constant=_refuse)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise SchemaError(f"not JSON: {str(error)[:200]}") from error
    _check_size(value)
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def _too_deep() -> SchemaError:
    return SchemaError(f"nested deeper than {MAX_DEPTH} objects and arrays")


def _check_size(value: Any) -> None:
    level, objects, depth = [value], 0, 0
    while level:
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                objects += 1
                inner.extend(part.values())
            elif isinstance(part, list):
                inner.extend(part)
        level = [part for part in inner if isinstance(part, dict | list)]
        depth += bool(level)
        if depth >= MAX_DEPTH:
            raise _too_deep()
    if objects > MAX_OBJECTS:
        raise SchemaError(f"{objects} objects in a schema; the limit is {MAX_OBJECTS}")


def frozen(value: Any) -> Any:
    """Returns a hashable value that is equal for equal JSON values: 1 equals 1.0, and not true."""
    if isinstance(value, dict):
        return frozenset((key, frozen(part)) for key, part in value.items())
    if isinstance(value, list):
        return tuple(frozen(part) for part in value)
    return (bool, value) if isinstance(value, bool) else value


def dump(value: Any, *, sort_keys: bool = False) -> str:
    """Returns the compact text of a value of `load`. Sorted keys are in Java's order of strings (UTF-16)."""
    if isinstance(value, dict):
        keys = sorted(value, key=java_order) if sort_keys else value
        return f"{{{','.join(f'{_string(key)}:{dump(value[key], sort_keys=sort_keys)}' for key in keys)}}}"
    if isinstance(value, list):
        return f"[{','.join(dump(part, sort_keys=sort_keys) for part in value)}]"
    if isinstance(value, JsonNumber):
        return value.text
    return _string(value)


def _string(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
