"""The log directory as a whole: lock, identity, strays, deletion, clean and unclean stops."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from klamm.core import faults
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import StorageError
from klamm.core.log.data_ids import LATEST_DATA_IDS
from klamm.core.log.errors import InvalidTopicNameError, LogClosedError
from klamm.core.log.log_directory import CLEAN_SHUTDOWN, LOCK, META, DirectoryLock, holder
from klamm.core.log.manager import LogManager
from klamm.core.records.partition import TopicPartition
from klammtest.faulty import fault_hook
from klammtest.logs import START_MS, ManualClock, append, batch, codec_table, read_all

TP = TopicPartition("events", 0)
OTHER = TopicPartition("events", 1)
DAY_MS = 86_400_000
TOPIC_ID = UUID(int=7)


def start(directory: Path, clock: ManualClock | None = None, **more: object) -> LogManager:
    given = {"broker_id": 3, "cluster_id": "c1", "codecs": codec_table(), "clock": clock or ManualClock(), **more}
    return LogManager(directory, **given)  # type: ignore[arg-type]


@pytest.fixture
def manager(tmp_path: Path) -> LogManager:
    manager = start(tmp_path / "data")
    for tp in (TP, OTHER):
        append(manager.create(tp, TOPIC_ID, TopicConfig()), batch([b"%d" % tp.partition]))
    return manager


def test_create_get_and_list(manager: LogManager) -> None:
    assert set(manager.logs()) == {TP, OTHER}
    log = manager.get(TP)
    assert log is manager.create(TP, TOPIC_ID, TopicConfig.from_strings({"retention.ms": "7"}))
    assert log.config.retention_ms == 7
    assert manager.get(TopicPartition("nope", 0)) is None


def test_many_new_partitions_wait_for_few_syncs(tmp_path: Path) -> None:
    """Each cost five, one after the other: CreateTopics of six topics (106 partitions) waited for 10 s on a slow disk.
    The content of each topic id is synced at once, so that a power loss leaves no empty file; all names together."""
    manager = start(tmp_path)
    synced: Counter[str] = Counter()
    with fault_hook(lambda name, *_: synced.update([name])):
        logs = [manager.create(TopicPartition("many", n), TOPIC_ID, TopicConfig(), durable=False) for n in range(50)]
        for log in logs:
            log.begin_leader_epoch(0, durable=False)
        assert not any(log.is_durable for log in logs)
        assert manager.make_durable() == {}
    assert all(log.is_durable for log in logs)
    assert (synced["files.fsync"], synced["files.fsync_directory"]) == (50, 1)


def test_a_new_partition_whose_directory_cannot_be_synced_is_reported(tmp_path: Path) -> None:
    manager = start(tmp_path)
    log = manager.create(TP, TOPIC_ID, TopicConfig(), durable=False)
    assert append(manager.create(OTHER, TOPIC_ID, TopicConfig()), batch([b"x"])) is not None

    def fails(name: str, *_: object) -> None:
        if name == "files.fsync_directory":
            raise OSError(errno.EIO, "no")

    with fault_hook(fails):
        failed = manager.make_durable()
    assert set(failed) == {TP}
    assert not log.is_durable
    assert manager.make_durable() == {}
    assert log.is_durable


@pytest.mark.parametrize("day_ms", [DAY_MS, -DAY_MS])
def test_a_clock_that_is_set_and_corrected_makes_no_producer_old(tmp_path: Path, day_ms: int) -> None:
    """Its retry would be stored twice. Found by the campaign `clock-skew`."""
    clock, elapsed = ManualClock(), ManualClock()
    manager = start(tmp_path, clock, elapsed=elapsed)
    log = manager.create(TP, TOPIC_ID, TopicConfig.from_strings({"message.timestamp.after.max.ms": str(2 * DAY_MS)}))
    clock.advance(day_ms)
    append(log, batch(producer=(1, 0, 0)))
    for passing in (clock, elapsed):
        passing.advance(5)
    for _ in range(2):
        manager.run_maintenance(clock())
        assert log.append_as_leader(batch(producer=(1, 0, 0)), 0).duplicate
        clock.advance(-day_ms)
    for _ in range(DAY_MS // 60_000 + 1):
        elapsed.advance(60_000)
        manager.run_maintenance(clock())
    assert log.last_sequence(1) is None


def test_a_producer_that_sends_after_a_suspension_is_not_old(tmp_path: Path) -> None:
    """It may send before the first maintenance."""
    elapsed = ManualClock()
    manager = start(tmp_path, elapsed=elapsed)
    log = manager.create(TP, TOPIC_ID, TopicConfig())
    elapsed.advance(2 * DAY_MS)
    append(log, batch(producer=(1, 0, 0)))
    manager.run_maintenance(START_MS)
    assert log.append_as_leader(batch(producer=(1, 0, 0)), 0).duplicate


def test_a_clean_stop_is_noted_and_believed(manager: LogManager) -> None:
    manager.close()
    assert (manager.directory / CLEAN_SHUTDOWN).exists()
    path = manager.directory / "events-0" / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # after a clean stop the CRC is not looked at
    path.write_bytes(raw)
    again = start(manager.directory)
    assert not (manager.directory / CLEAN_SHUTDOWN).exists()
    log = again.get(TP)
    assert log is not None
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (1, 1, 1)


def test_after_an_unclean_stop_the_tail_is_checked(manager: LogManager) -> None:
    manager.close(clean=False)
    path = manager.directory / "events-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes() + batch([b"torn"])[:-3])
    log = start(manager.directory).get(TP)
    assert log is not None
    assert (log.log_end_offset, [r.value for r in read_all(log)]) == (1, [b"0"])


def test_the_directory_is_locked(manager: LogManager) -> None:
    with pytest.raises(StorageError, match=r"is in use by another broker, which holds .*\.lock"):
        start(manager.directory)
    manager.close()
    start(manager.directory).close()


def test_a_broker_starts_while_another_process_asks_whether_one_runs(tmp_path: Path) -> None:
    """`klamm broker status` has the lock for a moment; that is no broker."""
    with (tmp_path / LOCK).open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        done = threading.Timer(0.05, lambda: fcntl.flock(asking, fcntl.LOCK_UN))
        done.start()
        lock = DirectoryLock(tmp_path)
        done.join()
    assert holder(tmp_path) == os.getpid()
    lock.release()
    assert holder(tmp_path) is None
    assert holder(tmp_path / "none") is None


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    script = """
        import sys, time, uuid
        from klamm.core.config.sections.topic import TopicConfig
        from klamm.core.log.manager import LogManager
        from klamm.core.records.codecs import CodecTable
        LogManager(sys.argv[1], broker_id=3, cluster_id="c1", codecs=CodecTable())
        print("locked", flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"locked\n"
            with pytest.raises(StorageError, match="in use"):
                start(tmp_path)
        finally:
            os.kill(process.pid, signal.SIGKILL)
    start(tmp_path).close()


def test_meta_properties(manager: LogManager) -> None:
    manager.close()
    text = (manager.directory / META).read_text()
    assert text.splitlines()[:3] == ["version=1", "cluster.id=c1", "broker.id=3"]
    assert start(manager.directory).meta == manager.meta


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"broker_id": 4}, "broker.id is 3, but this broker is configured as 4: correct broker.id, or"),
        ({"cluster_id": "c2"}, "cluster.id is c1, but this broker joins the cluster c2: correct `coordination`, or"),
    ],
)
def test_another_broker_s_directory_is_refused(manager: LogManager, more: dict[str, object], match: str) -> None:
    manager.close()
    for _ in range(2):
        with pytest.raises(StorageError, match=match):
            start(manager.directory, **more)
    start(manager.directory).close()


