"""A full disk: logs say so, stay open, and go on by themselves when there is room again."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.core import faults
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import NoSpaceError, StorageError
from klamm.core.faults import ScriptedFaults
from klamm.core.log.disk_space import DiskSpace
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.segment.naming import OFFSET_GAPS
from klamm.core.log.state.checkpoints import RECOVERY_POINTS, OffsetCheckpoint
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klammtest.logs import (
    START_MS,
    TOPIC_ID,
    TP,
    ManualClock,
    append,
    append_checked,
    batch,
    codec_table,
    from_request,
    open_log,
    read_all,
)

OTHER = TopicPartition("events", 1)


def follower_batches(base: int, *, epoch: int) -> bytes:
    """A batch of one record, as a leader has stored it."""
    return bytes(encode_batch([(START_MS, None, b"x", ())], base_offset=base, leader_epoch=epoch))


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.install(None)


def fill_up(*points: str) -> None:
    """Makes every write at these points fail, from now on."""
    faults.install(ScriptedFaults(", ".join(f"{point}@1+=ENOSPC" for point in points)))


def noting(log: PartitionLog) -> list[TopicPartition]:
    said: list[TopicPartition] = []
    log.on_no_space = lambda tp, error: said.append(tp)
    return said


def test_a_topic_that_is_to_be_compacted_is_once_there_is_room(tmp_path: Path) -> None:
    """A log without the mark that offsets may have gaps would take what compaction has removed for lost."""
    log = open_log(tmp_path)
    before, compacted = log.config, log.config.model_copy(update={"cleanup_policy": "compact"})
    assert compacted.compacts
    fill_up("files.rename")
    with pytest.raises(NoSpaceError):
        log.reconfigure(compacted)
    assert log.config == before, "it is tried again"
    faults.install(None)
    log.reconfigure(compacted)
    assert log.config == compacted
    assert (tmp_path / str(TP) / OFFSET_GAPS).exists()


def test_records_can_be_deleted_while_the_disk_is_full(tmp_path: Path) -> None:
    """That is how to make room."""
    log = open_log(tmp_path)
    log.begin_leader_epoch(3)
    for number in range(4):
        append(log, batch([b"%d" % number]), leader_epoch=3)
    fill_up("files.write")
    assert log.delete_records_before(2) == 2
    faults.install(None)
    assert (log.log_start_offset, log.offline) == (2, None)
    assert log.append_may_block(batch()), "the epochs are written before the next batch, not on an event loop"
    append(log, batch([b"4"]), leader_epoch=3)
    assert not log.append_may_block(batch())


def test_a_full_disk_holds_up_neither_a_deletion_nor_a_truncation(tmp_path: Path) -> None:
    """Both make room; the checkpoints, which are lowered first, follow when there is some."""
    manager = LogManager(
        tmp_path,
        broker_id=0,
        cluster_id="c",
        codecs=codec_table(),
        clock=ManualClock(),
        config_for=lambda _: TopicConfig(),
    )
    kept, deleted = (manager.create(tp, TOPIC_ID, TopicConfig()) for tp in (TP, OTHER))
    for log in (kept, deleted):
        for number in range(4):
            append(log, batch([b"%d" % number]))
        log.flush()
    manager.write_checkpoints()
    fill_up("files.write")
    manager.remove(OTHER)
    kept.follow(1)
    kept.truncate_to(2, 1)
    faults.install(None)
    assert kept.log_end_offset == 2
    assert set(manager.logs()) == {TP}
    assert not (tmp_path / "events-1").exists()
    manager.write_checkpoints()
    assert OffsetCheckpoint(tmp_path / RECOVERY_POINTS).read() == {TP: 2}
    manager.close()


def test_a_flush_that_has_no_room_does_not_keep_deleted_files(tmp_path: Path) -> None:
    """Retention has removed leader epochs, and the flush cannot write that: the files must go to make room."""
    clock = ManualClock()
    config = {"segment_bytes": 300, "retention_bytes": 300, "file_delete_delay_ms": 0}
    manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), clock=clock)
    log = manager.create(TP, TOPIC_ID, TopicConfig.model_validate(config, by_name=True))
    for number in range(12):
        append(log, batch([b"%d" % number]), leader_epoch=number // 4)
    fill_up("files.write")
    manager.apply_retention(clock())
    assert not log.is_durable
    assert log.flush_is_due(clock())
    assert list(log.directory.glob("*.log.deleted"))
    manager.run_maintenance(clock())
    assert manager.space.refused == {TP}
    assert not list(log.directory.glob("*.deleted"))
    faults.install(None)
    manager.run_maintenance(clock())
    assert log.is_durable
    assert not log.flush_is_due(clock())
    manager.close()


def test_no_room_is_told_from_other_errors(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    said = noting(log)
    for code in ("ENOSPC", "EDQUOT"):
        faults.install(ScriptedFaults(f"log.append.before_write={code}"))
        with pytest.raises(NoSpaceError):
            append(log, batch())
    assert said == [TP, TP]
    faults.install(ScriptedFaults("log.append.before_write=EIO"))
    with pytest.raises(StorageError) as caught:
        append(log, batch())
    assert not isinstance(caught.value, NoSpaceError)
    assert said == [TP, TP]


@pytest.mark.parametrize("point", ["log.append.after_write", "files.write"])
def test_each_way_to_append_says_so(tmp_path: Path, point: str) -> None:
    """The last ones begin a leader epoch, and a segment."""
    log = open_log(tmp_path, segment_bytes=1000)
    append(log, batch())
    said = noting(log)
    fill_up(point)
    with pytest.raises(NoSpaceError):
        log.append_as_leader(batch(), 1)
    with pytest.raises(NoSpaceError):
        log.append_as_leader(batch([b"x" * 900]), 1)
    log.follow(2)
    with pytest.raises(NoSpaceError):
        log.append_as_follower(follower_batches(1, epoch=2), 2)
    assert said
    assert set(said) == {TP}
    assert log.offline is None
    faults.install(None)
    assert log.append_as_follower(follower_batches(1, epoch=2), 2) == 2


def test_the_fast_path_says_so(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch())
    said = noting(log)
    fill_up("log.append.before_write")
    with pytest.raises(NoSpaceError):
        append_checked(log, from_request(batch()))
    assert said == [TP]


def test_a_follower_of_a_full_disk_drops_epochs_that_it_could_not_fill(tmp_path: Path) -> None:
    """After a gap that compaction has left, the epoch begins above the log's end; its file cannot be corrected."""
    log = open_log(tmp_path)
    log.follow(2)
    log.append_as_follower(follower_batches(0, epoch=1), 2)

    def full(name: str) -> None:
        if name == "log.append.before_write":
            fill_up("files.write")
            raise OSError(errno.ENOSPC, "No space left on device")

    faults.install(full)
    with pytest.raises(NoSpaceError):
        log.append_as_follower(follower_batches(5, epoch=2), 2)
    assert (log.offline, log.leader_epoch, log.log_end_offset) == (None, 1, 1)
    faults.install(None)
    assert log.append_as_follower(follower_batches(5, epoch=2), 2) == 6
    assert log.end_offset_for_epoch(2) == (2, 6)


