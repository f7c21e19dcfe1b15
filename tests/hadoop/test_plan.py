"""Ranges, limits and tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.core.records.partition import TopicPartition
from klamm.hadoop.plan import OffsetRange, capped, split

RANGES = st.lists(st.tuples(st.integers(0, 1000), st.integers(-5, 1000)), max_size=8).map(
    lambda spans: [OffsetRange(TopicPartition("t", n), start, start + size) for n, (start, size) in enumerate(spans)]
)


@given(RANGES, st.integers(1, 5000))
def test_a_limit_is_kept_exactly_and_every_share_begins_at_its_start(ranges: list[OffsetRange], limit: int) -> None:
    total = sum(r.size for r in ranges)
    shares = capped(ranges, limit)
    assert sum(r.size for r in shares) == min(total, limit)
    for whole, share in zip(ranges, shares, strict=True):
        assert (share.partition, share.start) == (whole.partition, whole.start)
        assert share.size <= whole.size
    assert capped(ranges, None) == ranges


@given(RANGES, st.none() | st.integers(1, 20), st.none() | st.integers(1, 300))
def test_tasks_tile_their_ranges(ranges: list[OffsetRange], tasks: int | None, largest: int | None) -> None:
    found = split(ranges, tasks, largest)
    for r in ranges:
        mine = [t for t in found if t.partition == r.partition]
        assert sum(t.size for t in mine) == r.size
        position = r.start
        for task in mine:
            assert task.start == position
            assert task.size > 0
            assert largest is None or task.size <= largest
            position = task.end


def test_tasks_are_one_per_partition_unless_asked_for_more() -> None:
    ranges = [OffsetRange(TopicPartition("t", n), 0, size) for n, size in enumerate((100, 300, 0))]
    assert len(split(ranges)) == 2
    assert [t.size for t in split(ranges, min_tasks=4)] == [100, 100, 100, 100]
    assert len(split(ranges, max_offsets=50)) == 8
