"""Rolling segments and letting them go, by a clock that the test moves."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from klamm.core.log.errors import OffsetOutOfRangeError
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.segment.segment import Segment
from klamm.core.log.validation import Validator
from klamm.core.records.header import crc_of, set_crc
from klammtest.guarantees import guarantee
from klammtest.logs import START_MS, ManualClock, append, batch, open_log, read_all

HOUR_MS = 3_600_000
SIZE = len(batch([b"x" * 100]))


def add(log: PartitionLog, count: int = 1, *, timestamp_ms: int = START_MS) -> None:
    for _ in range(count):
        append(log, batch([b"x" * 100], timestamp_ms=timestamp_ms))


def names(log: PartitionLog, suffix: str) -> list[int]:
    return sorted(int(path.name[:20]) for path in log.directory.iterdir() if path.name.endswith(suffix))


def test_roll_by_size(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=3 * SIZE)
    add(log, 7)
    assert names(log, ".log") == [0, 3, 6]
    assert all((log.directory / f"{base:020d}.log").stat().st_size <= 3 * SIZE for base in (0, 3, 6))


def test_roll_by_record_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_ms=HOUR_MS)
    add(log, timestamp_ms=START_MS - 10 * HOUR_MS)
    add(log, timestamp_ms=START_MS - 9 * HOUR_MS)
    assert log.segment_count == 1
    add(log, timestamp_ms=START_MS - 9 * HOUR_MS + 1)
    assert log.segment_count == 2
    add(log, timestamp_ms=START_MS - 20 * HOUR_MS)
    assert log.segment_count == 2, "a late record makes no segment"


def test_roll_by_the_clock_where_records_have_no_time(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, segment_ms=HOUR_MS)
    add(log, timestamp_ms=-1)
    clock.advance(HOUR_MS)
    add(log, timestamp_ms=-1)
    assert log.segment_count == 1
    clock.advance(1)
    add(log, timestamp_ms=-1)
    assert log.segment_count == 2


def test_roll_by_record_time_after_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_ms=HOUR_MS)
    add(log, timestamp_ms=START_MS - 5 * HOUR_MS)
    log.close(clean=False)
    again = open_log(tmp_path, segment_ms=HOUR_MS)
    add(again)
    assert again.segment_count == 2


def test_roll_when_an_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=0, segment_index_bytes=4 * 12)
    for n in range(20):
        add(log, timestamp_ms=START_MS + n)
    assert log.segment_count > 4
    for suffix in (".index", ".timeindex"):
        assert all(path.stat().st_size <= 4 * 12 + 60 for path in log.directory.glob(f"*{suffix}"))


def test_retention_by_time_takes_whole_old_segments(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, segment_bytes=2 * SIZE, retention_ms=10 * HOUR_MS, file_delete_delay_ms=1000)
    for age in (30, 20, 15, 5, 4, 3):
        add(log, timestamp_ms=START_MS - age * HOUR_MS)
    assert log.apply_retention(clock()) == 1, "the second segment has a record of 5 hours"
    assert (log.log_start_offset, names(log, ".log")) == (2, [2, 4])
    with pytest.raises(OffsetOutOfRangeError):
        log.read(1, 100)
    assert [r.offset for r in read_all(log)] == [2, 3, 4, 5]
    clock.advance(5 * HOUR_MS)
    assert log.apply_retention(clock()) == 0
    clock.advance(1)
    assert log.apply_retention(clock()) == 1


def test_files_go_after_the_delay(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, segment_bytes=SIZE, retention_bytes=SIZE, file_delete_delay_ms=1000)
    add(log, 3)
    assert log.apply_retention(clock()) == 2
    assert names(log, ".log.deleted") == [0, 1]
    assert log.remove_expired_files(clock() + 999) == 0
    assert log.remove_expired_files(clock() + 1000) >= 2
    assert names(log, ".deleted") == []


def test_a_reader_finishes_although_the_segment_goes(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=SIZE, retention_bytes=SIZE, file_delete_delay_ms=0)
    add(log, 3)
    extents, *_ = log._plan(0, 1 << 20, isolation=log_end())
    log.apply_retention(START_MS)
    log.remove_expired_files(START_MS)
    assert all(len(extent.file.read(SIZE, extent.start)) == SIZE for extent in extents)


def log_end() -> object:
    from klamm.core.log.partition_log import ReadIsolation

    return ReadIsolation.LOG_END


def test_retention_by_size(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=2 * SIZE, retention_bytes=5 * SIZE)
    add(log, 9)
    assert log.apply_retention(START_MS) == 2
    assert (log.log_start_offset, log.size) == (4, 5 * SIZE)
    log.reconfigure(log.config.model_copy(update={"retention_bytes": 0}))
    log.apply_retention(START_MS)
    assert log.log_start_offset == 8, "the segment that is written stays"


def test_everything_old_rolls_first(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, retention_ms=HOUR_MS)
    add(log, 3)
    clock.advance(HOUR_MS + 1)
    assert log.apply_retention(clock()) == 1
    assert (log.log_start_offset, log.log_end_offset, log.size) == (3, 3, 0)
    assert log.apply_retention(clock()) == 0, "an empty segment stays"
    add(log, timestamp_ms=clock())
    assert [r.offset for r in read_all(log)] == [3]
    log.close(clean=False)
    assert open_log(tmp_path, clock).log_end_offset == 4


@pytest.mark.parametrize("config", [{"retention_ms": -1}, {"cleanup_policy": "compact"}])
def test_what_is_never_deleted(tmp_path: Path, config: dict[str, object]) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, segment_bytes=SIZE, **config)
    add(log, 5)
    clock.advance(10**12)
    assert log.apply_retention(clock()) == 0


def test_records_above_the_watermark_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=SIZE, retention_bytes=0)
    for _ in range(4):
        log.append_as_leader(batch([b"x" * 100]), 0)
    assert log.apply_retention(START_MS) == 0
    log.advance_high_watermark(2)
    assert log.apply_retention(START_MS) == 2


def test_without_timestamps_the_file_s_age_counts(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    log = open_log(tmp_path, clock, segment_bytes=SIZE, retention_ms=HOUR_MS)
    add(log, 3, timestamp_ms=-1)
    now_ms = int((log.directory / f"{0:020d}.log").stat().st_mtime * 1000)
    assert log.apply_retention(now_ms) == 0
    assert log.apply_retention(now_ms + HOUR_MS * 2) == 3


def test_epochs_begin_where_the_log_does(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=SIZE, retention_bytes=SIZE)
    for n in range(6):
        append(log, batch([b"x" * 100]), leader_epoch=n // 2)
    log.apply_retention(START_MS)
    assert log.log_start_offset == 5
    assert log.end_offset_for_epoch(2) == (2, 6)
    assert log.end_offset_for_epoch(0) == (0, 5)


def header_says(data: bytearray, max_timestamp: int) -> bytearray:
    """The batch with another maxTimestamp in its header, and the CRC that goes with it."""
    struct.pack_into(">q", data, 35, max_timestamp)
    set_crc(data, 0, crc_of(data, 0, len(data)))
    return data


def believe_the_header(patch: pytest.MonkeyPatch) -> None:
    def largest(segment: Segment) -> int:
        stamp = segment.largest.timestamp_ms
        return stamp if stamp >= 0 else segment.modified_ms()

    patch.setattr(Segment, "retention_time_ms", largest)
    patch.setattr(Validator, "verifies", lambda *_: False)


@guarantee("D17", "records without a timestamp stay as long as their file is young", plant=believe_the_header)
@pytest.mark.parametrize("corrected", [True, False])
def test_records_without_a_timestamp_are_as_old_as_their_file(
    tmp_path: Path, corrected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka writes maxTimestamp 0 where the records have -1; brokers up to now stored it so."""
    if not corrected:
        monkeypatch.setattr(Validator, "verifies", lambda *_: False)
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, header_says(batch([b"x" * 100], timestamp_ms=-1), 0))
    written_ms = (log.directory / f"{0:020d}.log").stat().st_mtime_ns // 1_000_000
    assert log.apply_retention(written_ms + log.config.retention_ms) == 0
    assert [record.timestamp_ms for record in read_all(log)] == [-1, -1, -1]
    assert log.apply_retention(written_ms + log.config.retention_ms + 1) == 1


def test_a_segment_of_records_without_a_timestamp_is_rolled_by_the_clock(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_ms=HOUR_MS)
    append(log, header_says(batch([b"x"], timestamp_ms=-1), 0))
    add(log, 2)
    assert log.segment_count == 1
