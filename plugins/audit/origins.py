"""Whose records are they? The headers that audited producers add, and what the broker tier reads from them."""

from __future__ import annotations

from typing import Final

from klamm.core.records.record import Headers
from klamm.core.records.varint import read_varint
from klamm.plugins.audit.event import FOREIGN, UNATTRIBUTED

HOST_HEADER: Final = "klamm.host"
APPLICATION_HEADER: Final = "klamm.application"
PRODUCER_HEADER: Final = "klamm.producer"


def origin_of(headers: bytes) -> str:
    """The producer of records with these headers, as `native.window_counts` gives them."""
    found: list[tuple[str, bytes | None]] = []
    pos = 0
    while pos < len(headers):
        n, pos = read_varint(headers, pos)
        name = headers[pos : pos + n].decode()
        n, pos = read_varint(headers, pos + n)
        found.append((name, None if n < 0 else headers[pos : pos + n]))
        pos += max(n, 0)
    return origin(tuple(found))


def origin(headers: Headers) -> str:
    """The producer that sent a record: its own header is the last of that name, for a record that is sent on may still
    have that of its first sender."""
    audited = False
    for name, value in reversed(headers):
        if name == PRODUCER_HEADER and value:
            return value.decode(errors="replace")
        audited = audited or name == APPLICATION_HEADER
    return UNATTRIBUTED if audited else FOREIGN
