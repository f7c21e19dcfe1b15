"""Sizes and times with a unit, as people write them: `10g`, `1GB`, `90s`, `7d`.

A key of size or time is known by its name (`retention.ms`, `log.retention.hours`, `segment.bytes`). Units of size are
powers of 1024 in each spelling (`g`, `GB`, `GiB`), as in Spark, Hadoop and the JVM; pydantic's `ByteSize` reads 1GB as
1,000,000,000.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["in_digits", "in_unit_of", "parse_size", "parse_time", "unit_of"]

_SIZES: Final = {letter: 1 << 10 * power for power, letter in enumerate(("", "k", "m", "g", "t"))}
_TIMES_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_KEYS_OF_TIME: Final = {"ms": 1, "seconds": 1000, "minutes": 60_000, "hours": 3_600_000}
"""The last part of a key's name, and its unit in ms."""
_KEYS_OF_SIZE: Final = (
    "batch.size",
    "body.size",
    "buffer.memory",
    "buffer.size",
    "file.size",
    "request.size",
    "throttled.rate",
)
"""Endings of names of keys of size that do not contain `bytes`."""
_QUANTITY: Final = re.compile(r"(\d+)\s*([A-Za-z]*)", re.ASCII)
_SIZE_UNIT: Final = re.compile(r"([kmgt]?)(i?b)?", re.ASCII)
_MOST_DIGITS: Final = 19


def in_digits(text: str) -> bool:
    """Returns False for what only Python reads as a number: `1_000`, and digits of other scripts."""
    return text.isascii() and "_" not in text


def parse_size(text: str) -> int:
    """Returns the bytes of a size such as `128m`, `10g` or `1GB`. Raises `ValueError` with the valid forms."""
    number, unit = _parts(text)
    match = _SIZE_UNIT.fullmatch(unit.lower())
    if number is None or match is None or unit.lower() == "ib":
        raise ValueError(f"expected bytes, or a size such as 512k, 128m or 10g, got {text!r}")
    return number * _SIZES[match[1]]


def parse_time(text: str, unit: str = "ms") -> int:
    """Returns a time such as `90s`, `36h` or `7d` in `unit` (`ms`, `seconds`, `minutes`, `hours`), which is also the
    unit of a number alone. Raises `ValueError` with the valid forms, also if the time is no whole number of units."""
    number, given = _parts(text)
    factor = _KEYS_OF_TIME[unit] if given == "" else _TIMES_MS.get(given.lower())
    if number is None or factor is None or number * factor % _KEYS_OF_TIME[unit]:
        examples = "36h or 7d" if unit == "hours" else "90m or 7d" if unit == "minutes" else "90s, 36h or 7d"
        raise ValueError(f"expected a whole number of {unit}, or a time such as {examples}, got {text!r}")
    return number * factor // _KEYS_OF_TIME[unit]


def unit_of(key: str) -> str | None:
    """Returns the unit of a key, by its name: `bytes`, `ms`, `seconds`, `minutes` or `hours`; None if it has none."""
    last = key.rpartition(".")[2]
    if last in _KEYS_OF_TIME:
        return last
    return "bytes" if "bytes" in key.split(".") or key.endswith(_KEYS_OF_SIZE) else None


def in_unit_of(key: str, value: Any) -> Any:
    """Returns the value of a key as a number, if it is a text with a unit and the key is one of size or time; any
    other value unchanged. Raises `ValueError` for a text that is neither a number nor a size or time."""
    unit = unit_of(key)
    if unit is None or not isinstance(value, str) or _is_number(value):
        return value
    return parse_size(value) if unit == "bytes" else parse_time(value, unit)


def _parts(text: str) -> tuple[int | None, str]:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or len(match[1]) > _MOST_DIGITS:
        return None, ""
    return int(match[1]), match[2]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
