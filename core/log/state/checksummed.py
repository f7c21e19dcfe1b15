"""Small text files of the log, each with a checksum: a flipped bit is noticed, never believed.

Kafka's text follows the version 1; the last line is `crc32c ` and the CRC-32C of all before it, eight hex digits.
Version 0 is what Kafka and older brokers wrote, without that line: it is read, and replaced by the next write.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

VERSION: Final = "1"
_UNSEALED: Final = "0"
_MARK: Final = b"crc32c "
_TAIL: Final = len(_MARK) + 8 + 1


def seal(text: str) -> bytes:
    """`text`, which ends with a newline, and the checksum's line."""
    raw = text.encode()
    return raw + _MARK + b"%08x\n" % crc32c(raw)


def unseal(raw: bytes) -> bytes:
    """What `seal` was given; `ValueError` when it is not whole."""
    body, tail = raw[:-_TAIL], raw[-_TAIL:]
    if tail != _MARK + b"%08x\n" % crc32c(body):
        raise ValueError("its checksum is wrong or missing")
    return body


def versioned_lines(raw: bytes) -> list[str]:
    """The lines behind the one with the version; `ValueError` when the file is not whole or of another version."""
    version, _, rest = raw.partition(b"\n")
    if version == VERSION.encode():
        rest = unseal(raw).partition(b"\n")[2]
    elif version != _UNSEALED.encode():
        raise ValueError(f"version {version[:20].decode(errors='replace')!r}, not {VERSION} or {_UNSEALED}")
    return rest.decode("ascii").split("\n")[:-1]


def properties(raw: bytes, separator: str) -> dict[str, str]:
    """Lines of name and value, each with a newline; `ValueError` for anything else."""
    lines = raw.decode("ascii").split("\n")
    if lines.pop():
        raise ValueError("its last line is cut off")
    rows = [line.partition(separator) for line in lines]
    return {name: value for name, _, value in rows}
