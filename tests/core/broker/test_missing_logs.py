"""A broker does not begin a partition again at offset 0 in silence where it has written before."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from klamm.core import faults
from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.image import Endpoint
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import ErrorCode, StorageError
from klamm.core.faults import ScriptedFaults
from klamm.core.log.log_directory import META
from klamm.core.log.manager import LogManager
from klamm.core.log.recovery.missing_logs import KnownPast, MissingLogs
from klamm.core.log.segment.naming import PARTITION_METADATA
from klamm.core.log.state.last_start import LastStart
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klammtest.brokers.inprocess import broker_thread
from klammtest.guarantees import guarantee
from klammtest.logs import append, codec_table
from klammtest.ports import free_port
from klammtest.requests import batch, create_topic, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

TOPIC, OTHER = "written", "another"


@contextmanager
def served(folder: Path, *, accept_missing_logs: bool = False) -> Iterator[WireClient]:
    coordination = {"plugin": "embedded", "path": str(folder / "coordination.db")}
    with (
        broker_thread(folder, coordination, accept_missing_logs=accept_missing_logs) as broker,
        WireClient(f"127.0.0.1:{broker.advertised[0].port}") as wire,
    ):
        yield wire


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The directory of a broker that has stopped, with three records in each of two topics."""
    with served(tmp_path) as wire:
        for topic in (TOPIC, OTHER):
            assert create_topic(wire, topic).error_code is ErrorCode.none
            produce(wire, topic, batch(b"a", b"b", b"c"))
    return tmp_path


def look_at_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MissingLogs, "_is_empty", lambda *_: False)


