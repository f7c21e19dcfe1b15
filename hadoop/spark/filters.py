"""Filters of a query that a batch read applies itself: records that they exclude are not fetched.

Filters on topic, partition and offset are applied completely. A lower bound of the timestamp moves the start to the
first record at or after it, which the broker can find; Spark filters the rows that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
)

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.reader.range_reader import OffsetRange

from .cluster import first_at

_MAX_OFFSET: Final = 2**63 - 1
_Compared = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_HOLDS: Final[dict[type[Filter], Callable[[object, object], bool]]] = {
    EqualTo: lambda left, right: left == right,
    EqualNullSafe: lambda left, right: left == right,
    GreaterThan: lambda left, right: left > right,  # type: ignore[operator]
    GreaterThanOrEqual: lambda left, right: left >= right,  # type: ignore[operator]
    LessThan: lambda left, right: left < right,  # type: ignore[operator]
    LessThanOrEqual: lambda left, right: left <= right,  # type: ignore[operator]
}


@dataclass
class PushedFilters:
    """The filters that a read applies. `since_ms`: records before it are excluded."""

    first: int = 0
    end: int = _MAX_OFFSET
    since_ms: int | None = None
    names: list[Filter] = field(default_factory=list)
    """Filters on topics and partitions."""

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Takes filters; returns those that Spark must apply."""
        return [one for one in filters if not self._takes(one)]

    def _takes(self, one: Filter) -> bool:
        """Accepts a filter; returns True if it is applied completely."""
        column, kinds = _column(one), {"topic": str, "partition": int}
        if column in kinds and _is_known(one, kinds[column]):
            self.names.append(one)
            return True
        if column == "offset" and isinstance(one, _Compared) and _is(one.value, int):
            return self._offset(one)
        if column == "timestamp" and isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual):
            self._timestamp(one.value)
        return False

    def _offset(self, one: _Compared) -> bool:
        value = one.value
        if isinstance(one, EqualTo | EqualNullSafe | GreaterThanOrEqual):
            self.first = max(self.first, value)
        if isinstance(one, GreaterThan):
            self.first = max(self.first, value + 1)
        if isinstance(one, EqualTo | EqualNullSafe | LessThanOrEqual):
            self.end = min(self.end, value + 1)
        if isinstance(one, LessThan):
            self.end = min(self.end, value)
        return True

    def _timestamp(self, value: object) -> None:
        if isinstance(value, datetime) and value.tzinfo is not None:
            # rounded down: the row's timestamp may be in the same millisecond as the bound
            since_ms = int(value.timestamp() // 0.001)
            self.since_ms = since_ms if self.since_ms is None else max(self.since_ms, since_ms)

    def narrow(self, client: ClusterClient, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Returns the parts of the ranges that are not excluded."""
        kept = [self._within(r) for r in ranges if all(_holds(one, r) for one in self.names)]
        if self.since_ms is None or self.since_ms <= 0:
            return kept
        found = first_at(client, {r.partition: self.since_ms for r in kept if r.size})
        starts = {tp: offset if offset >= 0 else _MAX_OFFSET for tp, offset in found.items()}
        return [replace(r, start=min(max(r.start, starts.get(r.partition, 0)), r.end)) for r in kept]

    def _within(self, range_: OffsetRange) -> OffsetRange:
        end = max(min(range_.end, self.end), range_.start)
        return replace(range_, start=min(max(range_.start, self.first), end), end=end)


def _column(one: Filter) -> str:
    inner = one.child if isinstance(one, Not) else one
    attribute: tuple[str, ...] = getattr(inner, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_known(one: Filter, kind: type) -> bool:
    inner = one.child if isinstance(one, Not) else one
    if isinstance(inner, In):
        return all(_is(value, kind) for value in inner.value)
    return type(inner) in _HOLDS and _is(inner.value, kind)  # type: ignore[attr-defined]


def _holds(one: Filter, range_: OffsetRange) -> bool:
    if isinstance(one, Not):
        return not _holds(one.child, range_)
    tp = range_.partition
    given: object = tp.topic if _column(one) == "topic" else tp.partition
    if isinstance(one, In):
        return given in one.value
    return _HOLDS[type(one)](given, one.value)  # type: ignore[attr-defined]
