"""Small text files of the log, each with a checksum that detects a flipped bit.

Version 1 is Kafka's text and a last line: `crc32c ` and the CRC-32C of all bytes before the line, eight hex digits.
"""

from __future__ import annotations

from typing import Final

from ...records.native import crc32c

VERSION: Final = "1"

_MARK: Final = b"crc32c "
_TAIL: Final = len(_MARK) + 8 + 1


def seal(text: str) -> bytes:
    """Returns `text`, which must end with a newline, and the line with the checksum."""
    raw = text.encode()
    return raw + _MARK + b"%08x\n" % crc32c(raw)


def unseal(raw: bytes) -> bytes:
    """Returns the text before the line with the checksum; `ValueError` if the checksum is wrong or missing."""
    body, tail = raw[:-_TAIL], raw[-_TAIL:]
    if tail != _MARK + b"%08x\n" % crc32c(body):
        raise ValueError("its checksum is wrong or missing")
    return body


def versioned_lines(raw: bytes) -> list[str]:
    """Returns the lines after the version; `ValueError` if the checksum is wrong or the version is unknown."""
    version = raw.partition(b"\n")[0]
    if version != VERSION.encode():
        raise ValueError(f"version {version[:20].decode(errors='replace')!r}, not {VERSION}")
    return unseal(raw).decode("ascii").split("\n")[1:-1]


def properties(raw: bytes, separator: str) -> dict[str, str]:
    """Returns names and values from lines of both; `ValueError` if the last line has no newline."""
    lines = raw.decode("ascii").split("\n")
    if lines.pop():
        raise ValueError("its last line is incomplete")
    rows = [line.partition(separator) for line in lines]
    return {name: value for name, _, value in rows}
