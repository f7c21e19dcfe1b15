"""A log that ends before an offset in its checkpoints has lost records, and the directory gets a new data id; a
truncation leaves no such log, wherever a crash interrupts it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from klamm.core import faults
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import NoSpaceError, StorageError
from klamm.core.faults import ScriptedFaults
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.log.role import ANY_EPOCH
from klamm.core.log.state.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, OffsetCheckpoint
from klamm.core.records.partition import TopicPartition
from klammtest.faulty import fault_hook
from klammtest.logs import ManualClock, append, batch, codec_table

TP = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7)
CONFIG = TopicConfig.from_strings({"segment.bytes": "300"})


def start(directory: Path) -> LogManager:
    return LogManager(
        directory, broker_id=0, cluster_id="c", codecs=codec_table(), clock=ManualClock(), config_for=lambda _: CONFIG
    )


def filled(manager: LogManager, *, flush: bool = True) -> PartitionLog:
    """Returns a log of 20 committed records in several segments, whose checkpoints are written."""
    log = manager.create(TP, TOPIC_ID, CONFIG)
    for number in range(20):
        append(log, batch([b"%d" % number]))
    log.advance_high_watermark(20)
    if flush:
        log.flush()
    manager.write_checkpoints()
    return log


def checkpointed(directory: Path) -> tuple[int | None, int | None]:
    """Returns the recovery point and the high watermark in the checkpoints."""
    point, watermark = (
        OffsetCheckpoint(directory / name).read().get(TP) for name in (RECOVERY_POINTS, HIGH_WATERMARKS)
    )
    return point, watermark


def remove_last_segment(directory: Path) -> int:
    last = max((directory / "t-0").glob("*.log"))
    for path in last.parent.glob(f"{last.stem}.*"):
        path.unlink()
    return int(last.stem)


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill -9"])
@pytest.mark.parametrize("flush", [True, False], ids=["recovery point", "high watermark"])
def test_a_lost_segment_means_a_new_data_id(
    tmp_path: Path, clean: bool, flush: bool, caplog: pytest.LogCaptureFixture
) -> None:
    manager = start(tmp_path)
    filled(manager, flush=flush)
    before = manager.data_ids
    manager.close(clean=clean)
    end = remove_last_segment(tmp_path)
    manager = start(tmp_path)
    assert manager.data_ids[1:] == before
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    point = 20 if flush or clean else 0
    assert said.startswith(
        f"t-0: the log ends at offset {end}, but by the checkpoints it was longer (recovery point {point}, high "
        f"watermark 20, log start 0): the records from offset {end} on are lost here."
    )
    found = manager.data_ids
    manager.close(clean=False)
    assert start(tmp_path).data_ids == found, "the next start has lost nothing more"


def test_a_lost_first_segment_is_not_taken_for_a_deleted_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If this broker led, its followers would delete what they have below its log start."""
    manager = start(tmp_path)
    log = filled(manager)
    log.delete_records_before(5)
    log.apply_retention(0)
    manager.close()
    manager = start(tmp_path)
    assert manager.logs()[TP].log_start_offset == 5, "what was deleted is not lost"
    manager.close()
    first, second, *_ = sorted((tmp_path / "t-0").glob("*.log"))
    first.unlink()
    for _ in range(2):
        manager = start(tmp_path)
        with pytest.raises(StorageError, match="has no segments, but its log ended at offset 20"):
            manager.create(TP, TOPIC_ID, CONFIG)
        manager.close()
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said.startswith(f"t-0: the log begins at offset {int(second.stem)}, but by its checkpoint it began at 5: ")
    assert len(list(tmp_path.glob("t-0.*-stray"))) == 1


def test_a_start_that_ends_early_is_not_forgotten(tmp_path: Path) -> None:
    """The start after it sees the same checkpoints, or the note in the data identity."""
    manager = start(tmp_path)
    filled(manager)
    before = manager.data_ids
    manager.close(clean=False)
    remove_last_segment(tmp_path)
    (tmp_path / "u-0").mkdir()
    (tmp_path / "u-0" / "partition.metadata").write_text("damaged")
    with pytest.raises(StorageError):
        start(tmp_path)
    shutil.rmtree(tmp_path / "u-0")
    assert start(tmp_path).data_ids[1:] == before


