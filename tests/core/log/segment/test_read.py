"""Reading: whole batches, limits, isolation, holes, many segments, many threads."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import CorruptRecordError, KlammError, StorageError
from klamm.core.log.errors import OffsetOutOfRangeError
from klamm.core.log.partition_log import LogRead, PartitionLog, ReadIsolation
from klamm.core.log.segment.log_segments import LogSegments
from klamm.core.log.segment.open_files import OpenFiles
from klamm.core.log.segment.reading import Extent
from klamm.core.log.segment.segment import Segment
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import HEADER_SIZE, iter_headers
from klammtest.logs import START_MS, append, batch, clean_start, open_log, read_all, records_of


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    """Offsets 0-29 in batches of 3."""
    log = open_log(tmp_path)
    for n in range(10):
        append(log, batch([b"%d" % (n * 3 + i) for i in range(3)]))
    return log


SIZE = len(batch([b"00"] * 3))


def bases(data: bytes) -> list[int]:
    return [header.base_offset for _, header in iter_headers(data)]


def test_a_fetch_in_the_middle_of_a_batch_gives_the_whole_batch(log: PartitionLog) -> None:
    assert bases(log.read(4, 1).data) == [3]


def test_at_least_one_batch_however_small_the_limit(log: PartitionLog) -> None:
    for limit in (0, 1, 30, 61, 70):
        assert bases(log.read(6, limit).data) == [6]
        assert log.read(6, limit, min_one=False).data == b""


def test_only_whole_batches_within_the_limit(log: PartitionLog) -> None:
    whole = log.read(0, 1 << 20).data
    first = next(iter_headers(whole))[1].size
    assert bases(log.read(0, first * 2 + 1).data) == [0, 3]
    assert bases(log.read(0, 1 << 20).data) == list(range(0, 30, 3))


def test_a_reader_a_run_behind_the_end_is_served_without_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, position = open_log(tmp_path), 0
    monkeypatch.setattr(Segment, "_find", lambda *_: pytest.fail("searched batch by batch"))
    for n in range(1, 401):
        append(log, batch([b"one"]))
        if n % 20 == 0:
            assert bases(log.read(position, 1 << 20, isolation=ReadIsolation.LOG_END).data)[0] == position
            position = n


def test_reading_at_the_end_is_empty_and_beyond_is_out_of_range(log: PartitionLog) -> None:
    assert log.read(30, 100).data == b""
    for offset in (31, -1):
        with pytest.raises(OffsetOutOfRangeError, match=r"not in \[0, 30\]"):
            log.read(offset, 100)


def test_isolation(log: PartitionLog) -> None:
    log.append_as_leader(batch([b"unseen"]), 0)
    assert bases(log.read(27, 1 << 20).data) == [27]
    assert bases(log.read(27, 1 << 20, isolation=ReadIsolation.COMMITTED).data) == [27]
    assert bases(log.read(27, 1 << 20, isolation=ReadIsolation.LOG_END).data) == [27, 30]
    assert log.read(30, 1 << 20).data == b""
    assert log.read(31, 1 << 20).data == b"", "between the watermark and the end there is nothing yet"
    found = log.read(0, 10)
    assert (found.high_watermark, found.log_start_offset, found.last_stable_offset) == (30, 0, 30)


def test_the_watermark_only_grows_and_stays_within_the_log(log: PartitionLog) -> None:
    shown = []
    log.on_visible = shown.append
    log.append_as_leader(batch(), 0)
    log.advance_high_watermark(5)
    assert log.high_watermark == 30
    assert shown == []
    log.advance_high_watermark(1000)
    assert log.high_watermark == 31
    assert shown == [log.tp]


def test_holes_are_passed_over(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=200)
    for base in (0, 5, 40, 41, 100):
        raw = bytearray(encode_batch([(START_MS, None, b"x" * 50, ())], base_offset=base))
        log.append_as_follower(raw, 0)
    log.advance_high_watermark(log.log_end_offset)
    assert log.segment_count > 1
    for offset, base in ((1, 5), (5, 5), (6, 40), (42, 100), (99, 100)):
        assert bases(log.read(offset, 1).data) == [base]
    assert [r.offset for r in read_all(log)] == [0, 5, 40, 41, 100]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(0, 3000), st.sampled_from([1500, 10**6]))
@settings(max_examples=60)
def test_every_offset_is_found_whatever_the_shape(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int, segment_bytes: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = open_log(directory, segment_bytes=segment_bytes, index_interval_bytes=100)
    for n, size in enumerate(sizes):
        append(log, batch([b"v" * size] * (n % 3 + 1)))
    end = log.log_end_offset
    for offset in range(end):
        data = log.read(offset, limit).data
        headers = [header for _, header in iter_headers(data)]
        assert sum(header.size for header in headers) == len(data)
        assert headers[0].base_offset <= offset <= headers[0].last_offset
        assert len(data) <= limit or len(headers) == 1
    assert [r.offset for r in read_all(log, max_bytes=limit)] == list(range(end))
    log.close()


def test_one_read_goes_over_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    for _ in range(10):
        append(log, batch([b"x" * 100]))
    assert log.segment_count >= 5
    assert bases(log.read(0, 1 << 20).data) == list(range(10))
    assert len(bases(log.read(2, 500).data)) == 500 // len(batch([b"x" * 100]))


def test_cached_reads_are_the_same_or_none(log: PartitionLog) -> None:
    found = log.read_cached(4, 500)
    assert found is None or found == log.read(4, 500)
    empty = log.read_cached(30, 500)
    assert empty is not None
    assert empty.data == b""


def test_cached_reads_follow_a_reader_through_old_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=3000, index_interval_bytes=100)
    for n in range(60):
        append(log, batch([b"x" * 100], timestamp_ms=START_MS + n))
    log.close(clean=False)
    log = open_log(tmp_path, segment_bytes=3000, index_interval_bytes=100)
    log.advance_high_watermark(60)
    assert log.read_cached(10, 100) is None, "an old segment's index is on disk"
    at = 10
    while at < 60:
        found = log.read_cached(at, 500) or log.read(at, 500)
        assert bases(found.data)[0] == at
        at = bases(found.data)[-1] + 1


def test_few_files_are_open_however_many_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300, files=OpenFiles(9))
    for n in range(60):
        append(log, batch([b"x" * 100], timestamp_ms=START_MS + n))
    assert log.segment_count >= 30
    before = open_below(tmp_path)
    for offset in range(60):
        assert bases(log.read(offset, 1).data) == [offset]
        found = log.offset_for_timestamp(START_MS + offset)
        assert found is not None
        assert found.offset == offset
    log.flush()
    assert open_below(tmp_path) <= before
    log.close(clean=False)
    assert open_below(tmp_path) <= before - 8
    again = open_log(tmp_path)
    assert open_below(tmp_path) <= before
    assert len(read_all(again)) == 60


def open_below(folder: Path) -> int:
    """Returns how many files below the folder this process has open; other threads of it may open others meanwhile."""
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was closed
            found += fd.readlink().is_relative_to(folder)
    return found


def test_a_damaged_length_in_the_file_is_an_error_not_a_loop(log: PartitionLog) -> None:
    path = log.directory / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[8:12] = (0).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=r"0\.log, byte 0: the batch at offset 0 has 12 bytes"):
        log.read(0, 100)


def test_readers_beside_a_writer_and_retention(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=2000, retention_bytes=10_000, file_delete_delay_ms=0)
    done = Event()

    def follow() -> int:
        at, seen = 0, 0
        while True:
            last = done.is_set()
            try:
                data = log.read(at, 3000).data
            except OffsetOutOfRangeError:
                at = log.log_start_offset
                continue
            for record in records_of(data):
                assert record.value == b"%06d" % record.offset
                seen += 1
            for _, header in iter_headers(data):
                at = header.next_offset
            if last and at >= log.high_watermark:
                return seen

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(follow) for _ in range(3)]
        try:
            for n in range(1500):
                append(log, batch([b"%06d" % (n * 2), b"%06d" % (n * 2 + 1)]))
                if n % 50 == 0:
                    log.apply_retention(START_MS)
                    log.remove_expired_files(START_MS)
        finally:
            done.set()
        assert all(reader.result(timeout=60) > 0 for reader in readers)
    assert log.log_start_offset > 0


def test_a_watermark_that_rises_during_a_read_is_not_returned_without_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader takes what is missing below the watermark for removed by compaction."""
    log = open_log(tmp_path)
    for _ in range(2):
        log.append_as_leader(batch(), 0)
    log.advance_high_watermark(1)
    extents = LogSegments.extents

    def advance(segments: LogSegments, *given: Any, **more: Any) -> list[Extent]:
        found = extents(segments, *given, **more)
        log.advance_high_watermark(2)
        return found

    monkeypatch.setattr(LogSegments, "extents", advance)
    assert log.read(1, 1 << 20) == LogRead(b"", 1, 0, 1)
    monkeypatch.undo()
    assert log.read(1, 1 << 20).high_watermark == 2


