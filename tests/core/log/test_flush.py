"""Flush policy: what consumers see, when a flush is due, and what a failed write or fsync does."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from klamm.core import faults
from klamm.core.errors import StorageError
from klamm.core.faults import ScriptedFaults
from klamm.core.log.errors import LogClosedError
from klamm.core.log.partition_log import AppendResult
from klammtest.logs import ManualClock, append, batch, open_log, read_all


@pytest.fixture
def script() -> Iterator[object]:
    """Install rules, gone after the test."""

    def install(rules: str) -> ScriptedFaults:
        hook = ScriptedFaults(rules)
        faults.install(hook)
        return hook

    yield install
    faults.install(None)


def test_without_a_policy_records_are_seen_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    assert (log.high_watermark, log.recovery_point) == (1, 0)
    log.flush()
    assert log.recovery_point == 1


def test_flush_messages_flushes_within_the_append(tmp_path: Path) -> None:
    log = open_log(tmp_path, flush_messages=3)
    shown = []
    log.on_visible = shown.append
    assert log.append_may_block(batch())
    append(log, batch([b"a", b"b"]))
    assert (log.recovery_point, log.high_watermark, shown) == (0, 0, [])
    append(log, batch([b"c"]))
    assert (log.recovery_point, log.high_watermark, set(shown)) == (3, 3, {log.tp})


def test_flush_ms_holds_records_back_until_flushed(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, flush_ms=1000)
    shown = []
    log.on_visible = shown.append
    append(log, batch([b"a"]))
    assert log.read(0, 1000).data == b""
    assert not log.flush_is_due(clock.now_ms + 999)
    assert log.flush_is_due(clock.now_ms + 1000)
    clock.advance(1000)
    log.flush()
    assert (log.high_watermark, shown) == (1, [log.tp])
    assert log.read(0, 1000).data
    clock.advance(5000)
    assert not log.flush_is_due(clock()), "nothing new"


def test_a_flush_is_told_where_the_followers_were_faster(tmp_path: Path) -> None:
    """A leader's own end is its flushed end: once it has flushed, it may be the last that the watermark waits for."""
    log = open_log(tmp_path, flush_messages=100)
    shown = []
    log.on_visible = shown.append
    log.append_as_leader(batch([b"a"]), 0)
    log.advance_high_watermark(log.reported_end_offset)  # both followers have reported 1
    log.flush()
    assert (log.high_watermark, log.reported_end_offset, shown) == (0, 1, [log.tp])


def test_what_a_crash_left_unflushed_is_seen_after_the_start(tmp_path: Path) -> None:
    log = open_log(tmp_path, flush_messages=100)
    append(log, batch([b"a", b"b"]))
    assert log.high_watermark == 0
    log.close(clean=False)
    again = open_log(tmp_path, flush_messages=100)
    again.advance_high_watermark(again.log_end_offset)
    assert (again.recovery_point, again.high_watermark) == (2, 2)


def test_a_flush_does_not_show_what_replicas_lack(tmp_path: Path) -> None:
    log = open_log(tmp_path, flush_ms=1000)
    log.append_as_leader(batch(), 0)
    log.flush()
    assert log.high_watermark == 0


