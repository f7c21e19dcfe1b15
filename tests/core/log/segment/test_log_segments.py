"""The list of segments by itself: finding, rolling, deleting, truncating, and gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.config.sections.topic import TopicConfig
from klamm.core.log.segment.log_segments import LogSegments
from klamm.core.log.segment.naming import OFFSET_GAPS
from klamm.core.log.segment.open_files import OpenFiles
from klamm.core.log.segment.reading import BrokenChainError
from klamm.core.log.segment.segment import Segment
from klamm.core.records.header import BatchHeader, iter_headers, rewrite_base
from klammtest.logs import START_MS, TP, batch

CONFIG = TopicConfig()


def put(segment: Segment, offset: int) -> None:
    """One record."""
    data = batch([b"%03d" % offset])
    rewrite_base(data, 0, offset, 0)
    segment.append(data, BatchHeader.parse(data))


def filled(directory: Path, bases: tuple[int, ...] = (0, 3, 6)) -> LogSegments:
    """Segments of three records."""
    files = OpenFiles()
    first = Segment(TP, directory, bases[0], CONFIG, START_MS, files, dense=True)
    segments = LogSegments(TP, directory, [first], CONFIG, files, dense=True)
    for base in bases:
        if base != first.base_offset:
            segments.active.seal()
            segments.roll(base, START_MS)
        for offset in range(base, base + 3):
            put(segments.active, offset)
    return segments


def offsets(segments: LogSegments, offset: int, bound: int, max_bytes: int = 1 << 20) -> list[int]:
    found = segments.extents(offset, bound, max_bytes, cached_only=False)
    data = b"".join(extent.file.read(extent.end - extent.start, extent.start) for extent in found)
    return [header.base_offset for _, header in iter_headers(data)]


def test_the_active_segment_is_the_last_one(tmp_path: Path) -> None:
    segments = filled(tmp_path)
    assert [segment.base_offset for segment in segments] == [0, 3, 6]
    assert (len(segments), segments.first_offset, segments.active.base_offset) == (3, 0, 6)
    assert segments.size == sum(path.stat().st_size for path in tmp_path.glob("*.log"))
    assert segments.take_directory_changed()
    assert not segments.take_directory_changed()
    rolled = segments.roll(9, START_MS)
    assert segments.active is rolled
    assert segments.take_directory_changed()
    assert rolled in segments


def test_extents_go_from_an_offset_to_a_bound_over_segments(tmp_path: Path) -> None:
    segments = filled(tmp_path)
    assert offsets(segments, 0, 9) == list(range(9))
    assert offsets(segments, 4, 8) == [4, 5, 6, 7]
    assert offsets(segments, 8, 8) == []
    size = segments.active.size // 3
    assert offsets(segments, 2, 9, size) == [2], "a segment that reaches the limit is the last one"
    assert offsets(segments, 2, 9, size + 1) == [2, 3, 4, 5]


def test_a_gap_ends_what_is_read_and_then_refuses(tmp_path: Path) -> None:
    segments = filled(tmp_path, (0, 5))
    assert offsets(segments, 1, 8) == [1, 2]
    with pytest.raises(BrokenChainError, match="offsets 3 to 4 are damaged or missing"):
        segments.extents(3, 8, 100, cached_only=False)
    segments.allow_gaps()
    assert (tmp_path / OFFSET_GAPS).exists()
    assert offsets(segments, 1, 8) == [1, 2, 5, 6, 7]
    assert not segments.dense
    assert not segments.roll(10, START_MS)._dense


def test_sealed_segments_end_at_or_below_the_offset(tmp_path: Path) -> None:
    segments = filled(tmp_path)
    first, second, _ = segments
    assert segments.sealed(9) == segments.sealed(6) == [first, second]
    assert segments.sealed(5) == [first]
    assert [segments.base_after(offset) for offset in (-1, 0, 5, 6)] == [0, 3, 6, None]


def test_only_sealed_neighbours_can_be_replaced(tmp_path: Path) -> None:
    segments = filled(tmp_path)
    first, second, active = segments
    other = Segment(TP, tmp_path, 3, CONFIG, START_MS, OpenFiles(), ".cleaned")
    assert segments.holds_sealed([first, second])
    assert segments.holds_sealed([second])
    assert not segments.holds_sealed([active])
    assert not segments.holds_sealed([first, active])
    assert not segments.holds_sealed([other])


def test_deleted_segments_leave_files_until_their_time(tmp_path: Path) -> None:
    segments = filled(tmp_path)
    segments.delete_oldest(2, 1000)
    assert [segment.base_offset for segment in segments] == [6]
    assert segments.deleted_files(999) == []
    due = segments.deleted_files(1000)
    assert sorted(due) == sorted(tmp_path.glob("*.deleted"))
    assert len(due) == 6
    segments.forget_deleted(due, 999)
    assert segments.deleted_files(2000) == due, "deleted again since then, under the same names"
    segments.forget_deleted(due[:2], 1000)
    assert segments.deleted_files(2000) == due[2:]
    segments.forget_deleted(due, 2000)
    assert segments.deleted_files(2000) == []


def test_truncation_moves_the_active_segment_back(tmp_path: Path) -> None:
    segments = filled(tmp_path)
    segments.truncate_to(4)
    assert (len(segments), segments.active.base_offset, segments.active.next_offset) == (2, 3, 4)
    assert not list(tmp_path.glob(f"{6:020d}*"))
    put(segments.active, 4)
    assert offsets(segments, 0, 5) == [0, 1, 2, 3, 4]
    segments.truncate_to(0)
    assert (len(segments), segments.active.next_offset, segments.size) == (1, 0, 0)
