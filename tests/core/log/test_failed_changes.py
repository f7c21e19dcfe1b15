"""A truncation or a flush that stops half-way takes the log offline, so nothing is acknowledged after it. A retention
that stops half-way loses nothing, and the next one finishes it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.core import faults
from klamm.core.errors import StorageError
from klamm.core.faults import ScriptedFaults
from klamm.core.log.errors import LogClosedError
from klamm.core.log.segment.file_operations import OpenFile
from klamm.core.log.segment.naming import REMOVED
from klammtest.logs import START_MS, TP, append, batch, open_log, read_all


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.install(None)


@pytest.mark.parametrize("rule", ["files.unlink=EIO", "files.unlink@2=EIO", "files.truncate=EIO"])
def test_failed_truncation_leaves_no_gap(tmp_path: Path, rule: str) -> None:
    log = open_log(tmp_path, segment_bytes=len(batch()) + 1)
    for _ in range(3):
        append(log, batch())
    assert log.segment_count == 3
    faults.install(ScriptedFaults(rule))
    with pytest.raises(StorageError):
        log.truncate_to(1)
    faults.install(None)
    assert log.offline is not None
    assert "a truncation to offset 1 failed" in log.offline
    with pytest.raises(LogClosedError):
        append(log, batch())
    log.close(clean=False)
    again = open_log(tmp_path, segment_bytes=len(batch()) + 1)
    append(again, batch())
    assert [record.offset for record in read_all(again)] == list(range(again.log_end_offset))


def test_interrupted_flush_takes_the_log_offline(tmp_path: Path) -> None:
    def interrupt(name: str) -> None:
        if name == "files.fsync_directory":
            raise KeyboardInterrupt

    log = open_log(tmp_path)
    append(log, batch())
    faults.install(interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.flush()
    faults.install(None)
    assert log.offline is not None
    assert "KeyboardInterrupt" in log.offline
    with pytest.raises(LogClosedError):
        log.flush()
    assert log.recovery_point == 0


@pytest.mark.parametrize("failed", [1, 2, 3, 5])
def test_failed_retention_loses_nothing_and_is_finished_by_the_next(tmp_path: Path, failed: int) -> None:
    size = len(batch())
    log = open_log(tmp_path, segment_bytes=size + 1, retention_bytes=size)
    for _ in range(4):
        append(log, batch())
    faults.install(ScriptedFaults(f"files.rename@{failed}=EIO"))
    with pytest.raises(StorageError, match="cannot rename"):
        log.apply_retention(START_MS)
    faults.install(None)
    deleted = (failed - 1) // 3  # each segment has three files
    assert log.log_start_offset == deleted
    assert log.segment_count == 4 - deleted
    for segment in log.sealed_segments():
        segment.close_file()
    assert [record.offset for record in read_all(log)] == list(range(deleted, 4))
    assert log.apply_retention(START_MS) == 3 - deleted
    assert [record.offset for record in read_all(log)] == [3]
    removed = [path.name for path in log.directory.iterdir() if path.name.endswith(REMOVED)]
    assert len(removed) == 9
    assert not [name for name in removed if name.count(REMOVED) > 1]
    assert log.remove_expired_files(START_MS + log.config.file_delete_delay_ms) == 9
    assert not [path for path in log.directory.iterdir() if path.name.endswith(REMOVED)]
    assert sorted(path.name for path in log.directory.glob("*.log")) == [f"{3:020d}.log"]


def test_a_truncation_that_cannot_read_takes_the_log_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        append(log, batch())

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    truncate = OpenFile.truncate

    def fail_from_now_on(file: OpenFile, size: int) -> None:
        truncate(file, size)
        monkeypatch.setattr(os, "pread", fail)

    monkeypatch.setattr(OpenFile, "truncate", fail_from_now_on)
    with pytest.raises(StorageError, match="Input/output error"):
        log.truncate_to(1)
    assert log.offline is not None
    assert "a truncation to offset 1 failed" in log.offline


def test_a_truncation_behind_a_damaged_flushed_batch_leaves_the_log_online(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(5):
        append(log, batch())
    log.flush()
    (path,) = (tmp_path / str(TP)).glob("*.log")
    with path.open("r+b") as file:
        file.seek(len(batch()) + 16)  # the magic byte of the second batch
        file.write(b"\x7f")
    log.truncate_to(4)
    assert log.offline is None
    assert log.log_end_offset == 4
    append(log, batch())