def change(
    work: Callable[[PartitionLog], None], manager: LogManager, log: PartitionLog, copies: Path, *, maintained: bool
) -> list[Path]:
    """Changes the log, and returns copies of the directory at each fault point: what a kill there would leave.
    `maintained`: the checkpoints are written whenever the log's files change, as maintenance may do."""
    made: list[Path] = []

    def copy(point: str) -> None:
        if maintained and point in ("files.truncate", "files.unlink"):
            with fault_hook(lambda _: None):
                manager.write_checkpoints()
            faults.install(copy)
        made.append(copies / str(len(made)))
        shutil.copytree(manager.directory, made[-1], ignore=shutil.ignore_patterns(".lock"))

    with fault_hook(copy):
        work(log)
    return made


@pytest.mark.parametrize("maintained", [False, True], ids=["alone", "during maintenance"])
@pytest.mark.parametrize("gaps", [False, True], ids=["dense", "with gaps"])
@pytest.mark.parametrize("offset", [3, 11, 16])
def test_a_truncation_that_a_crash_interrupts_loses_nothing(
    tmp_path: Path, offset: int, gaps: bool, maintained: bool
) -> None:
    manager = start(tmp_path / "data")
    log = filled(manager)
    if gaps:
        log._segments.allow_gaps()
    copies = change(lambda log: log.truncate_to(offset), manager, log, tmp_path / "copies", maintained=maintained)
    assert len(copies) > 3
    assert log.log_end_offset == offset
    copies.append(manager.directory)
    manager.close(clean=False)
    for directory in copies:
        again = start(directory)
        found = again.get(TP)
        assert found is not None
        assert not found.recovery_cut_more, directory
        again.close()
    point, watermark = checkpointed(manager.directory)
    assert point is not None
    assert watermark is not None
    assert max(point, watermark) <= offset
    assert gaps or (point, watermark) == (offset, offset)


@pytest.mark.parametrize("maintained", [False, True], ids=["alone", "during maintenance"])
@pytest.mark.parametrize("offset", [0, 7, 50])
def test_a_restart_of_a_log_that_a_crash_interrupts_loses_nothing(
    tmp_path: Path, offset: int, maintained: bool
) -> None:
    manager = start(tmp_path / "data")
    log = filled(manager)
    copies = change(lambda log: log.restart_at(offset), manager, log, tmp_path / "copies", maintained=maintained)
    assert len(copies) > 3
    copies.append(manager.directory)
    manager.close(clean=False)
    for directory in copies:
        again = start(directory)
        found = again.get(TP)
        assert found is None or not found.recovery_cut_more, directory
        again.close()


def test_a_truncation_that_fails_leaves_the_checkpoints_low(tmp_path: Path) -> None:
    manager = start(tmp_path)
    log = filled(manager)
    faults.install(ScriptedFaults("files.truncate=EIO"))
    try:
        with pytest.raises(StorageError):
            log.truncate_to(7)
    finally:
        faults.install(None)
    assert log.offline is not None
    manager.write_checkpoints()
    assert checkpointed(tmp_path) == (7, 7)


def test_after_a_truncation_the_checkpoints_grow_again(tmp_path: Path) -> None:
    manager = start(tmp_path)
    log = filled(manager)
    log.truncate_to(7)
    append(log, batch([b"new"]))
    log.advance_high_watermark(8)
    log.flush()
    manager.write_checkpoints()
    assert checkpointed(tmp_path) == (8, 8)


