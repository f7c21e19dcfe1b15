"""Plans which offsets a read covers, how many of them one load takes, and how they are split into tasks.

All of this is decided before anything is read: Spark may run a task a second time, and it must then read the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.records.partition import TopicPartition


def capped(ranges: Sequence[OffsetRange], limit: int | None) -> list[OffsetRange]:
    """Returns ranges of at most `limit` offsets in total, each partition's share from its beginning; all offsets if it
    is None.
    """
    total = sum(r.size for r in ranges)
    if limit is None or total <= limit:
        return list(ranges)
    shares = [limit * r.size // total for r in ranges]
    # Rounding's remainder goes to the largest fractions, so that a limit of 1 still makes progress.
    by_fraction = sorted(range(len(ranges)), key=lambda i: (-(limit * ranges[i].size % total), i))
    for i in by_fraction[: limit - sum(shares)]:
        shares[i] += 1
    return [replace(r, end=r.start + share) for r, share in zip(ranges, shares, strict=True)]


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """The most that is read of a topic: `records`, which are counted by their offsets, and `bytes` of its log. None: no
    limit.
    """

    records: int | None = None
    bytes: int | None = None

    def records_at_most(self, records: int) -> LoadLimits:
        return replace(self, records=records if self.records is None else min(self.records, records))

    def without(self, records: int, bytes_: int) -> LoadLimits:
        """Returns the remaining limits after these amounts; they are `exhausted` if nothing remains."""
        return LoadLimits(
            None if self.records is None else max(self.records - records, 0),
            None if self.bytes is None else max(self.bytes - bytes_, 0),
        )

    @property
    def exhausted(self) -> bool:
        return self.records == 0 or self.bytes == 0


Densities = Mapping[TopicPartition, Sequence[float | None]]
"""Bytes of the log per offset, at evenly spaced places of a range from its start; None where unknown."""


def capped_bytes(ranges: Sequence[OffsetRange], densities: Densities, limit: int) -> tuple[list[OffsetRange], int]:
    """Returns ranges of about `limit` bytes in total, each partition's share from its beginning with at least one
    offset, and the estimated number of bytes."""
    sizes = [_parts(r, densities.get(r.partition, ())) for r in ranges]
    total = sum(size for parts in sizes for _, size in parts)
    if total <= limit:
        return list(ranges), round(total)
    shares = [_prefix(parts, limit / total * sum(size for _, size in parts)) for parts in sizes]
    if not any(shares):
        shares[next(i for i, r in enumerate(ranges) if r.size)] = 1
    return [replace(r, end=r.start + share) for r, share in zip(ranges, shares, strict=True)], limit


def _parts(range_: OffsetRange, densities: Sequence[float | None]) -> list[tuple[int, float]]:
    """Returns the pieces of the range: offsets and bytes of each. An unknown density is replaced by the mean of the
    others.
    """
    known = [density for density in densities if density is not None]
    if not known or not range_.size:
        return [(range_.size, 0.0)]
    mean = sum(known) / len(known)
    edges = [range_.size * i // len(densities) for i in range(len(densities) + 1)]
    lengths = (high - low for low, high in pairwise(edges))
    found = zip(lengths, densities, strict=True)
    return [(length, length * (mean if density is None else density)) for length, density in found]


def _prefix(parts: Sequence[tuple[int, float]], limit: float) -> int:
    """Returns the number of offsets from the beginning that make up `limit` bytes."""
    offsets = 0
    for length, size in parts:
        if size > limit:
            return offsets + int(length * limit / size)
        offsets, limit = offsets + length, limit - size
    return offsets


def split(
    ranges: Iterable[OffsetRange], min_tasks: int | None = None, max_offsets: int | None = None
) -> list[OffsetRange]:
    """Splits the ranges into tasks: about `min_tasks` of even size, none above `max_offsets`; one per range unless
    these require more.
    """
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
