"""Whose records are they? The headers that audited producers add, and what the broker tier reads from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.core.records.record import Headers
from klamm.plugins.audit.event import FOREIGN, UNATTRIBUTED

HOST_HEADER: Final = "klamm.host"
APPLICATION_HEADER: Final = "klamm.application"
PRODUCER_HEADER: Final = "klamm.producer"


def origins(headers: Sequence[Headers]) -> str | list[str]:
    """The source of each record, or one for all. A batch comes from one client: mostly all headers are the same, which
    `count` finds out without a loop in Python."""
    if not headers:
        return FOREIGN
    if headers.count(headers[0]) == len(headers):
        return origin(headers[0])
    return [origin(each) for each in headers]


def origin(headers: Headers) -> str:
    """The producer that sent a record: its own header is the last of that name, for a record that is sent on may still
    have that of its first sender."""
    audited = False
    for name, value in reversed(headers):
        if name == PRODUCER_HEADER and value:
            return value.decode(errors="replace")
        audited = audited or name == APPLICATION_HEADER
    return UNATTRIBUTED if audited else FOREIGN
