"""The flusher by itself: what a flush syncs, how the recovery point moves, and what a snapshot covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.config.section import LONG_MAX
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import StorageError
from klamm.core.log.flusher import Flusher, PendingFlush
from klamm.core.log.segment.file_operations import OpenFile
from klamm.core.log.segment.log_segments import LogSegments
from klamm.core.log.segment.open_files import OpenFiles
from klamm.core.log.segment.segment import Segment
from klamm.core.log.state.producer_snapshots import Snapshots
from klamm.core.log.state.producer_state_manager import ProducerStateManager
from klamm.core.records.header import BatchHeader, rewrite_base
from klammtest.faulty import fault_hook
from klammtest.logs import START_MS, TP, batch

CONFIG = TopicConfig()


@pytest.fixture
def segments(tmp_path: Path) -> LogSegments:
    """Empty."""
    files = OpenFiles()
    first = Segment(TP, tmp_path, 0, CONFIG, START_MS, files, dense=True)
    return LogSegments(TP, tmp_path, [first], CONFIG, files, dense=True)


@pytest.fixture
def flusher(tmp_path: Path) -> Flusher:
    return Flusher(TP, tmp_path, 0, START_MS)


def put(segments: LogSegments, count: int) -> int:
    """So many records more; the log's end."""
    for _ in range(count):
        data = batch([b"x" * 20])
        rewrite_base(data, 0, segments.active.next_offset, 0)
        segments.active.append(data, BatchHeader.parse(data))
    return segments.active.next_offset


def synced(flusher: Flusher, pending: PendingFlush) -> list[str]:
    """The fault points of a sync."""
    passed: list[str] = []
    with fault_hook(passed.append):
        flusher.sync(pending, lambda segment: segment.file)
    return passed


def test_a_flush_syncs_what_is_not_on_disk_and_new_names_once(segments: LogSegments, flusher: Flusher) -> None:
    end = put(segments, 2)
    pending = flusher.begin(segments, end, None)
    assert synced(flusher, pending) == ["files.fsync_directory", "log.flush", "files.fsync"]
    assert flusher.recovery_point == 0
    flusher.finish(pending, end, START_MS + 5)
    assert (flusher.recovery_point, flusher.last_flush_ms) == (2, START_MS + 5)
    assert synced(flusher, flusher.begin(segments, end, None)) == []
    segments.active.seal()
    segments.roll(2, START_MS)
    end = put(segments, 1)
    assert synced(flusher, flusher.begin(segments, end, None)) == ["files.fsync_directory", "log.flush", "files.fsync"]


def test_a_name_that_is_made_during_a_flush_is_synced_by_the_next(segments: LogSegments, flusher: Flusher) -> None:
    end = put(segments, 1)
    pending = flusher.begin(segments, end, None)
    segments.active.seal()
    segments.roll(1, START_MS)
    synced(flusher, pending)
    flusher.finish(pending, end, START_MS)
    assert synced(flusher, flusher.begin(segments, end, None)) == ["files.fsync_directory"]


def test_a_segment_that_was_deleted_meanwhile_is_passed_over(segments: LogSegments, flusher: Flusher) -> None:
    pending = flusher.begin(segments, put(segments, 1), None)
    passed: list[str] = []
    with fault_hook(passed.append):
        flusher.sync(pending, lambda _: None)
    assert passed == ["files.fsync_directory"]


def test_the_recovery_point_stays_within_the_log(segments: LogSegments, flusher: Flusher) -> None:
    end = put(segments, 3)
    flusher.finish(flusher.begin(segments, end, None), 2, START_MS)
    assert flusher.recovery_point == 2
    flusher.truncate_to(1)
    assert flusher.recovery_point == 1


def test_a_failed_sync_moves_nothing(segments: LogSegments, flusher: Flusher) -> None:
    pending = flusher.begin(segments, put(segments, 1), None)

    def refuse(_: Segment) -> OpenFile | None:
        raise OSError(5, "Input/output error")

    with pytest.raises(StorageError, match="cannot flush events-0: Input/output error"):
        flusher.sync(pending, refuse)
    assert flusher.recovery_point == 0


def test_a_snapshot_says_where_recovery_begins(tmp_path: Path, segments: LogSegments, flusher: Flusher) -> None:
    producers = ProducerStateManager(TP, Snapshots(TP, tmp_path))
    assert flusher.begin(segments, 0, producers.state).snapshot is None, "an empty segment needs none"
    end = put(segments, 2)
    size = segments.active.size
    pending = flusher.begin(segments, end, producers.state)
    assert pending.snapshot is not None
    assert flusher.rescan_exceeds(size - 1, segments.active)
    flusher.write_snapshot(pending.snapshot, producers)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".index", ".log", ".snapshot", ".timeindex"]
    assert not flusher.rescan_exceeds(0, segments.active)
    put(segments, 1)
    assert flusher.rescan_exceeds(0, segments.active)
    flusher.truncate_to(0)
    assert flusher.rescan_exceeds(size, segments.active), "what it covered is gone"


def test_a_flush_is_due_by_time_or_for_a_sealed_segment(segments: LogSegments, flusher: Flusher) -> None:
    put(segments, 1)
    assert not flusher.is_due(100, segments.active, START_MS + 99)
    assert flusher.is_due(100, segments.active, START_MS + 100)
    assert flusher.is_due(100, segments.active, START_MS - 1), "the clock was set back"
    assert not flusher.is_due(LONG_MAX, segments.active, START_MS + 10**9)
    segments.active.seal()
    segments.roll(1, START_MS)
    assert flusher.is_due(LONG_MAX, segments.active, START_MS)
