"""Batches that a mirror's log is about to lose are kept beside it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from klamm.core.errors import StorageError
from klamm.core.log import cut_batches
from klamm.core.log.cut_batches import read_set_aside, set_aside
from klamm.core.log.partition_log import ReadIsolation
from klamm.core.records.header import iter_headers
from klammtest.faulty import fault_hook
from klammtest.logs import append, batch, open_log
from klammtest.transactional_logs import add, end, transactional


@pytest.mark.parametrize("piece", [1, 8 * 1024 * 1024])
def test_the_batches_from_an_offset_on_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(cut_batches, "_PIECE", piece)
    log = open_log(tmp_path)
    for n in range(10):
        append(log, batch([b"%d" % (n * 3 + i) for i in range(3)]))
    kept = set_aside(log, 13).read_bytes()
    assert kept == log.read(13, 1 << 20, isolation=ReadIsolation.LOG_END).data
    assert [header.base_offset for _, header in iter_headers(kept)] == [12, 15, 18, 21, 24, 27]


def test_a_directory_that_cannot_be_made_is_an_error_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    append(log, batch([b"0"]))
    monkeypatch.setattr(cut_batches, "suffixed", lambda *_: "missing/t-0-cut")
    with pytest.raises(StorageError, match="cannot write"):
        set_aside(log, 0)


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """It is tried again every two seconds; each try would take space of the full disk."""
    log = open_log(tmp_path)
    append(log, batch([b"0"]))
    before = sorted(tmp_path.iterdir())

    def full(point: str) -> None:
        if point == "files.fsync":
            raise OSError(errno.ENOSPC, "No space left on device")

    with fault_hook(full), pytest.raises(StorageError, match="cannot"):
        set_aside(log, 0)
    assert sorted(tmp_path.iterdir()) == before


def test_what_was_set_aside_is_read_without_the_records_of_aborted_transactions(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    add(log, transactional(producer=(7, 0, 0)), leader_epoch=3)
    add(log, transactional([b"a", b"b"], producer=(8, 0, 0)), leader_epoch=3)
    append(log, batch([b"plain"]), leader_epoch=3)
    end(log, 7, commit=False, leader_epoch=3)
    add(log, transactional(producer=(7, 0, 1)), leader_epoch=3)
    end(log, 8, commit=True, leader_epoch=3)
    end(log, 7, commit=True, leader_epoch=3)
    append(log, batch([b"later"]), leader_epoch=4)
    path = set_aside(log, 0)
    found = read_set_aside(path, log.log_end_offset - 1, 3)
    assert found is not None
    assert [h.base_offset for _, h in iter_headers(found) if not h.is_control] == [1, 3, 5, 8]
    assert path.read_bytes() == log.read(0, 1 << 20, isolation=ReadIsolation.LOG_END).data


def test_what_was_set_aside_is_not_taken_for_another_history(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in (3, 4):
        append(log, batch([b"x"]), leader_epoch=epoch)
    path = set_aside(log, 0)
    assert [read_set_aside(path, end, 3) is not None for end in (1, 2)] == [True, False]
    path.unlink()
    assert read_set_aside(path, 1, 3) is None
    path.write_bytes(b"")
    assert read_set_aside(path, 1, 3) is None
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match="cannot read"):
        read_set_aside(path, 1, 3)