def test_a_deposed_leader_cuts_its_log_on_a_full_disk(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([b"a"]), leader_epoch=1)
    append(log, batch([b"b"]), leader_epoch=2)
    log.follow(3)
    fill_up("files.write")
    log.truncate_to(1, 3)
    assert (log.offline, log.log_end_offset, log.leader_epoch) == (None, 1, 1)
    assert [record.value for record in read_all(log)] == [b"a"]
    with pytest.raises(NoSpaceError):
        log.append_as_follower(follower_batches(1, epoch=1), 3)
    faults.install(None)
    log.append_as_follower(follower_batches(1, epoch=1), 3)
    log.close(clean=False)
    assert open_log(tmp_path).end_offset_for_epoch(2) == (-1, -1)


def test_a_log_leads_on_a_full_disk_and_stores_its_epoch_before_a_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([b"a"]), leader_epoch=1)
    fill_up("files.write")
    log.begin_leader_epoch(2, durable=False)
    log.lead(2)
    assert [record.value for record in read_all(log)] == [b"a"]
    for one in (batch([b"b"]), from_request(batch([b"b"]))):
        with pytest.raises(NoSpaceError):
            log.append_as_leader(one, 2)
    faults.install(None)
    append_checked(log, from_request(batch([b"b"])), leader_epoch=2)
    log.close(clean=False)
    assert open_log(tmp_path).end_offset_for_epoch(1) == (1, 1)


def test_the_first_failure_and_the_names_are_noted(tmp_path: Path) -> None:
    space = DiskSpace(tmp_path)
    calls: list[str] = []
    space.on_full = lambda: calls.append("full")
    for tp in (TP, TP, None, OTHER):
        space.ran_out(tp, NoSpaceError(f"no room for {tp}"))
    assert (calls, space.is_full, space.refused) == (["full"], True, {TP, OTHER})
    assert space.why == "no room for events-0"
    space.clear()
    assert (space.is_full, space.refused) == (False, set())
    space.ran_out(None, NoSpaceError("a checkpoint"))
    assert space.why == "a checkpoint"
    assert (calls, space.refused) == (["full", "full"], set())


def test_room_is_found_out_by_writing(tmp_path: Path) -> None:
    space = DiskSpace(tmp_path)
    assert space.has_space()
    fill_up("files.write")
    assert not space.has_space()
    fill_up("files.rename")
    assert not space.has_space()
    assert list(tmp_path.iterdir()) == []
    assert not DiskSpace(tmp_path / "away").has_space()


def test_maintenance_of_a_full_disk_is_quiet_after_its_first_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = LogManager(tmp_path, broker_id=3, cluster_id="c1", codecs=codec_table(), clock=ManualClock())
    for tp in (TP, OTHER):
        append(manager.create(tp, TOPIC_ID, TopicConfig()), batch())
    fill_up("files.write")
    with pytest.raises(NoSpaceError):
        manager.run_maintenance(0)
    assert manager.space.is_full
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        manager.run_maintenance(0)
        for tp in (TP, OTHER):
            with pytest.raises(NoSpaceError):
                manager.logs()[tp].append_as_leader(batch(), 5)
    assert caplog.records == []
    assert manager.space.refused == {TP, OTHER}
    faults.install(None)
    manager.close()