@pytest.mark.parametrize("text", ["version=2\n", "version=1\ncluster.id=c1\n", "junk\n", "version=1\nbroker.id=x\n"])
def test_a_damaged_meta_is_refused(manager: LogManager, text: str) -> None:
    manager.close()
    (manager.directory / META).write_text(text)
    with pytest.raises(StorageError, match=r"meta\.properties is damaged"):
        start(manager.directory)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot create"):
        start(tmp_path / "file" / "data")


def test_an_unknown_partition_is_set_aside_with_all_its_records(manager: LogManager) -> None:
    target = manager.set_aside(TP)
    assert target is not None
    assert target.name.startswith("events-0.")
    assert target.name.endswith("-stray")
    assert (target / f"{0:020d}.log").stat().st_size == len(batch([b"0"]))
    assert manager.get(TP) is None
    assert manager.set_aside(TP) is None
    manager.run_maintenance(10**18)
    manager.close()
    again = start(manager.directory)
    assert set(again.logs()) == {OTHER}
    assert target.exists()


def test_a_topic_created_anew_does_not_get_the_old_records(manager: LogManager) -> None:
    log = manager.create(TP, uuid4(), TopicConfig())
    assert log.log_end_offset == 0
    assert len(list(manager.directory.glob("events-0.*-stray"))) == 1