def empty(directory: Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@guarantee("D18", "an emptied log directory under known topics stops the start", plant=look_at_nothing)
@pytest.mark.parametrize("left", ["nothing", META])
def test_an_emptied_log_directory_stops_the_start(folder: Path, left: str) -> None:
    kept = (folder / "data" / META).read_bytes()
    empty(folder / "data")
    if left == META:
        (folder / "data" / META).write_bytes(kept)
    for _ in range(2):
        with pytest.raises(AssertionError, match="is empty, but the cluster has 2 partitions here"), served(folder):
            pass


@guarantee("D18", "a partition whose segments are gone is not served from offset 0", plant=look_at_nothing)
@pytest.mark.parametrize("all_of_it", [True, False], ids=["directory", "segments"])
def test_a_partition_that_is_gone_is_not_begun_again(
    folder: Path, all_of_it: bool, caplog: pytest.LogCaptureFixture
) -> None:
    gone = folder / "data" / f"{TOPIC}-0"
    if all_of_it:
        shutil.rmtree(gone)
    else:
        for segment in gone.glob("*.log"):
            segment.unlink()
    for _ in range(2):
        with served(folder) as wire:
            assert produce(wire, TOPIC, batch(b"d")).error_code is ErrorCode.not_leader_or_follower
            assert produce(wire, OTHER, batch(b"d")).error_code is ErrorCode.none
    lines = [record.message for record in caplog.records if "cannot be served" in record.message]
    assert len(lines) == 2, "one for each start"
    assert all("has no segments, but its log ended at offset 3" in line for line in lines)


def test_whoever_accepts_it_goes_on(folder: Path) -> None:
    empty(folder / "data")
    with served(folder, accept_missing_logs=True) as wire:
        assert produce(wire, TOPIC, batch(b"d")).base_offset == 0
    with served(folder) as wire:
        assert produce(wire, TOPIC, batch(b"e")).base_offset == 1


def test_what_begins_again_has_another_leader_epoch(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Positions and manifests of the records that are gone belong to another history."""
    shutil.rmtree(folder / "data" / f"{TOPIC}-0")
    with served(folder, accept_missing_logs=True) as wire:
        assert leader_epoch(wire, TOPIC) > 0
    assert (
        f"1 partition without a log ({TOPIC}-0): each begins without records, as --accept-missing-logs says"
        in caplog.text
    )


def test_what_begins_again_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = [TopicPartition("t", number) for number in range(30)]
    logs = LogManager(
        tmp_path / "data", broker_id=0, cluster_id="c", codecs=codec_table(), expected=expected, accept_missing=True
    )
    logs.close()
    (said,) = [record.getMessage() for record in caplog.records if "begins without records" in record.getMessage()]
    assert said == (
        f"{logs.directory}: 30 partitions without a log (t-0, t-1, t-2 and 27 more): each begins without records, as "
        "--accept-missing-logs says, or copies another replica"
    )


def leader_epoch(wire: WireClient, topic: str) -> int:
    asked = wire.call(
        ApiKey.METADATA, 9, topics=(part(ApiKey.METADATA, 9, "MetadataRequestTopic", name=topic),),
        allow_auto_topic_creation=False, include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )  # fmt: skip
    return int(asked.topics[0].partitions[0].leader_epoch)


def test_a_topic_that_is_deleted_is_forgotten(folder: Path) -> None:
    shutil.rmtree(folder / "data" / f"{TOPIC}-0")
    with served(folder) as wire:
        wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=(TOPIC,), timeout=timedelta(seconds=10))
        assert create_topic(wire, TOPIC).error_code is ErrorCode.none
        assert produce(wire, TOPIC, batch(b"d")).base_offset == 0
    with served(folder) as wire:
        assert produce(wire, TOPIC, batch(b"e")).base_offset == 1


def test_a_new_topic_whose_directory_a_crash_has_prevented(tmp_path: Path) -> None:
    with served(tmp_path) as wire:
        assert create_topic(wire, TOPIC, 2).error_code is ErrorCode.none
    for number in range(2):
        shutil.rmtree(tmp_path / "data" / f"{TOPIC}-{number}")
    with served(tmp_path) as wire:
        assert produce(wire, TOPIC, batch(b"a"), 1).base_offset == 0


def believe_the_checkpoints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MissingLogs, "_was_here", lambda *_: False)


def recall_complete(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        MissingLogs, "_was_here", lambda logs, tp: logs._past.created(tp) < logs._past.last_start.complete_epoch
    )


def trust_any_directory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MissingLogs, "_is_former", lambda *_: False)


def excuse_if_it_was_moved(patch: pytest.MonkeyPatch) -> None:
    was_here = MissingLogs._was_here
    patch.setattr(MissingLogs, "_was_here", lambda logs, tp: tp not in logs._moved and was_here(logs, tp))


@guarantee("D18", "a topic made since the backup of the logs does not begin again", plant=believe_the_checkpoints)
@pytest.mark.parametrize("lives", [1, 2], ids=["in the last run", "before it"])
def test_a_topic_made_since_the_backup(folder: Path, lives: int) -> None:
    shutil.copytree(folder / "data", folder / "backup")
    with served(folder) as wire:
        assert create_topic(wire, "later").error_code is ErrorCode.none
        produce(wire, "later", batch(b"a", b"b"))
    for _ in range(lives - 1):
        with served(folder):
            pass
    shutil.rmtree(folder / "data")
    (folder / "backup").rename(folder / "data")
    for _ in range(2):  # the second start knows it too
        with served(folder) as wire:
            assert produce(wire, "later", batch(b"c")).error_code is ErrorCode.not_leader_or_follower
            assert produce(wire, TOPIC, batch(b"d")).error_code is ErrorCode.none
    with served(folder, accept_missing_logs=True) as wire:
        assert produce(wire, "later", batch(b"c")).base_offset == 0
    with served(folder) as wire:
        assert produce(wire, "later", batch(b"d")).base_offset == 1


@guarantee("D18", "a topic deleted and made again since the backup does not begin again", plant=trust_any_directory)
@pytest.mark.parametrize("lives", [1, 2], ids=["in the last run", "before it"])
def test_a_topic_made_again_since_the_backup(folder: Path, lives: int) -> None:
    shutil.copytree(folder / "data", folder / "backup")
    with served(folder) as wire:
        wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=(TOPIC,), timeout=timedelta(seconds=10))
        assert create_topic(wire, TOPIC).error_code is ErrorCode.none
        produce(wire, TOPIC, batch(b"a", b"b"))
    for _ in range(lives - 1):
        with served(folder):
            pass
    shutil.rmtree(folder / "data")
    (folder / "backup").rename(folder / "data")
    for _ in range(2):
        with served(folder) as wire:
            assert produce(wire, TOPIC, batch(b"c")).error_code is ErrorCode.not_leader_or_follower
            assert produce(wire, OTHER, batch(b"d")).error_code is ErrorCode.none
    with served(folder, accept_missing_logs=True) as wire:
        assert produce(wire, TOPIC, batch(b"c")).base_offset == 0
    with served(folder) as wire:
        assert produce(wire, TOPIC, batch(b"d")).base_offset == 1
    assert len(list((folder / "data").glob(f"{TOPIC}-0.*-stray"))) == 1


def test_a_topic_made_again_since_the_backup_may_be_accepted_at_once_or_deleted(folder: Path) -> None:
    shutil.copytree(folder / "data", folder / "backup")
    with served(folder) as wire:
        wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=(TOPIC, OTHER), timeout=timedelta(seconds=10))
        for topic in (TOPIC, OTHER):
            assert create_topic(wire, topic).error_code is ErrorCode.none
    shutil.rmtree(folder / "data")
    (folder / "backup").rename(folder / "data")
    with served(folder) as wire:
        wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=(OTHER,), timeout=timedelta(seconds=10))
        assert create_topic(wire, OTHER).error_code is ErrorCode.none
        assert produce(wire, OTHER, batch(b"a")).base_offset == 0
    with served(folder, accept_missing_logs=True) as wire:
        assert produce(wire, TOPIC, batch(b"a")).base_offset == 0
        assert produce(wire, OTHER, batch(b"b")).base_offset == 1


@pytest.mark.parametrize(
    ("taken_over", "epoch", "created", "end"),
    [(False, 7, 6, None), (True, 7, 3, 1), (False, 5, 6, 0), (False, 5, 3, 0)],
    ids=["older", "older, its log is taken over", "made again while down", "its log was taken over twice while down"],
)
def test_the_directory_of_a_former_topic(
    tmp_path: Path, taken_over: bool, epoch: int, created: int, end: int | None
) -> None:
    tp, former, topic_id = TopicPartition(TOPIC, 0), uuid4(), uuid4()
    manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table())
    append(manager.create(tp, former, TopicConfig()), bytearray(batch(b"a")))
    manager.note_start(5)
    manager.close()
    former_ids = {TOPIC: former} if taken_over else {}

    def start(last: LastStart, created: int, topic_id: UUID) -> LogManager:
        past = KnownPast(last, lambda _: created, {TOPIC: topic_id}, former_ids)
        return LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), expected=[tp], past=past)

    manager = start(LastStart(epoch, epoch), created, topic_id)
    if taken_over:
        manager.take_over(tp, former, topic_id, lambda log: log.log_end_offset)
    if end is None:
        with pytest.raises(StorageError, match="it may have been here since"):
            manager.create(tp, topic_id, TopicConfig())
        manager.note_start(9, complete=False)
        manager.close(clean=False)
        manager = start(LastStart(9, epoch), created, topic_id)
        with pytest.raises(StorageError, match="it may have been here since"):  # not that the former one had records
            manager.create(tp, topic_id, TopicConfig())
        manager.close(clean=False)
        topic_id = uuid4()
        manager = start(LastStart(9, epoch), 20, topic_id)  # made again while the broker was down
    assert manager.create(tp, topic_id, TopicConfig()).log_end_offset == (end or 0)
    assert len(list(tmp_path.glob(f"{TOPIC}-0.*-stray"))) == (0 if taken_over else 1)
    manager.close()


@guarantee("D18", "a log without a topic id is not begun again", plant=believe_the_checkpoints)
def test_a_log_without_a_topic_id_that_no_checkpoint_knows(tmp_path: Path) -> None:
    tp, topic_id = TopicPartition(TOPIC, 0), uuid4()
    past = KnownPast(LastStart(5, 5), lambda _: 3, {TOPIC: topic_id})
    manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table())
    manager.write_checkpoints()
    append(manager.create(tp, topic_id, TopicConfig()), bytearray(batch(b"a")))
    manager.note_start(5)
    manager.close(clean=False)
    (tmp_path / f"{TOPIC}-0" / PARTITION_METADATA).unlink()
    for _ in range(2):
        manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), expected=[tp], past=past)
        with pytest.raises(StorageError, match="it was here at the broker's last start"):
            manager.create(tp, topic_id, TopicConfig())
        manager.close()


@guarantee("D18", "an empty topic's directory that is gone is missed", plant=believe_the_checkpoints)
def test_an_empty_topic_of_an_earlier_run(tmp_path: Path) -> None:
    with served(tmp_path) as wire:
        assert create_topic(wire, TOPIC).error_code is ErrorCode.none
    with served(tmp_path):
        pass
    shutil.rmtree(tmp_path / "data" / f"{TOPIC}-0")
    for _ in range(2):
        with served(tmp_path) as wire:
            assert produce(wire, TOPIC, batch(b"a")).error_code is ErrorCode.not_leader_or_follower


def test_a_topic_made_anew_right_before_a_crash(tmp_path: Path) -> None:
    """The checkpoint still has the deleted topic's offset, and the new one's directory is not there yet."""
    tp = TopicPartition(TOPIC, 0)

    def start() -> LogManager:
        return LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), expected=[tp])

    manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table())
    append(manager.create(tp, uuid4(), TopicConfig()), bytearray(batch(b"a")))
    manager.write_checkpoints()
    manager.remove(tp)
    manager.close(clean=False)
    assert start().create(tp, uuid4(), TopicConfig()).log_end_offset == 0


def excuse_by_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MissingLogs, "_is_empty", lambda logs, tp: not list(logs._directory.glob(f"{tp}*")))


@guarantee("D18", "an older topic's directory does not hide that a log is lost", plant=excuse_by_name)
@pytest.mark.parametrize("flushed", [True, False], ids=["with records", "without records"])
def test_a_directory_of_an_older_topic_of_the_name_excuses_nothing(tmp_path: Path, flushed: bool) -> None:
    tp, topic_id = TopicPartition(TOPIC, 0), uuid4()
    past = KnownPast(LastStart(5, 5), lambda _: 3, {TOPIC: topic_id})

    def start() -> LogManager:
        return LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), expected=[tp], past=past)

    manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table())
    append(manager.create(tp, uuid4(), TopicConfig()), bytearray(batch(b"a")))
    manager.set_aside(tp)
    log = manager.create(tp, topic_id, TopicConfig())
    if flushed:
        append(log, bytearray(batch(b"a", b"b")))
        log.flush()
    manager.note_start(5)
    manager.write_checkpoints()
    manager.close(clean=False)
    shutil.rmtree(tmp_path / f"{TOPIC}-0")
    for _ in range(2):
        manager = start()
        with pytest.raises(StorageError, match="ended at offset 2" if flushed else "at the broker's last start"):
            manager.create(tp, topic_id, TopicConfig())
        manager.close()


@pytest.mark.parametrize("then", ["killed", "copied", "restored"])
def test_an_empty_disk_has_no_ancestors_later_either(tmp_path: Path, then: str) -> None:
    """It would count as doubtful, not as new, and a partition could elect without the records of the dead disk."""
    tp, topic_id = TopicPartition(TOPIC, 0), uuid4()

    def start(directory: Path, last_start: int) -> LogManager:
        return LogManager(
            directory, broker_id=0, cluster_id="c", codecs=codec_table(), expected=[tp], accept_missing=True,
            past=KnownPast(LastStart(last_start, 5), lambda _: 3, {TOPIC: topic_id}), known_data=("of the dead disk",),
        )  # fmt: skip

    manager = start(tmp_path / "data", 5)
    manager.create(tp, topic_id, TopicConfig())
    if then != "killed":
        manager.note_start(6)
    manager.close(clean=False)
    if then == "copied":
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    again = start(tmp_path / ("copy" if then == "copied" else "data"), {"killed": 5, "copied": 6, "restored": 7}[then])
    assert "of the dead disk" not in again.data_ids
    assert len(again.data_ids) == 2, "its own records may be missing"
    again.close()


def test_a_start_that_refuses_a_partition_is_recorded(tmp_path: Path) -> None:
    """A directory without it is older, but a partition that this start could not make was not here."""
    tp, topic_id = TopicPartition(TOPIC, 0), uuid4()
    past = KnownPast(LastStart(7, 5), lambda _: 6, {TOPIC: topic_id})
    manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table())
    manager.note_start(5)
    assert MissingLogs(tmp_path, [], False, past).is_older
    manager.note_start(7, complete=False)
    manager.close()
    again = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), expected=[tp], past=past)
    assert not again.missing.is_older
    assert again.create(tp, topic_id, TopicConfig()).log_end_offset == 0
    again.close()


@guarantee("D18", "a topic made after a start that refused another one does not begin again", plant=recall_complete)
@pytest.mark.parametrize("created", [6, 8], ids=["before that start", "after it"])
def test_a_topic_made_since_the_backup_and_a_start_that_was_not_complete(tmp_path: Path, created: int) -> None:
    """As long as a start of the older directory refuses a partition. One made since the last of them was not here."""
    tp, topic_id = TopicPartition(TOPIC, 0), uuid4()

    def start(last_start: int, created: int) -> LogManager:
        past = KnownPast(LastStart(last_start, 5), lambda _: created, {TOPIC: topic_id})
        return LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), expected=[tp], past=past)

    manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table())
    manager.note_start(5)
    manager.close()
    for last_start in (7, 9, 11):
        older = start(last_start, created)
        with pytest.raises(StorageError, match="it may have been here since"):
            older.create(tp, topic_id, TopicConfig())
        older.note_start(last_start + 2, complete=False)
        older.close()
    again = start(13, 14)
    assert again.create(tp, topic_id, TopicConfig()).log_end_offset == 0
    again.close()


@pytest.mark.parametrize("kind", ["delete", "stray"])
def test_a_partition_that_was_moved_away_and_back_right_before_a_crash(tmp_path: Path, kind: str) -> None:
    """It was here at the last start, and its new directory is not there yet."""
    tp, topic_id = TopicPartition(TOPIC, 0), uuid4()
    manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table())
    append(manager.create(tp, topic_id, TopicConfig()), bytearray(batch(b"a")))
    manager.note_start(5)
    manager.write_checkpoints()
    manager.remove(tp) if kind == "delete" else manager.set_aside(tp)
    manager.close(clean=False)
    past = KnownPast(LastStart(5, 5), lambda _: 3, {TOPIC: topic_id})
    again = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), expected=[tp], past=past)
    assert again.create(tp, topic_id, TopicConfig()).log_end_offset == 0


@guarantee("D18", "a partition that was moved away before the backup may be back", plant=excuse_if_it_was_moved)
@pytest.mark.parametrize("kind", ["delete", "stray"])
def test_a_partition_that_was_moved_away_before_the_backup_and_back_since(tmp_path: Path, kind: str) -> None:
    tp, topic_id = TopicPartition(TOPIC, 0), uuid4()
    manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table())
    append(manager.create(tp, topic_id, TopicConfig()), bytearray(batch(b"a")))
    manager.note_start(5)
    manager.write_checkpoints()
    manager.remove(tp) if kind == "delete" else manager.set_aside(tp)
    manager.close()
    for last_start in (7, 9):
        past = KnownPast(LastStart(last_start, 7), lambda _: 3, {TOPIC: topic_id})
        older = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), expected=[tp], past=past)
        with pytest.raises(StorageError, match="it may have been here since"):
            older.create(tp, topic_id, TopicConfig())
        older.note_start(last_start + 2, complete=False)
        older.close()


def test_a_partition_that_was_being_moved_here_before_a_crash_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is older than the broker's last start, but its directory here was not made: the broker was killed, or its disk
    was full."""
    tp = TopicPartition(TOPIC, 0)
    coordination = EmbeddedCoordination(EmbeddedConfig(path=tmp_path / "coordination.db"))
    coordination.start()
    other = Cluster(coordination, 1, [Endpoint("127.0.0.1", free_port())], data_ids=("d1",), directory_id="other")
    other.register()
    try:
        other.create_topic(TOPIC, 1, 1, replicas={0: (1,)})
        with monkeypatch.context() as patch, served(tmp_path):
            refused = threading.Event()

            def refuse(*_: object, **__: object) -> None:
                refused.set()
                raise StorageError("planted: it is not made before the crash")

            patch.setattr(LogManager, "create", refuse)
            eventually(lambda: 0 in other.image().brokers, "the broker to be known")
            assert other.alter_reassignments({tp: (1, 0)}) == {tp: (ErrorCode.none, "")}
            assert refused.wait(60)
        assert not (tmp_path / "data" / f"{TOPIC}-0").exists()
        with served(tmp_path):
            eventually(lambda: list((tmp_path / "data" / f"{TOPIC}-0").glob("*.log")), "the log")
    finally:
        other.close()
        coordination.close()


def test_a_partition_that_was_moved_away_on_a_full_disk_may_come_back(tmp_path: Path) -> None:
    """The checkpoints could not forget it before its directory was moved, nor until the broker was killed."""
    tp, topic_id = TopicPartition(TOPIC, 0), uuid4()
    manager = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table())
    append(manager.create(tp, topic_id, TopicConfig()), bytearray(batch(b"a")))
    manager.note_start(5)
    manager.logs()[tp].flush()
    manager.write_checkpoints()
    faults.install(ScriptedFaults("files.write@1+=ENOSPC"))
    try:
        manager.remove(tp)
        manager.close(clean=False)
    finally:
        faults.install(None)
    past = KnownPast(LastStart(5, 5), lambda _: 3, {TOPIC: topic_id})
    for _ in range(2):  # the first start removes the directory
        again = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), past=past)
        assert tp not in again.missing
        again.run_maintenance(again._clock() + 1)
        again.close(clean=False)
    again = LogManager(tmp_path, broker_id=0, cluster_id="c", codecs=codec_table(), past=past)
    assert again.create(tp, topic_id, TopicConfig()).log_end_offset == 0
