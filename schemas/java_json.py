"""JSON as Jackson prints it, without white space: the form that Java's Avro and Confluent's registry store and compare
byte for byte. Only control characters of a text are escaped; a float is printed as by `Double.toString`."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final

_CONTROL: Final = re.compile(r'[\x00-\x1f"\\]')
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_PLAIN: Final = (-3, 6)
"""The powers of ten between which Java writes a double without an exponent."""


def dumps(value: Any) -> str:
    """Returns the text of a value that `json.loads` can have returned."""
    if isinstance(value, str):
        return f'"{_CONTROL.sub(_escape, value)}"'
    if isinstance(value, dict):
        return f"{{{','.join(f'{dumps(name)}:{dumps(part)}' for name, part in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(dumps, value))}]"
    if isinstance(value, float):
        return _double(value)
    return json.dumps(value)


def java_order(text: str) -> bytes:
    """Returns a key by which texts are sorted as Java sorts them, by UTF-16."""
    return text.encode("utf-16-be", "surrogatepass")


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04X}"


def _double(value: float) -> str:
    if math.isnan(value) or math.isinf(value):
        return f'"{"NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}"'
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    power = len(text) + exponent - 1
    """The power of ten of the first digit."""
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    if not _PLAIN[0] <= power <= _PLAIN[1]:
        return f"{minus}{text[0]}.{text[1:] or '0'}E{power}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{text}"
    whole, rest = text[: power + 1].ljust(power + 1, "0"), text[power + 1 :]
    return f"{minus}{whole}.{rest or '0'}"
