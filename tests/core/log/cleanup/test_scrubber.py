"""The scrubber: it finds what is damaged in old segments, says it, counts it, and harms nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import CorruptRecordError
from klamm.core.log.cleanup.scrubber import Scrubber, ScrubConfig
from klamm.core.log.manager import LogManager, LogTuning
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.state.checkpoints import SCRUB_OFFSETS
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klammtest.logs import START_MS, ManualClock, append, batch, codec_table, records_of

FAST = ScrubConfig(bytes_per_second=1 << 40, interval_ms=10_000)
CONFIG = TopicConfig.model_validate({"segment_bytes": 1_500, "index_interval_bytes": 300}, by_name=True)
COUNT = 60
A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def start(folder: Path, **tuning: object) -> LogManager:
    return LogManager(
        folder, broker_id=0, cluster_id="c", codecs=codec_table(), clock=ManualClock(),
        tuning=LogTuning(**tuning),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    logs = start(tmp_path)
    for tp in (A, B):
        log = logs.create(tp, UUID(int=1), CONFIG)
        for n in range(COUNT):
            append(log, batch([b"%04d" % n * 20], timestamp_ms=START_MS + n), leader_epoch=n // 25)
    yield logs
    logs.close(clean=False)


def scrubber(logs: LogManager, clock: ManualClock | None = None) -> Scrubber:
    return Scrubber(logs, FAST, clock or ManualClock())


def run(scrubber: Scrubber) -> int:
    """How many segments a pass checked."""
    count = 0
    while scrubber.run_once():
        count += 1
    return count


def sealed(log: PartitionLog) -> list[Path]:
    return [segment.path for segment in log.sealed_segments()]


def harm(path: Path, number: int, byte: int) -> int:
    """Flip a byte of a batch; the batch's offset."""
    raw = bytearray(path.read_bytes())
    position, header = list(iter_headers(raw))[number]
    raw[position + (byte if byte >= 0 else header.size + byte)] ^= 0x41
    path.write_bytes(raw)
    return header.base_offset


def test_a_pass_checks_every_segment_that_is_no_longer_written(logs: LogManager) -> None:
    ours = [log.sealed_segments() for log in logs.logs().values()]
    assert run(scrubber(logs)) == sum(map(len, ours)) > 10
    counts = logs.scrubbed
    assert counts.bytes == sum(segment.size for segments in ours for segment in segments)
    assert (counts.passes, counts.corrupt_batches, counts.corrupt_indexes) == (1, 0, 0)


@pytest.mark.parametrize("byte", [3, 9, 11, 14, 16, 20, 60, -1])
@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_damaged_batch_is_said_counted_and_not_served(
    logs: LogManager, byte: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = logs.logs()[B]
    path = sealed(log)[1]
    hurt = harm(path, number, byte)
    with caplog.at_level(logging.ERROR):
        run(scrubber(logs))
    (line,) = [r.getMessage() for r in caplog.records]
    assert str(path) in line
    assert line.startswith("b-0: ")
    assert logs.scrubbed.corrupt_batches == log.corrupt_batches == 1
    log.verify_on_read = True
    with pytest.raises(CorruptRecordError):
        log.read(hurt, 1)
    for n in set(range(COUNT)) - {hurt}:
        assert next(records_of(log.read(n, 1).data)).value == b"%04d" % n * 20


def test_all_damage_of_a_segment_is_found(logs: LogManager) -> None:
    path = sealed(logs.logs()[A])[2]
    for number, byte in ((1, 60), (3, -1), (5, 9)):
        harm(path, number, byte)
    run(scrubber(logs))
    assert logs.scrubbed.corrupt_batches == 3


def test_deleted_records_of_forgotten_epochs_are_not_damage(logs: LogManager) -> None:
    """DeleteRecords leaves them in the file of the first segment."""
    log = logs.logs()[A]
    log.delete_records_before(26)
    assert log.sealed_segments()[0].base_offset < 25, "the file has records of two epochs"
    run(scrubber(logs))
    assert logs.scrubbed.corrupt_batches == log.corrupt_batches == 0


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["flipped", "short", "gone"])
def test_a_damaged_index_is_said_and_counted(
    logs: LogManager, suffix: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = sealed(logs.logs()[A])[1].with_suffix(suffix)
    raw = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(raw[:-1] if how == "short" else raw[:20] + bytes([raw[20] ^ 4]) + raw[21:])
    run(scrubber(logs))
    assert (logs.scrubbed.corrupt_batches, logs.scrubbed.corrupt_indexes) == (0, 1)
    assert str(path) in caplog.text
    assert logs.logs()[A].read(COUNT // 2, 1).data


def test_it_goes_on_where_it_was_after_a_restart(logs: LogManager) -> None:
    total = sum(len(log.sealed_segments()) for log in logs.logs().values())
    first = scrubber(logs)
    for _ in range(5):
        assert first.run_once()
    assert run(scrubber(logs)) == total - 5


def test_the_next_pass_begins_after_the_interval(logs: LogManager) -> None:
    clock = ManualClock()
    again = scrubber(logs, clock)
    assert run(again)
    ended_ms = (logs.directory / SCRUB_OFFSETS).stat().st_mtime_ns // 1_000_000
    clock.now_ms = ended_ms + FAST.interval_ms - 1
    assert not run(again)
    clock.advance(1)
    assert run(again)


def test_a_topic_created_anew_is_checked_from_its_start(logs: LogManager) -> None:
    run_some = scrubber(logs)
    for _ in range(3):
        run_some.run_once()
    logs.remove(A)
    log = logs.create(A, UUID(int=2), CONFIG)
    assert A not in logs.shared_checkpoint(SCRUB_OFFSETS).read()
    for n in range(COUNT):
        append(log, batch([b"%04d" % n * 20]))
    harm(sealed(log)[0], 0, 30)
    run(scrubber(logs))
    assert logs.scrubbed.corrupt_batches == 1


def test_it_holds_its_rate_and_stops_when_told(logs: LogManager) -> None:
    slow = Scrubber(logs, ScrubConfig(bytes_per_second=1, interval_ms=0), ManualClock())
    slow.start()
    slow.stop()
    assert slow._thread is not None
    assert not slow._thread.is_alive()


def test_verify_on_read_is_set_for_every_log(tmp_path: Path) -> None:
    logs = start(tmp_path, verify_on_read=True)
    assert logs.create(A, UUID(int=1), CONFIG).verify_on_read
    logs.close()
