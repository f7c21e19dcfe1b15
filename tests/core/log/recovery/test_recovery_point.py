"""The recovery point moves by time, and what a start after a crash reads is bounded by it."""

from __future__ import annotations

import dataclasses
import logging
import threading
from pathlib import Path
from uuid import UUID

import pytest

from klamm.core import faults
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import StorageError
from klamm.core.faults import ScriptedFaults
from klamm.core.log.manager import LogManager, LogTuning
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.log.recovery.loader import OpenFrom
from klamm.core.log.recovery.parallel_opening import Opening, open_all
from klamm.core.records.partition import TopicPartition
from klammtest.faulty import fault_hook
from klammtest.logs import START_MS, ManualClock, append, batch, codec_table, open_log, read_all

TUNING = LogTuning(recovery_threads=3, flush_interval_ms=5_000, max_rescan_bytes=0)
TOPIC_ID = UUID(int=3)
COUNT = 60


def manager(folder: Path, clock: ManualClock, tuning: LogTuning = TUNING) -> LogManager:
    return LogManager(folder, broker_id=0, cluster_id="c", codecs=codec_table(), clock=clock, tuning=tuning)


def partitions(count: int) -> list[TopicPartition]:
    return [TopicPartition("t", n) for n in range(count)]


def fill(log: PartitionLog, first: int, count: int) -> None:
    for n in range(first, first + count):
        append(log, batch([b"%d" % n * 20], timestamp_ms=START_MS + n, producer=(1, 0, n)))


def test_what_is_old_is_flushed_and_not_read_after_a_crash(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    config = TopicConfig.model_validate({"index_interval_bytes": 100}, by_name=True)
    log = logs.create(TopicPartition("t", 0), TOPIC_ID, config)
    fill(log, 0, COUNT)
    clock.advance(4_999)
    logs.run_maintenance(clock())
    assert log.recovery_point == 0
    clock.advance(1)
    logs.run_maintenance(clock())
    assert log.recovery_point == COUNT
    flushed = log.size
    fill(log, COUNT, 3)
    logs.run_maintenance(clock())
    assert log.recovery_point == COUNT
    logs.close(clean=False)
    known = OpenFrom(False, COUNT)
    log = PartitionLog.open(log.directory, log.tp, TOPIC_ID, config, clock, codecs=codec_table(), known=known)
    assert known.checked.bytes == log.size - flushed, "only what came after the flush was read"
    assert [r.value for r in read_all(log)] == [b"%d" % n * 20 for n in range(COUNT + 3)]
    for n in range(COUNT + 3):
        found = log.offset_for_timestamp(START_MS + n, isolation=ReadIsolation.LOG_END)
        assert found is not None
        assert found.offset == n
    assert log.append_as_leader(batch([b"62" * 20], producer=(1, 0, COUNT + 2)), 0).duplicate


def test_a_snapshot_is_written_once_enough_was_written_since_the_last_one(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock, dataclasses.replace(TUNING, max_rescan_bytes=2_000))
    log = logs.create(TopicPartition("t", 0), TOPIC_ID, TopicConfig())
    kept = []
    for n in range(12):
        fill(log, 5 * n, 5)
        clock.advance(5_000)
        logs.run_maintenance(clock())
        assert log.recovery_point == log.log_end_offset == 5 * (n + 1)
        if not log.rescan_exceeds(0):
            kept.append(log.size)
    assert 1 < len(kept) < 6
    assert all(later - earlier > 2_000 for earlier, later in zip([0, *kept], kept, strict=False))
    logs.close(clean=False)
    known = OpenFrom(False, COUNT)
    log = PartitionLog.open(log.directory, log.tp, TOPIC_ID, TopicConfig(), clock, codecs=codec_table(), known=known)
    assert known.checked.bytes == log.size - kept[-1]
    assert [r.value for r in read_all(log)] == [b"%d" % n * 20 for n in range(COUNT)]


def test_an_index_of_before_a_truncation_is_not_believed(tmp_path: Path) -> None:
    log = open_log(tmp_path, index_interval_bytes=100)
    fill(log, 0, COUNT)
    log.flush(snapshot=True)
    log.truncate_to(10)
    for n in range(10, 80):
        append(log, batch([b"other" * (n % 7 + 1)]))
    log.flush()
    log.close(clean=False)
    again = open_log(tmp_path, known=OpenFrom(recovery_point=80))
    again.advance_high_watermark(80)
    for n in range(10, 80):
        assert read_all(again, n, max_bytes=1)[0].value == b"other" * (n % 7 + 1)


def test_a_segment_rolled_during_the_flush_keeps_its_own_index(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=3_000, index_interval_bytes=100)
    fill(log, 0, 20)
    passed: list[str] = []

    def roll(point: str) -> None:
        passed.append(point)
        if passed.count("log.flush") == 1 and point == "log.flush":
            fill(log, 20, 40)

    with fault_hook(roll):
        log.flush(snapshot=True)
    assert log.segment_count > 1
    log.close(clean=False)
    again = open_log(tmp_path, segment_bytes=3_000, known=OpenFrom(recovery_point=20))
    assert [r.value for r in read_all(again)] == [b"%d" % n * 20 for n in range(COUNT)]


def test_a_snapshot_that_cannot_be_written_is_no_failed_flush(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path)
    fill(log, 0, 5)
    faults.install(ScriptedFaults("log.index.write=ENOSPC"))
    try:
        log.flush(snapshot=True)
    finally:
        faults.install(None)
    assert (log.recovery_point, log.offline) == (5, None)
    assert "crash recovery will read more batches" in caplog.text


def test_logs_are_opened_by_several_threads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    for tp in partitions(20):
        fill(logs.create(tp, TOPIC_ID, TopicConfig()), 0, 5)
    logs.close(clean=False)
    with caplog.at_level(logging.INFO):
        again = manager(tmp_path, clock)
    assert {tp: log.log_end_offset for tp, log in again.logs().items()} == dict.fromkeys(partitions(20), 5)
    assert list(again.logs()) == sorted(partitions(20), key=str)
    lines = [r.getMessage() for r in caplog.records if r.name == "klamm.core.log.recovery.parallel_opening"]
    assert lines[0] == "recovery: 20 partitions, at most 0 MiB to check"
    assert lines[-1].startswith("recovery: 20 partitions open after ")
    again.close()


def openings(count: int, size: int) -> list[Opening]:
    return [Opening(tp, TOPIC_ID, OpenFrom(), size) for tp in partitions(count)]


def test_progress_is_said_while_it_takes_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "left to check" in record.getMessage():
                said.set()

    def open_one(opening: Opening) -> PartitionLog:
        assert said.wait(60)
        return open_log(tmp_path / str(opening.tp))

    under_way = openings(2, 5 << 20)
    for opening in under_way:
        opening.known.checked.bytes = 2 << 20
    logger, handler = logging.getLogger("klamm.core.log.recovery.parallel_opening"), Handler()
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO):
            assert len(open_all(under_way, open_one, 2, progress_s=0.2)) == 2
    finally:
        logger.removeHandler(handler)
    lines = [r.getMessage() for r in caplog.records]
    assert lines[0] == "recovery: 2 partitions, at most 10 MiB to check"
    assert "recovery: 0 of 2 partitions are open, at most 6 MiB left to check" in lines


def test_the_first_error_ends_it(tmp_path: Path) -> None:
    def open_one(opening: Opening) -> PartitionLog:
        raise StorageError(f"{opening.tp} cannot be opened")

    with pytest.raises(StorageError, match="cannot be opened"):
        open_all(openings(50, 0), open_one, 2)