def test_a_disk_that_cannot_be_read_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    for _ in range(5):
        append(log, batch())
    log.flush()
    log = open_log(tmp_path, known=clean_start(log))

    break_sector(monkeypatch, 0)
    with pytest.raises(StorageError, match=r"cannot read .*\.log: Input/output error"):
        log.read(3, 1 << 20)


def break_sector(monkeypatch: pytest.MonkeyPatch, at: int, *, base_offset: int = 0) -> None:
    """From now on the byte `at` of a segment cannot be read: a read of bytes before it returns those, as the kernel
    does, and the next one fails."""
    pread, name = os.pread, f"{base_offset:020d}.log"

    def fail(fd: int, count: int, pos: int) -> bytes:
        if pos <= at < pos + count and Path(f"/proc/self/fd/{fd}").readlink().name == name:
            if pos == at:
                raise OSError(errno.EIO, "Input/output error")
            return pread(fd, at - pos, pos)
        return pread(fd, count, pos)

    monkeypatch.setattr(os, "pread", fail)


@pytest.mark.parametrize("at", ["the first byte", "the header", "the records"])
@pytest.mark.parametrize("opened", ["growing", "sealed", "again"])
def test_a_read_returns_the_batches_before_a_bad_sector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, opened: str
) -> None:
    """A log that was opened again finds offsets by the index, which has an entry for each batch here."""
    size = len(batch())
    config = {"segment_bytes": 10 * size, "index_interval_bytes": 1}
    log = open_log(tmp_path, **config)
    for _ in range(8 if opened == "growing" else 12):
        append(log, batch())
    if opened == "again":
        log.close()
        log = open_log(tmp_path, known=clean_start(log), **config)
    into = {"the first byte": 0, "the header": 30, "the records": HEADER_SIZE + 1}[at]
    break_sector(monkeypatch, 5 * size + into)
    for offset in range(5):
        assert bases(log.read(offset, 1 << 20).data) == list(range(offset, 5))
    assert bases(log.read(3, 2 * size).data) == [3, 4]
    assert bases(log.read(3, 1).data) == [3]
    for max_bytes in (1, size, 1 << 20):
        with pytest.raises(StorageError, match="Input/output error"):
            log.read(5, max_bytes)
    assert bases(log.read(6, 1 << 20).data)[:2] == [6, 7]


