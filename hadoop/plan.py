"""Which offsets a read covers, and how they are cut into tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from klamm.core.records.partition import TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) of a partition. They may have holes: `size` is no number of records."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


def capped(ranges: Sequence[OffsetRange], limit: int | None) -> list[OffsetRange]:
    """At most `limit` offsets in all, each partition giving its share from its beginning; None: all of them."""
    total = sum(r.size for r in ranges)
    if limit is None or total <= limit:
        return list(ranges)
    shares = [limit * r.size // total for r in ranges]
    # What rounding left over goes to the largest fractions, so that a limit of 1 still moves on.
    by_fraction = sorted(range(len(ranges)), key=lambda i: (-(limit * ranges[i].size % total), i))
    for i in by_fraction[: limit - sum(shares)]:
        shares[i] += 1
    return [replace(r, end=r.start + share) for r, share in zip(ranges, shares, strict=True)]


def split(
    ranges: Iterable[OffsetRange], min_tasks: int | None = None, max_offsets: int | None = None
) -> list[OffsetRange]:
    """Tasks: about `min_tasks` of even size, none above `max_offsets`; one per range unless these ask for more."""
    wanted = [r for r in ranges if r.size]
    total = sum(r.size for r in wanted)
    tasks: list[OffsetRange] = []
    for r in wanted:
        parts = 1
        if max_offsets is not None:
            parts = -(-r.size // max_offsets)
        if min_tasks is not None and min_tasks > len(wanted):
            parts = max(parts, round(min_tasks * r.size / total))
        tasks += _cut(r, min(parts, r.size))
    return tasks


def _cut(range_: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [range_.start + range_.size * i // parts for i in range(parts + 1)]
    return [replace(range_, start=low, end=high) for low, high in pairwise(edges)]
