"""Ranges, limits and tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.load.planning.pace import Pace
from klamm.hadoop.load.planning.plan import LoadLimits, capped, capped_bytes, split

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


@given(RANGES, st.lists(st.none() | st.floats(1, 1000), min_size=1, max_size=8), st.integers(1, 2_000_000))
def test_a_limit_of_bytes_is_kept_by_the_densities_and_moves_on(
    ranges: list[OffsetRange], densities: list[float | None], limit: int
) -> None:
    known = {r.partition: densities for r in ranges}
    shares, size = capped_bytes(ranges, known, limit)
    assert size <= limit
    for whole, share in zip(ranges, shares, strict=True):
        assert (share.partition, share.start) == (whole.partition, whole.start)
        assert share.size <= whole.size
    assert any(share.size for share in shares) == any(r.size for r in ranges)
    again, less = capped_bytes(shares, {}, limit)
    assert (again, less) == (shares, 0)


def test_bytes_are_taken_where_they_lie() -> None:
    """The first half of partition 0 is ten times as large as the second; partition 1 has one byte for each offset."""
    whole = [OffsetRange(TopicPartition("t", n), 0, 100) for n in range(2)]
    densities = {whole[0].partition: [10.0, 1.0], whole[1].partition: [None, 1.0]}
    shares, _ = capped_bytes(whole, densities, 325)
    assert [r.end for r in shares] == [27, 50]
    assert capped_bytes(whole, densities, 650) == (whole, 650)


def test_limits_are_used_up_load_by_load() -> None:
    limits = LoadLimits(records=10, bytes=100).without(4, 30)
    assert limits == LoadLimits(6, 70)
    assert limits.records_at_most(9) == limits
    assert limits.records_at_most(2) == LoadLimits(2, 70)
    assert not limits.exhausted
    assert limits.without(1, 90).exhausted
    assert limits.without(7, 0).exhausted
    assert LoadLimits().without(5, 5) == LoadLimits()


def test_a_run_takes_what_half_of_its_time_is_enough_for() -> None:
    now = [0.0]
    pace = Pace(100.0, 800, lambda: now[0])
    assert pace.next() == 800
    now[0] = 20.0
    pace.took(800, 20.0)
    assert pace.next() == 1600
    now[0] = 60.0
    pace.took(1600, 40.0)
    assert pace.next() == 800
    now[0] = 96.0
    pace.took(800, 36.0)
    assert pace.next() is None
    now[0] = 100.0
    assert Pace(100.0, 800, lambda: now[0]).next() is None
