"""A follower appends a run of batches at once: its indexes lead to the same batches as the leader's."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.log.partition_log import PartitionLog
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import iter_headers
from klammtest.logs import START_MS, open_log


def stored(log: PartitionLog, runs: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Appends runs of batches, each of so many records with this timestamp in ms; returns the offset and timestamp of
    each record."""
    records: list[tuple[int, int]] = []
    for run in runs:
        data = b""
        for count, stamp in run:
            data += encode_batch([(stamp, None, b"x" * 20, ())] * count, base_offset=len(records))
            records += [(len(records) + n, stamp) for n in range(count)]
        log.append_as_follower(data, 0)
    log.advance_high_watermark(log.log_end_offset)
    return records


RUNS = st.lists(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3)), min_size=4, max_size=12), min_size=3)


@given(RUNS, st.sampled_from([100, 300, 600]), st.booleans())
@settings(max_examples=60)
def test_every_offset_and_time_is_found(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[tuple[int, int]]], interval: int, again: bool
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = open_log(directory, index_interval_bytes=interval)
    # The largest timestamp grows from run to run, so that the time index gets entries.
    records = stored(log, [[(count, START_MS + 2 * n + age) for count, age in run] for n, run in enumerate(runs)])
    if again:
        log.close()
        log = open_log(directory, index_interval_bytes=interval)
        log.advance_high_watermark(log.log_end_offset)
    # Times first: a lookup by offset rebuilds indexes that it finds wrong.
    for wanted in range(START_MS, START_MS + 2 * len(runs) + 4):
        found = log.offset_for_timestamp(wanted)
        expected = next((offset for offset, stamp in records if stamp >= wanted), None)
        assert (None if found is None else found.offset) == expected
    largest = max(stamp for _, stamp in records)
    newest = log.offset_of_largest_timestamp()
    assert newest is not None
    assert (newest.timestamp_ms, newest.offset) == (largest, next(o for o, stamp in records if stamp == largest))
    for offset, _ in reversed(records):  # a read leaves a hint for the one that goes on
        first = next(header for _, header in iter_headers(log.read(offset, 1).data))
        assert first.base_offset <= offset <= first.last_offset
    log.close()


def test_an_index_entry_within_a_run_is_not_taken_for_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path, index_interval_bytes=1000)
    records = stored(log, [[(1, START_MS)] * 40, [(1, START_MS)] * 40])
    with caplog.at_level(logging.WARNING):
        for offset in reversed(range(len(records))):
            assert log.read(offset, 1).data
    assert not caplog.records


def test_the_first_record_of_a_time_is_found_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """Records of one ms are in many batches: an entry that named the run's last one would skip those before it."""
    log = open_log(tmp_path, index_interval_bytes=1000)
    one, two = START_MS + 1, START_MS + 2
    stored(log, [[(1, START_MS)] * 30, [(1, one)] * 5, [(1, two)] * 4 + [(1, one)] * 5])
    for stamp, offset in ((one, 30), (two, 35)):
        found = log.offset_for_timestamp(stamp)
        assert found is not None
        assert found.offset == offset
    newest = log.offset_of_largest_timestamp()
    assert newest is not None
    assert newest.offset == 35


def test_a_run_that_is_written_at_once_rolls_its_segments_by_size(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=100, segment_bytes=1000)
    records = stored(log, [[(1, START_MS + n)] * 40 for n in range(3)])
    sizes = [file.stat().st_size for file in sorted(tmp_path.rglob("*.log"))]
    assert all(700 < size <= 1000 for size in sizes[:-1]), sizes
    assert all(log.read(offset, 1).data for offset, _ in records)


def test_a_run_that_is_written_at_once_rolls_its_segments_when_an_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=100, segment_index_bytes=8 * 5)
    records = stored(log, [[(1, START_MS)] * 40])
    log.close()
    indexes = [file.stat().st_size for file in sorted(tmp_path.rglob("*.index"))]
    assert len(indexes) > 3
    assert max(indexes) <= min(indexes[:-1]) + 8, "as many entries as each may have"
    log = open_log(tmp_path, index_interval_bytes=100, segment_index_bytes=8 * 5)
    log.advance_high_watermark(log.log_end_offset)
    assert all(log.read(offset, 1).data for offset, _ in records)