def test_a_topic_created_anew_does_not_get_the_old_log_start(manager: LogManager) -> None:
    """Found by `make faults ONLY=kill-at-fault-point`: the checkpoint still had the deleted topic's start."""
    config = TopicConfig.from_strings({"segment.bytes": "100", "retention.bytes": "0", "file.delete.delay.ms": "0"})
    log = manager.create(TP, TOPIC_ID, config)
    for _ in range(5):
        append(log, batch())
    manager.apply_retention(START_MS)
    manager.run_maintenance(START_MS)
    assert log.log_start_offset > 1
    manager.remove(TP)
    append(manager.create(TP, uuid4(), TopicConfig()), batch([b"new"]))
    manager.close(clean=False)
    again = start(manager.directory).get(TP)
    assert again is not None
    assert [record.value for record in read_all(again)] == [b"new"]


def test_a_directory_without_a_topic_id_is_set_aside(manager: LogManager, caplog: pytest.LogCaptureFixture) -> None:
    manager.close()
    (manager.directory / "events-0" / "partition.metadata").unlink()
    with caplog.at_level(logging.WARNING):
        again = start(manager.directory)
    assert set(again.logs()) == {OTHER}
    assert "no topic id" in caplog.text
    assert len(list(manager.directory.glob("events-0.*-stray"))) == 1


def test_a_log_without_a_topic_id_does_not_begin_anew(manager: LogManager) -> None:
    """The checkpoints say that it had records: the broker would lead with an empty log."""
    log = manager.get(TP)
    assert log is not None
    append(log, batch())
    log.flush()
    manager.close()
    (manager.directory / "events-0" / "partition.metadata").unlink()
    for _ in range(2):
        again = start(manager.directory)
        with pytest.raises(StorageError, match=f"its log ended at offset {log.log_end_offset}: restore it"):
            again.create(TP, TOPIC_ID, TopicConfig())
        again.close()


def test_deleted_partitions_go_after_the_delay(tmp_path: Path) -> None:
    clock = ManualClock()
    manager = start(tmp_path, clock)
    log = manager.create(TP, TOPIC_ID, TopicConfig.model_validate({"file_delete_delay_ms": 500}, by_name=True))
    append(log, batch())
    manager.remove(TP)
    manager.remove(TP)
    with pytest.raises(LogClosedError):
        log.append_as_leader(batch(), 0)
    (gone,) = tmp_path.glob("events-0.*-delete")
    manager.run_maintenance(clock() + 499)
    assert gone.exists()
    manager.run_maintenance(clock() + 500)
    assert not gone.exists()
    assert manager.create(TP, uuid4(), TopicConfig()).log_end_offset == 0


def test_a_restart_finishes_deletions(manager: LogManager) -> None:
    manager.remove(TP)
    manager.close()
    again = start(manager.directory)
    again.run_maintenance(START_MS)
    assert not list(manager.directory.glob("*-delete"))
    assert set(again.logs()) == {OTHER}


def test_foreign_directories_are_left_alone(manager: LogManager) -> None:
    manager.close()
    (manager.directory / "lost+found").mkdir()
    (manager.directory / "lost+found" / "x").write_text("x")
    start(manager.directory).run_maintenance(10**18)
    assert (manager.directory / "lost+found" / "x").exists()


@pytest.mark.parametrize("name", ["..", "a/b", "../../x"])
def test_bad_topic_names_touch_no_file(manager: LogManager, name: str) -> None:
    before = sorted(path.name for path in manager.directory.parent.rglob("*"))
    with pytest.raises(InvalidTopicNameError):
        manager.create(TopicPartition(name, 0), TOPIC_ID, TopicConfig())
    assert sorted(path.name for path in manager.directory.parent.rglob("*")) == before


