"""Loads from a real broker whose topic was created again, restored from a backup, or had lost records before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.core.client.errors import DataLossError
from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.lake.manifest import BatchMark
from klamm.hadoop.load.job import LoadJob, _Planned
from klamm.hadoop.load.planning.history import HistoryCheck
from klammtest.brokers.served import KEPT, T0, served
from klammtest.guarantees import guarantee
from klammtest.hadoop.load_jobs import TOPIC, MemoryTopics, coordinates, flight, job


def ignore_history(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HistoryCheck, "verify", lambda *_: None)
    patch.setattr(HistoryCheck, "verify_topic", lambda *_: None)


def ignore_batches(patch: pytest.MonkeyPatch) -> None:
    """Leader epochs alone decide."""
    patch.setattr(BatchMark, "holds", property(lambda _: False))


@guarantee("A1", "a load refuses a topic that was deleted and created again", plant=ignore_history)
def test_a_topic_created_again_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as at:
        at.produce(range(100))
        at.load()
        at.client.delete_topics(["t"])
        at.client.create_topics({"t": KEPT})
        at.produce(range(1000, 1120))
        with pytest.raises(DataLossError, match=r"topic t was deleted and created again: .*/lake/t") as caught:
            at.load()
        assert "\n" not in str(caught.value)
        shutil.move(f"{tmp_path}/lake/t", f"{tmp_path}/old")
        assert " rows=120 " in at.load()


@guarantee("A1", "a load refuses a log that was restored from an older backup", plant=ignore_history)
def test_a_restored_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    restore(tmp_path, with_coordination=False)


@guarantee("A1", "a restored coordination, which gives out leader epochs again, hides no change", plant=ignore_batches)
def test_a_restored_log_and_coordination_are_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock that bounds leader epochs stands still too, so that only the batches show the change."""
    monkeypatch.setattr("klamm.core.cluster.clock_floors.leader_epoch_floor", lambda _: 0)
    restore(tmp_path, with_coordination=True)


def restore(folder: Path, with_coordination: bool) -> None:
    """70 records, a backup, 50 more and a load of all; the backup restored, and 100 other records."""
    with served(folder) as at:
        at.produce(range(70))
    shutil.copytree(folder / "broker", folder / "backup")
    with served(folder) as at:
        at.produce(range(70, 120))
        at.load()
    gone = folder / "broker" if with_coordination else folder / "broker" / "data"
    shutil.rmtree(gone)
    shutil.copytree(folder / "backup" / gone.relative_to(folder / "broker"), gone)
    with served(folder) as at:
        at.produce(range(1000, 1100))
        with pytest.raises(DataLossError, match="t-0: loaded up to offset 120, but the log was cut below it"):
            at.load()


