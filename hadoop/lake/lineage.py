"""Finds the column of an older load that a column of the newest load was, by name or by an alias in the schema of a
load in between.

A *chain* has the Avro types of one column, that of the newest load first and that of the older load last; it is empty
where a load's manifest has no schema (raw values), and then names alone decide. Rules:

- A field of the newer schema is the older schema's field of the same name, else the one that it has as an alias, unless
  the newer schema has a field of that name itself (Avro 1.12, "Aliases"). From load to load: a field that was renamed
  twice is found although the last schema names only the second name.
- A column that the newest schema has dropped is followed from the newest schema that has it.
- Columns without such a link are the same if their names are, in any case: Spark and Hive do not distinguish them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from klamm.schemas.avro.model import AvroField, AvroType

Chain = tuple[AvroType, ...]
_TIMES = ("timestamp-millis", "timestamp-micros")


class ColumnSource(NamedTuple):
    """A column of an older load, and the chain of its types."""

    name: str
    chain: Chain


def sources(wanted: Sequence[str], there: Sequence[str], chain: Chain) -> dict[str, ColumnSource]:
    """Returns for each of the `wanted` columns that an older load has its column `there`."""
    found: dict[str, ColumnSource] = {}
    records = inner_chain(chain, "record")
    for name in wanted:
        source = _traced(records, name)
        if source is not None and source.name in there:
            found[name] = source
    left = {name for name in there if name not in {source.name for source in found.values()}}
    for form in (str, str.lower):
        for name in wanted:
            match = next((each for each in there if each in left and form(each) == form(name)), None)
            if name not in found and match is not None:
                found[name] = ColumnSource(match, ())
                left.discard(match)
    return found


def inner_chain(chain: Chain, kind: str) -> Chain:
    """Returns the chain of these types without null; empty if one of them is not of this kind."""
    plain = tuple(map(_without_null, chain))
    return plain if all(avro.kind == kind for avro in plain) else ()


def item_chain(chain: Chain, kind: str) -> Chain:
    """Returns the chain of the items of arrays, or of the values of maps."""
    return tuple(avro.inner for avro in inner_chain(chain, kind))


def time_unit(chain: Chain) -> str | None:
    """Returns the logical type whose units the numbers of the older load count: that of the oldest schema which has
    one; None if none has."""
    logical = (_without_null(avro).logical for avro in reversed(chain))
    return next((name for name in logical if name in _TIMES), None)


def is_date(chain: Chain) -> bool:
    """Returns whether the numbers of the older load count days."""
    return any(_without_null(avro).logical == "date" for avro in chain)


def _without_null(avro: AvroType) -> AvroType:
    return avro.values[0] if avro.kind == "union" and len(avro.values) == 1 else avro


def _traced(records: Chain, name: str) -> ColumnSource | None:
    found: list[AvroField] = []
    own: set[str] = set()
    """Of the next newer schema: it has fields of these names."""
    for record in records:
        fields = {field.name: field for field in record.fields}
        if found and name not in fields:
            name = next((alias for alias in found[-1].aliases if alias in fields and alias not in own), "")
        if name in fields:
            found.append(fields[name])
        elif found:
            return None
        own = {*fields}
    return ColumnSource(name, tuple(field.type for field in found)) if found else None