def test_a_search_ends_before_a_bad_sector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an entry of the index it reads headers from the start, many at a time."""
    log = open_log(tmp_path)
    for _ in range(8):
        append(log, batch())
    log.close()
    log = open_log(tmp_path, known=clean_start(log))
    break_sector(monkeypatch, 5 * len(batch()) + HEADER_SIZE)
    for offset in range(5):
        assert bases(log.read(offset, 1 << 20).data) == list(range(offset, 5))
    with pytest.raises(StorageError, match="Input/output error"):
        log.read(5, 1 << 20)


def test_a_read_over_two_segments_ends_before_a_bad_sector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, segment_bytes=4 * len(batch()))
    for _ in range(6):
        append(log, batch())
    break_sector(monkeypatch, 0, base_offset=4)
    assert bases(log.read(1, 1 << 20).data) == [1, 2, 3]
    with pytest.raises(StorageError, match="Input/output error"):
        log.read(4, 1 << 20)


def test_a_search_that_meets_a_damaged_batch_and_a_bad_sector_fails_for_its_offset_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another error than Klamm's would end the connection of a follower, which fetches other partitions, too."""
    log = open_log(tmp_path)
    for _ in range(20):
        append(log, batch())
    log.close()
    size = len(batch())
    with (log.directory / "00000000000000000000.log").open("r+b") as stored:
        stored.seek(3 * size)
        stored.write(bytes(HEADER_SIZE))

    break_sector(monkeypatch, 5 * size)
    log = open_log(tmp_path, known=clean_start(log))
    with pytest.raises(KlammError):
        log.read(4, 1)
    assert [bases(log.read(offset, 1).data)[0] for offset in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(("damaged", "index"), [(None, True), (8, True), (None, False)])
def test_a_sector_that_cannot_be_read_hides_no_other_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: int | None, index: bool
) -> None:
    """No later one, also beside a damaged batch, and after a clean stop, which writes the index; without an index no
    earlier one."""
    log = open_log(tmp_path, index_interval_bytes=1)
    for _ in range(20):
        append(log, batch())
    log.close()
    size = len(batch())
    if damaged is not None:
        with (log.directory / "00000000000000000000.log").open("r+b") as stored:
            stored.seek(damaged * size)
            stored.write(bytes(HEADER_SIZE))

    break_sector(monkeypatch, 5 * size)
    for _ in range(2):
        log = open_log(tmp_path, known=clean_start(log), index_interval_bytes=1)
        if not index:
            os.truncate(log.directory / "00000000000000000000.index", 0)
        for offset in {5, damaged or 5}:
            with pytest.raises(StorageError, match="Input/output error"):
                log.read(offset, 1)
        found = range((damaged or 5) + 1, 20) if index else range(5)
        assert [bases(log.read(offset, 1).data)[0] for offset in found] == list(found)
        if not index:
            return
        log.close()
