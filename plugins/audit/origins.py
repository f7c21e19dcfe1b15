"""Whose records are they? The headers that audited producers add, and what the broker tier reads from them."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Final

from klamm.core.records.pure import Column
from klamm.core.records.record import Headers
from klamm.plugins.audit.event import FOREIGN, UNATTRIBUTED

HOST_HEADER: Final = "klamm.host"
APPLICATION_HEADER: Final = "klamm.application"
PRODUCER_HEADER: Final = "klamm.producer"


def origins(ends: bytes, names: Column, values: Column) -> str | list[str]:
    """The source of each record, or one for all, of the header columns that `native.columns` makes. A batch comes from
    one client: mostly all headers are the same, which is found out without an object for each of them."""
    begins = _int32(ends)
    rows = len(begins) - 1
    if rows < 1 or begins[-1] == 0:
        return FOREIGN
    each = begins[1]
    same = each and begins == array("i", range(0, each * rows + 1, each))
    if same and _repeats(names, each, rows) and _repeats(values, each, rows):
        return origin(_headers(0, each, names, values))
    return [origin(_headers(begin, end, names, values)) for begin, end in pairwise(begins)]


def _int32(data: bytes) -> array[int]:
    found = array("i")
    found.frombytes(data)
    return found


def _repeats(column: Column, each: int, rows: int) -> bool:
    """Whether it holds the same `each` items for every row."""
    nulls, offsets, data = column
    at = _int32(offsets)
    length = at[each]
    if nulls is not None or len(data) != length * rows:
        return False
    if length == 0:
        return True
    begins = (
        array("i", range(at[n], at[n] + length * rows, length)) == at[n : each * rows : each] for n in range(each)
    )
    return all(begins) and data == data[:length] * rows


def _headers(begin: int, end: int, names: Column, values: Column) -> Headers:
    """Null values are empty here."""
    name_at, value_at = (_int32(column[1][4 * begin : 4 * (end + 1)]) for column in (names, values))
    spans = zip(pairwise(name_at), pairwise(value_at), strict=True)
    return tuple((names[2][n:m].decode(errors="replace"), values[2][v:w]) for (n, m), (v, w) in spans)


def origin(headers: Headers) -> str:
    """The producer that sent a record: its own header is the last of that name, for a record that is sent on may still
    have that of its first sender."""
    audited = False
    for name, value in reversed(headers):
        if name == PRODUCER_HEADER and value:
            return value.decode(errors="replace")
        audited = audited or name == APPLICATION_HEADER
    return UNATTRIBUTED if audited else FOREIGN