@pytest.mark.parametrize("damage", ["removed", "cut", "directory"])
def test_a_log_whose_file_somebody_takes_away_goes_offline(
    manager: LogManager, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What would be acknowledged then would be gone with the process."""
    log, other = manager.get(TP), manager.get(OTHER)
    assert log is not None
    assert other is not None
    manager.run_maintenance(START_MS)
    assert log.offline is None
    path = log.directory / f"{0:020d}.log"
    if damage == "removed":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, 10)
    else:
        shutil.rmtree(log.directory)
    manager.run_maintenance(START_MS)
    with pytest.raises(LogClosedError, match="was removed or truncated by another process; restart the broker"):
        append(log, batch([b"lost"]))
    assert [record.name for record in caplog.records if str(path) in record.message] == ["klamm.core.log.partition_log"]
    append(other, batch([b"kept"]))
    manager.close()
    assert not (manager.directory / CLEAN_SHUTDOWN).exists()


def test_maintenance_flushes_retains_and_checkpoints(tmp_path: Path) -> None:
    clock = ManualClock()
    manager = start(tmp_path, clock)
    config = {"segment_bytes": 300, "retention_bytes": 300, "flush_ms": 100, "file_delete_delay_ms": 0}
    log = manager.create(TP, TOPIC_ID, TopicConfig.model_validate(config, by_name=True))
    for _ in range(5):
        append(log, batch([b"x" * 100]))
    clock.advance(100)
    manager.run_maintenance(clock())
    manager.apply_retention(clock())
    manager.run_maintenance(clock())
    assert log.recovery_point == log.high_watermark == 5
    assert log.log_start_offset > 0
    assert not list(log.directory.glob("*.deleted"))
    text = (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert text.startswith("1\n1\nevents 0 5\ncrc32c ")
    manager.close(clean=False)
    again = start(tmp_path).get(TP)
    assert again is not None
    assert (again.log_start_offset, again.high_watermark) == (log.log_start_offset, 5)


def test_one_failing_partition_does_not_stop_the_others(manager: LogManager, caplog: pytest.LogCaptureFixture) -> None:
    for log in manager.logs().values():
        log.reconfigure(TopicConfig.model_validate({"flush_ms": 0}, by_name=True))
    faults.install(faults.ScriptedFaults("files.fsync@1=EIO"))
    try:
        with caplog.at_level(logging.ERROR):
            manager.run_maintenance(START_MS)
    finally:
        faults.install(None)
    states = sorted((log.offline is not None, log.recovery_point) for log in manager.logs().values())
    assert states == [(False, 1), (True, 0)]
    assert "a flush failed" in caplog.text
    manager.close()
    assert not (manager.directory / CLEAN_SHUTDOWN).exists(), "a failed log makes no clean stop"
    assert {log.log_end_offset for log in start(manager.directory).logs().values()} == {1}


def test_damaged_checkpoints_mean_checking_everything(manager: LogManager, caplog: pytest.LogCaptureFixture) -> None:
    manager.close()
    (manager.directory / "recovery-point-offset-checkpoint").write_text("junk")
    with caplog.at_level(logging.WARNING):
        again = start(manager.directory)
    assert "checked from their start" in caplog.text
    assert {log.log_end_offset for log in again.logs().values()} == {1}


def test_visibility_is_reported_for_found_and_new_logs(manager: LogManager) -> None:
    manager.close()
    shown: list[TopicPartition] = []
    again = start(manager.directory, on_visible=shown.append)
    append(again.create(TP, TOPIC_ID, TopicConfig()), batch())
    append(again.create(TopicPartition("new", 5), TOPIC_ID, TopicConfig()), batch())
    assert shown == [TP, TopicPartition("new", 5)]


def test_configurations_of_found_topics(manager: LogManager) -> None:
    manager.close()
    again = start(manager.directory, config_for=lambda topic: TopicConfig.from_strings({"retention.ms": "5"}))
    assert all(log.config.retention_ms == 5 for log in again.logs().values())


KILLED = """
    import sys, uuid
    from klamm.core.config.sections.topic import TopicConfig
    from klamm.core.log.manager import LogManager
    from klamm.core.records.codecs import CodecTable
    from klamm.core.records.encode import encode_batch
    from klamm.core.records.partition import TopicPartition

    manager = LogManager(sys.argv[1], broker_id=3, cluster_id="c1", codecs=CodecTable())
    config = TopicConfig.from_strings({"segment.bytes": "2000", "flush.messages": "5"})
    log = manager.create(TopicPartition("events", 0), uuid.UUID(int=7), config)
    start = log.log_end_offset
    for n in range(start, start + 2000):
        raw = bytearray(encode_batch([(n, None, b"%06d" % n, ())], producer_id=1, producer_epoch=0, base_sequence=n))
        result = log.append_as_leader(raw, 0)
        assert result.base_offset == n
        print(n, flush=True)
        if n % 7 == 0:
            manager.run_maintenance(0)
"""


@pytest.mark.parametrize(
    "rule",
    [
        "log.append.before_write@37=kill",
        "log.append.after_write@37=kill",
        "files.fsync@25=kill",
        "files.rename@15=kill",
        "files.write@15=kill",
        "files.fsync_directory@9=kill",
    ],
)
def test_killed_at_a_fault_point_no_acknowledged_record_is_lost(tmp_path: Path, rule: str) -> None:
    acknowledged = -1
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)],
            env={**os.environ, "KLAMM_FAULTS": rule},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert run.returncode == -signal.SIGKILL, run.stderr
        acknowledged = int(run.stdout.split()[-1])
    log = start(tmp_path).get(TP)
    assert log is not None
    assert log.log_end_offset - 1 in (acknowledged, acknowledged + 1)
    assert [r.value for r in read_all(log)] == [b"%06d" % n for n in range(log.log_end_offset)]
    last = log.log_end_offset - 1
    retry = batch([b"%06d" % last], timestamp_ms=last, key=None, producer=(1, 0, last))
    assert log.append_as_leader(retry, 0).duplicate


def test_a_truncation_lowers_the_recovery_point_on_disk(tmp_path: Path) -> None:
    """Otherwise recovery after a crash takes batches appended since for flushed ones and does not check them."""
    manager = start(tmp_path)
    log = manager.create(TP, TOPIC_ID, TopicConfig())
    for _ in range(5):
        append(log, batch([b"old"]))
    log.flush()
    manager.write_checkpoints()
    log.truncate_to(2)
    assert "events 0 2\n" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    position = log.size
    append(log, batch([b"torn"]))
    append(log, batch([b"lost"]))
    manager.close(clean=False)
    path = log.directory / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[position + 70] ^= 1  # as a power cut may leave what was not flushed
    path.write_bytes(raw)
    again = start(tmp_path).get(TP)
    assert again is not None
    assert (again.log_end_offset, [r.value for r in read_all(again)]) == (2, [b"old", b"old"])


def test_a_truncation_below_the_high_watermark_lowers_it_on_disk(tmp_path: Path) -> None:
    """As after an unclean election. Otherwise a restart shows records appended since that are not committed."""
    manager = start(tmp_path)
    log = manager.create(TP, TOPIC_ID, TopicConfig())
    for _ in range(5):
        append(log, batch([b"old"]))
    log.advance_high_watermark(5)
    manager.write_checkpoints()
    log.truncate_to(2)
    for _ in range(5):
        log.append_as_leader(batch([b"new"]), 0)
    assert log.high_watermark == 2
    manager.close(clean=False)
    again = start(tmp_path).get(TP)
    assert again is not None
    assert (again.log_end_offset, again.high_watermark) == (7, 2)


def test_a_cut_is_not_forgotten_by_a_start_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next start finds whole logs and the old id, and the broker counts as sound without its records."""
    manager = start(tmp_path)
    log = manager.create(TP, TOPIC_ID, TopicConfig())
    for _ in range(3):
        append(log, batch([b"value"]))
    before = manager.data_ids
    manager.close(clean=False)
    path = log.directory / f"{0:020d}.log"
    raw = bytearray(path.read_bytes())
    raw[70] ^= 1  # the first batch: whole ones follow
    path.write_bytes(raw)
    with monkeypatch.context() as patch:
        patch.setattr("klamm.core.log.manager.identity_at_start", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            start(tmp_path)
    again = start(tmp_path)
    assert again.data_ids[1:] == before
    again.close()


def test_a_data_id_that_a_state_names_stays_an_ancestor_however_often_the_power_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition's other replicas may be back later than that, and the replica would then not count as a member."""
    named: tuple[str, ...] = ()
    for boot in range(LATEST_DATA_IDS + 2):
        monkeypatch.setattr("klamm.core.log.manager.kernel_boot_id", lambda boot=boot: f"boot {boot}")
        manager = start(tmp_path, known_data=named)
        manager.create(TP, TOPIC_ID, TopicConfig())
        named = named or manager.data_ids
        data_ids = manager.data_ids
        manager.close(clean=False)
    assert len(data_ids) == LATEST_DATA_IDS + 1
    assert data_ids[-1:] == named