@pytest.mark.parametrize("how", ["removed", "set aside", "another topic"])
def test_the_checkpoints_forget_a_log_before_its_directory_is_moved(tmp_path: Path, how: str) -> None:
    manager = start(tmp_path)
    filled(manager)
    seen: list[tuple[int | None, int | None]] = []

    def look(point: str) -> None:
        if point == "files.rename" and not list(tmp_path.glob("t-0.*-*")):
            seen.append(checkpointed(tmp_path))

    with fault_hook(look):
        if how == "removed":
            manager.remove(TP)
        elif how == "set aside":
            manager.set_aside(TP)
        else:
            manager.create(TP, uuid4(), CONFIG)
    assert seen[-1] == (None, None), "the rename of the directory comes last"


def test_the_checkpoints_of_many_logs_are_forgotten_at_once(tmp_path: Path) -> None:
    manager = start(tmp_path)
    filled(manager)
    points: list[str] = []
    with fault_hook(points.append):
        manager.forget_checkpoints([TP, TopicPartition("t", 1)])
    assert points.count("files.rename") == 2
    assert checkpointed(tmp_path) == (None, None)


def begun_at(manager: LogManager, offset: int) -> PartitionLog:
    """Returns an empty log that begins at `offset`, as that of a follower whose leader has deleted the records before
    it; its checkpoints are written."""
    log = manager.create(TP, TOPIC_ID, CONFIG)
    log.restart_at(offset)
    manager.write_checkpoints()
    return log


@pytest.mark.parametrize("offset", [5, 7, 50])
def test_a_restart_that_a_crash_interrupts_leaves_a_log(tmp_path: Path, offset: int) -> None:
    """A directory without a segment would count as a lost log, which is not begun again without the operator."""
    manager = start(tmp_path / "data")
    log = begun_at(manager, 7)
    append(log, batch([b"a"] * 13))
    log.advance_high_watermark(20)
    log.flush()
    manager.write_checkpoints()
    copies = change(lambda log: log.restart_at(offset), manager, log, tmp_path / "copies", maintained=False)
    manager.close(clean=False)
    for directory in copies:
        again = start(directory)
        assert TP not in again.missing, directory
        found = again.get(TP)
        assert found is not None
        assert not found.recovery_cut_more, directory
        again.close()


def stored_by_leader(folder: Path) -> bytes:
    """Returns a batch of ten records from offset 0 on, as a leader has stored it."""
    with closing(start(folder)) as leader:
        log = leader.create(TP, TOPIC_ID, CONFIG)
        append(log, batch([b"a"] * 10))
        return log.read(0, 1 << 20, isolation=ReadIsolation.LOG_END).data


def test_a_log_that_begins_within_its_first_batch_has_lost_nothing_after_a_crash(tmp_path: Path) -> None:
    """The leader's log begins at offset 5, by DeleteRecords, and sends the whole batch with that offset."""
    records = stored_by_leader(tmp_path / "leader")
    manager = start(tmp_path / "data")
    log = begun_at(manager, 5)
    copies = change(
        lambda log: log.append_as_follower(records, ANY_EPOCH), manager, log, tmp_path / "copies", maintained=False
    )
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (5, 5, 10)
    before = manager.data_ids
    manager.close(clean=False)
    for directory in copies:
        again = start(directory)
        assert again.get(TP) is not None, directory
        # The copy of the directory gets a new id in any case, as a copy.
        assert not again.logs()[TP].recovery_cut_more, directory
        again.close()
    assert start(manager.directory).data_ids == before


def test_a_batch_of_before_the_log_start_that_does_not_fit_costs_nothing(tmp_path: Path) -> None:
    records = stored_by_leader(tmp_path / "leader")
    manager = start(tmp_path / "data")
    log = begun_at(manager, 5)
    before = manager.data_ids
    faults.install(ScriptedFaults("log.append.before_write=ENOSPC"))
    try:
        with pytest.raises(NoSpaceError):
            log.append_as_follower(records, ANY_EPOCH)
    finally:
        faults.install(None)
    assert log.offline is None
    manager.write_checkpoints()
    manager.close()
    manager = start(tmp_path / "data")
    assert manager.data_ids == before
    assert manager.logs()[TP].append_as_follower(records, ANY_EPOCH) == 10
    manager.close()