def test_a_restart_and_the_cleaner_change_no_history(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as at:
        at.produce(range(30))
        at.load()
    with served(tmp_path) as at:
        assert at.load() == "load topic=t rows=0: nothing new"
        at.produce(range(30, 60))
        at.client.delete_records({T0: 30})
        assert " rows=30 " in at.load()
        manifest = at.manifest(2)
        assert manifest["topic_id"] == str(at.client.topic_ids(["t"])["t"])


def ignore_gap(patch: pytest.MonkeyPatch) -> None:
    """As before: a first load begins where the log does."""

    def partition(self: LoadJob, tp: TopicPartition, log: object, loaded: object, first: bool) -> _Planned:
        begin = loaded.end if loaded is not None else log.earliest  # type: ignore[attr-defined]
        return _Planned(begin, OffsetRange(tp, begin, log.latest))  # type: ignore[attr-defined]

    patch.setattr(LoadJob, "_partition", partition)


@guarantee("C12", "a first load that does not begin at offset 0 is refused", plant=ignore_gap)
def test_a_gap_before_the_first_load_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as at:
        at.produce(range(100))
        at.client.delete_records({T0: 60})
        with pytest.raises(DataLossError, match=r"t-0: the log begins at offset 60: .* auto.offset.reset: earliest"):
            at.load()


@guarantee("C12", "a gap before the first load is in its manifest and its audit", plant=ignore_gap)
def test_a_gap_that_is_accepted_is_recorded(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as at:
        at.produce(range(100))
        at.client.delete_records({T0: 60})
        line = at.load(**{"auto.offset.reset": "earliest"})
        assert " rows=40 " in line
        assert " offsets=0:0-100 lost=0:0-60 " in line
        assert at.warnings.read_text() == "klamm: t-0: offsets 0 to 60 were deleted before they could be loaded\n"
        span = at.manifest(1)["partitions"]["0"]
        assert (span["lost_to"], span["reset"]) == (60, "earliest")
        lost, held = at.audit(1)
        assert (lost["from"], lost["to"], lost["lost"], lost["windows"]) == (0, 60, True, [])
        assert (held["from"], held["to"], held["lost"]) == (60, 100, False)
        at.client.delete_records({T0: 100})
        assert at.load() == "load topic=t rows=0: nothing new"


def test_all_that_is_new_may_be_lost(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as at:
        at.produce(range(10))
        at.load()
        at.produce(range(10, 30))
        at.client.delete_records({T0: 30})
        with pytest.raises(DataLossError, match="retention deleted the records between"):
            at.load()
        assert " rows=0 files=0 bytes=0 offsets=0:10-30 lost=0:10-30 " in at.load(**{"auto.offset.reset": "earliest"})
        at.produce(range(30, 40))
        assert " rows=10 " in at.load()


def test_latest_goes_on_at_the_end_and_records_what_it_leaves_out(spark: SparkSession, tmp_path: Path) -> None:
    latest = {"auto.offset.reset": "latest"}
    with served(tmp_path) as at:
        at.produce(range(20))
        assert " load=1 rows=0 files=0 bytes=0 offsets=0:0-20 lost=0:0-20 " in at.load(**latest)
        at.produce(range(20, 40))
        assert " load=2 rows=20 files=1 " in at.load(**latest)
        at.produce(range(40, 60))
        at.client.delete_records({T0: 50})
        assert " load=3 rows=0 files=0 bytes=0 offsets=0:40-60 lost=0:40-60 " in at.load(**latest)
        span = at.manifest(3)["partitions"]["0"]
        assert (span["from"], span["lost_to"], span["to"], span["reset"]) == (40, 60, 60, "latest")
        assert [(r["from"], r["to"], r["lost"]) for r in at.audit(3)] == [(40, 60, True)]
        assert at.warnings.read_text().endswith("t-0: offsets 40 to 60 are not loaded: auto.offset.reset is latest\n")


def test_latest_of_an_empty_topic_passes_nothing_over(spark: SparkSession, tmp_path: Path) -> None:
    """Neither what comes after the first run, nor the first records of a partition that is added later."""
    topics = MemoryTopics(partitions=1)
    load = job(spark, topics, str(tmp_path), reset="latest")
    assert load.run(TOPIC) is not None
    assert load.run(TOPIC) is None
    topics.add(0, flight(0))
    topics.partitions = 2
    topics.add(1, flight(1))
    assert load.run(TOPIC) is not None
    assert coordinates(spark, str(tmp_path)) == [(0, 0), (1, 0)]


def test_what_retention_deletes_while_tasks_read_is_recorded(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics(partitions=1)
    for number in range(10):
        topics.add(0, flight(number))
    plain = topics.read

    def read(session: SparkSession, ranges: list[OffsetRange]) -> object:
        topics.started = {0: 4}
        topics.records = [r for r in topics.records if r["offset"] >= 4]
        return plain(session, ranges)

    topics.read = read  # type: ignore[method-assign, assignment]
    result = job(spark, topics, str(tmp_path), reset="earliest").run(TOPIC)
    assert result is not None
    assert [(r.start, r.end) for r in result.lost] == [(0, 4)]
    assert coordinates(spark, str(tmp_path)) == [(0, n) for n in range(4, 10)]


def test_what_retention_deletes_behind_records_that_were_read_is_not_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A task has read the offsets 0 to 2 when retention deletes all below 6: the manifest has no place for that gap."""
    topics = MemoryTopics(partitions=1)
    for number in range(10):
        topics.add(0, flight(number))
    plain = topics.read

    def read(session: SparkSession, ranges: list[OffsetRange]) -> object:
        topics.started = {0: 6}
        topics.records = [r for r in topics.records if r["offset"] < 3 or r["offset"] >= 6]
        return plain(session, ranges)

    topics.read = read  # type: ignore[method-assign, assignment]
    load = job(spark, topics, str(tmp_path), reset="earliest")
    with pytest.raises(DataLossError, match="flights-0: the load has 3 of the offsets 0 to 6, which retention deleted"):
        load.run(TOPIC)
    result = load.run(TOPIC)
    assert result is not None
    assert [(r.start, r.end) for r in result.lost] == [(0, 6)]
    assert coordinates(spark, str(tmp_path)) == [(0, n) for n in range(6, 10)]


def test_what_retention_deletes_after_it_was_read_is_no_loss(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics(partitions=1)
    for number in range(10):
        topics.add(0, flight(number))
    plain = topics.read

    def read(session: SparkSession, ranges: list[OffsetRange]) -> object:
        topics.started = {0: 6}
        return plain(session, ranges)

    topics.read = read  # type: ignore[method-assign, assignment]
    result = job(spark, topics, str(tmp_path), reset="earliest").run(TOPIC)
    assert result is not None
    assert (result.lost, result.rows) == ((), 10)


def epochs_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryTopics, "epoch_ends", lambda *_: {})


@guarantee("A1", "leader epochs tell where the loaded batch is deleted or rewritten", plant=epochs_ignored)
@pytest.mark.parametrize(
    ("epochs", "why"), [([(0, 0), (5, 3)], "leader epoch 2 ends at offset 3"), ([(0, 0)], "leader epoch 2 is unknown")]
)
def test_leader_epochs_decide_where_the_batch_is_gone(
    spark: SparkSession, tmp_path: Path, epochs: list[tuple[int, int]], why: str
) -> None:
    topics = MemoryTopics(partitions=1, epochs={0: [(0, 0), (2, 4)]})
    for number in range(6):
        topics.add(0, flight(number))
    load = job(spark, topics, str(tmp_path), reset="earliest")
    load.run(TOPIC)
    topics.started = {0: 6}
    topics.add(0, flight(6))
    assert load.run(TOPIC) is not None
    topics.started = {0: 8}
    topics.epochs = {0: epochs}
    with pytest.raises(DataLossError, match=why):
        load.run(TOPIC)