def test_sealed_segments_are_flushed_whatever_the_policy(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    append(log, batch([b"x" * 100]))
    assert not log.flush_is_due(0)
    append(log, batch([b"x" * 200]))
    assert log.segment_count == 2
    assert log.flush_is_due(0)


def test_a_full_disk_stores_nothing_and_the_log_goes_on(tmp_path: Path, script: object) -> None:
    log = open_log(tmp_path)
    append(log, batch([b"a"]))
    for point in ("log.append.before_write", "log.append.after_write"):
        script(f"{point}=ENOSPC")  # type: ignore[operator]
        with pytest.raises(StorageError, match="No space left"):
            log.append_as_leader(batch([b"b"], producer=(1, 0, 0)), 0)
        assert (log.log_end_offset, log.offline) == (1, None)
    result = log.append_as_leader(batch([b"c"], producer=(1, 0, 0)), 0)
    assert (result.base_offset, result.duplicate) == (1, False)
    assert [r.value for r in read_all(log)] == [b"a", b"c"]


def test_a_write_that_cannot_be_undone_takes_the_log_offline(
    tmp_path: Path, script: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    append(log, batch([b"a"]))

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    script("log.append.after_write=EIO")  # type: ignore[operator]
    monkeypatch.setattr("klamm.core.log.segment.file_operations.os.ftruncate", refuse)
    with pytest.raises(StorageError):
        log.append_as_leader(batch([b"b"]), 0)
    assert log.offline is not None
    with pytest.raises(LogClosedError, match="offline"):
        log.append_as_leader(batch([b"c"]), 0)
    monkeypatch.undo()
    log.close()
    again = open_log(tmp_path)
    assert [r.value for r in read_all(again)] == [b"a", b"b"], "unknown to the producer, whole on disk"


def test_a_failed_fsync_takes_the_log_offline(tmp_path: Path, script: object) -> None:
    log = open_log(tmp_path, flush_ms=10)
    append(log, batch())
    script("files.fsync=EIO")  # type: ignore[operator]
    with pytest.raises(StorageError, match=r"cannot flush events-0: .*Input/output error"):
        log.flush()
    assert log.recovery_point == 0
    assert log.high_watermark == 0
    with pytest.raises(LogClosedError, match="a flush failed"):
        log.append_as_leader(batch(), 0)
    log.close()
    assert open_log(tmp_path).log_end_offset == 1


@pytest.mark.parametrize("point", ["files.write", "files.rename", "files.fsync"])
def test_a_new_epoch_that_cannot_be_noted_stores_nothing(tmp_path: Path, script: object, point: str) -> None:
    log = open_log(tmp_path)
    append(log, batch([b"a"]), leader_epoch=1)
    script(f"{point}=ENOSPC")  # type: ignore[operator]
    with pytest.raises(StorageError):
        log.append_as_leader(batch([b"b"]), 2)
    assert (log.log_end_offset, log.leader_epoch) == (1, 1)
    assert append(log, batch([b"b"]), leader_epoch=2) == (1, 1)
    log.close(clean=False)
    assert open_log(tmp_path).end_offset_for_epoch(1) == (1, 1)


def test_a_roll_that_fails_is_tried_again(tmp_path: Path, script: object) -> None:
    log = open_log(tmp_path, segment_bytes=300)
    append(log, batch([b"x" * 100]))
    script("files.write@3=ENOSPC")  # type: ignore[operator]  # two indexes, then the snapshot
    with pytest.raises(StorageError):
        log.append_as_leader(batch([b"x" * 200]), 0)
    assert append(log, batch([b"x" * 200])) == (1, 1)
    assert log.segment_count == 2


def test_a_retry_is_acknowledged_when_its_batch_is_on_disk(tmp_path: Path) -> None:
    """With `flush.messages` 1, the batch comes again while the disk is still busy with it; then the flush fails."""
    log = open_log(tmp_path, flush_messages=1)
    busy, fails = threading.Event(), threading.Event()

    def hook(name: str) -> None:
        if name == "log.flush":
            busy.set()
            assert fails.wait(30)
            raise OSError(errno.EIO, "planted")

    def send() -> AppendResult:
        return log.append_as_leader(batch([b"v"], producer=(1, 0, 0)), 0)

    faults.install(hook)
    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(send)
            assert busy.wait(30)
            retry = pool.submit(send)
            wait([retry], 0.5)
            early = retry.done()
            fails.set()
            for sent in (first, retry):
                with pytest.raises((StorageError, LogClosedError)):
                    sent.result(30)
    finally:
        faults.install(None)
    assert not early
    assert log.offline


@pytest.mark.parametrize("passed", range(1, 10))
def test_a_truncation_that_fails_takes_the_log_offline(tmp_path: Path, passed: int) -> None:
    log = open_log(tmp_path)
    for _ in range(4):
        append(log, batch([b"v"]))
    points: list[str] = []

    def hook(name: str) -> None:
        points.append(name)
        if len(points) == passed:
            raise OSError(errno.EIO, "planted")

    faults.install(hook)
    try:
        log.truncate_to(2)
    except StorageError:
        assert log.offline is not None
        flushing = points[0] == "log.flush" and passed <= 2  # of what stays, before the cut
        assert ("a flush failed" if flushing else "a truncation to offset 2 failed") in log.offline
    else:
        assert len(points) < passed
    finally:
        faults.install(None)
