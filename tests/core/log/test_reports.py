"""What a log says of itself: its `repr`, its log lines with the partition and the reason, its errors."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from klamm.core.errors import StorageError
from klamm.core.log.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from klamm.core.log.partition_log import ReadIsolation
from klamm.core.log.recovery.loader import OpenFrom
from klamm.core.log.segment.naming import REMOVED
from klammtest.logs import START_MS, ManualClock, append, batch, fill, open_log


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_reprs_name_the_partition_and_the_state(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([b"a", b"b"], producer=(7, 0, 0)), leader_epoch=3)
    assert repr(log) == (
        "PartitionLog(events-0, offsets=[0, 2), high_watermark=2, recovery_point=0, leader_epoch=3, segments=1, online)"
    )
    size = log.size
    assert repr(log._segments.active) == f"Segment(events-0, offsets=[0, 2), size={size}, largest_ms={START_MS})"
    assert repr(log._producers) == "ProducerStateManager(events-0, producers=1, highest_id=7)"
    assert repr(log._flusher) == f"Flusher(events-0, recovery_point=0, last_flush_ms={START_MS})"
    log.close()
    assert repr(log).endswith("recovery_point=2, leader_epoch=3, segments=1, 'the log is closed')")


def test_a_repr_waits_for_no_lock(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with log._lock, log._flush_lock:
        told: list[str] = []
        other = threading.Thread(target=lambda: told.append(repr(log)), daemon=True)
        other.start()
        other.join(60)
    assert told == [repr(log)]


def test_errors_of_producer_sequences_name_the_partition(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(producer=(7, 1, 0)))
    with pytest.raises(
        OutOfOrderSequenceError, match=r"^events-0: producer 7 sent the sequence 5, expected 1 \(epoch 1\)$"
    ):
        append(log, batch(producer=(7, 1, 5)))
    with pytest.raises(
        OutOfOrderSequenceError, match=r"^events-0: producer 7 began its epoch 2 with the sequence 5, not 0$"
    ):
        append(log, batch(producer=(7, 2, 5)))
    with pytest.raises(InvalidProducerEpochError, match=r"^events-0: producer 7 sent the epoch 0, but its last .* 1$"):
        append(log, batch(producer=(7, 0, 1)))


def test_a_roll_a_deletion_and_a_truncation_are_one_line_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "klamm.core.log.partition_log")
    log = open_log(tmp_path, segment_bytes=200)
    for _ in range(4):
        append(log, batch([b"x" * 100]))
    assert lines(caplog)[0].startswith(
        "events-0: rolled a new segment at offset 1: the segment at offset 0 has 173 bytes "
        "(segment.bytes=200), is 0 ms old (segment.ms=604800000), "
    )
    assert len(lines(caplog)) == log.segment_count - 1 == 3
    caplog.clear()
    assert log.delete_records_before(2) == 2
    assert lines(caplog) == ["events-0: the log start offset is 2: a client deleted the records before it"]
    caplog.clear()
    assert log.apply_retention(START_MS) == 2
    assert lines(caplog) == [
        "events-0: retention deleted 2 segments (below the log start offset); the log start offset is 2"
    ]
    caplog.clear()
    log.truncate_to(3)
    log.truncate_to(3)
    assert lines(caplog) == [
        "events-0: truncated from offset 4 to 3, because the leader's log differs from offset 3 on"
    ]


def test_retention_says_which_rule_it_applied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "klamm.core.log.partition_log")
    log = open_log(tmp_path, segment_bytes=200, retention_bytes=400, retention_ms=1000)
    for _ in range(4):
        append(log, batch([b"x" * 100]))
    caplog.clear()
    assert log.apply_retention(START_MS) == 1
    assert "deleted 1 segment (retention.bytes=400)" in caplog.text
    assert log.apply_retention(START_MS + 1001) == 3
    assert "deleted 3 segments (retention.ms=1000)" in caplog.text


@pytest.mark.parametrize("known", [OpenFrom(), OpenFrom(True, 40, 0, 40)], ids=["crash", "clean stop"])
def test_every_line_of_recovery_names_the_partition(
    tmp_path: Path, known: OpenFrom, caplog: pytest.LogCaptureFixture
) -> None:
    log = fill(tmp_path, 40, segment_bytes=700)
    log.close()
    for path in log.directory.glob("*.*"):
        if path.suffix in (".log", ".snapshot", ".index") and int(path.stem) < 30:
            raw = bytearray(path.read_bytes())
            raw[-1] ^= 1
            path.write_bytes(raw)
    (log.directory / "leader-epoch-checkpoint").write_text("junk")
    caplog.set_level(logging.INFO, "klamm.core.log")
    open_log(tmp_path, known=known, segment_bytes=700)
    assert len(lines(caplog)) > 3
    assert [line for line in lines(caplog) if not line.startswith("events-0: ")] == []


def test_every_read_has_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stable offset is below the high watermark while a transaction is open."""
    log = fill(tmp_path, 6)
    monkeypatch.setattr(log, "_unstable", 3)
    for isolation, end in ((ReadIsolation.LOG_END, 6), (ReadIsolation.HIGH_WATERMARK, 6), (ReadIsolation.COMMITTED, 3)):
        read = log.read(0, 1 << 20, isolation=isolation)
        found = log.offset_of_largest_timestamp(isolation=isolation)
        assert (read.last_stable_offset, len(read.data)) == (3, log.size * end // 6)
        assert (found.offset if found else None) == (end - 1 if end == 6 else None)


def test_a_log_is_closed_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path, ManualClock())
    append(log, batch())
    done: list[str] = []
    monkeypatch.setattr(log._flusher, "sync", lambda *_: done.append("flush"))
    monkeypatch.setattr(log._segments, "seal", lambda: done.append("indexes"))
    monkeypatch.setattr(log._producers, "take_snapshot", lambda offset, *, durable: done.append(f"snapshot {offset}"))
    monkeypatch.setattr(log._segments, "close_files", lambda: done.append(f"close files: {log.offline}"))
    log.close()
    log.close()
    assert done == ["flush", "indexes", "snapshot 1", "close files: the log is closed"]


def test_what_is_appended_while_a_log_is_closed_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    flush = log.flush

    def flush_then_append() -> None:
        flush()
        append(log, batch())

    monkeypatch.setattr(log, "flush", flush_then_append)
    log.close()
    assert log.recovery_point == log.log_end_offset == 2


def test_files_that_cannot_be_removed_hold_up_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, segment_bytes=200, retention_bytes=0, file_delete_delay_ms=0)
    for _ in range(3):
        append(log, batch([b"x" * 100]))
    assert log.apply_retention(clock()) == 2
    deleted = sorted(log.directory.glob(f"*{REMOVED}"))
    stuck, unlink = deleted[1], Path.unlink
    assert len(deleted) > 3

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == stuck:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    for _ in range(2):
        with pytest.raises(StorageError, match=f"events-0: cannot remove {stuck}: Input/output error"):
            log.remove_expired_files(clock())
        assert sorted(log.directory.glob(f"*{REMOVED}")) == [stuck]
    monkeypatch.undo()
    assert log.remove_expired_files(clock()) == 1
    assert not list(log.directory.glob(f"*{REMOVED}"))
    assert log.remove_expired_files(clock()) == 0
