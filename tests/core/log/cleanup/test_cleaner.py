"""The cleaner: which logs it takes, what it remembers, and that a running broker compacts while it serves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import Producer as ForeignProducer
from confluent_kafka import TopicPartition as ForeignPartition

from klamm.core.config.sections.topic import TopicConfig
from klamm.core.log.cleanup.cleaner import Cleaner, CleanerConfig, CompactedTo
from klamm.core.log.cleanup.throttle import Throttle
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.state.checkpoints import CLEANER_OFFSETS
from klamm.core.records.partition import TopicPartition
from klammtest.broker import running_broker
from klammtest.logs import START_MS, ManualClock, append, batch, codec_table, read_all
from klammtest.waiting import eventually

CODECS = codec_table()
IDS = (UUID(int=number) for number in itertools.count(1))


class Disk:
    """A log directory, its clock, and the cleaner of its broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.configs: dict[str, TopicConfig] = {}
        self.open()

    def open(self) -> None:
        self.logs = LogManager(
            self.folder, broker_id=0, cluster_id="c", codecs=CODECS, clock=self.clock,
            config_for=lambda name: self.configs[name],
        )  # fmt: skip
        self.cleaner = Cleaner(self.logs, CODECS, CleanerConfig(), self.clock)

    def table(self, name: str, **config: object) -> PartitionLog:
        given = {"cleanup_policy": "compact", "segment_bytes": 500, **config}
        self.configs[name] = TopicConfig.model_validate(given, by_name=True)
        return self.logs.create(TopicPartition(name, 0), next(IDS), self.configs[name])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    found = Disk(tmp_path)
    yield found
    found.logs.close()


def fill(log: PartitionLog, count: int, timestamp_ms: int = START_MS) -> None:
    for number in range(count):
        append(log, batch([b"%d" % number], timestamp_ms=timestamp_ms))


def test_the_dirtiest_first_then_none(disk: Disk) -> None:
    little, much = disk.table("little"), disk.table("much")
    fill(little, 20)
    assert disk.cleaner.run_once()
    fill(little, 20)
    fill(much, 20)
    assert disk.cleaner.run_once()
    assert disk.cleaner.compacted_to(much) > 0
    before = len(read_all(little))
    assert disk.cleaner.run_once()
    assert len(read_all(little)) < before
    assert not disk.cleaner.run_once()


def test_other_topics_are_left_alone(disk: Disk) -> None:
    log = disk.table("events", cleanup_policy="delete")
    fill(log, 20)
    assert not disk.cleaner.run_once()
    assert len(read_all(log)) == 20


def test_below_the_dirty_ratio_nothing_happens(disk: Disk) -> None:
    log = disk.table("t", min_cleanable_dirty_ratio=1.0)
    fill(log, 20)
    assert not disk.cleaner.run_once()


def test_young_records_are_left_alone(disk: Disk) -> None:
    log = disk.table("t", min_compaction_lag_ms=1000)
    fill(log, 20)
    assert not disk.cleaner.run_once()
    disk.clock.advance(1001)
    assert disk.cleaner.run_once()


def test_old_records_are_compacted_whatever_the_ratio(disk: Disk) -> None:
    """Those in the segment that is written, too: it is rolled for them."""
    log = disk.table("t", min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000, segment_bytes=1 << 20)
    fill(log, 20)
    assert not disk.cleaner.run_once()
    disk.clock.advance(1001)
    assert disk.cleaner.run_once()
    assert [record.value for record in read_all(log)] == [b"19"]


def test_how_far_it_came_is_remembered(disk: Disk) -> None:
    log = disk.table("t")
    fill(log, 20)
    assert disk.cleaner.run_once()
    reached = disk.cleaner.compacted_to(log)
    disk.logs.close()
    disk.open()
    again = disk.logs.get(log.tp)
    assert again is not None
    assert disk.cleaner.compacted_to(again) == reached > 0
    assert not disk.cleaner.run_once()


def test_a_topic_made_anew_begins_at_its_start(disk: Disk) -> None:
    log = disk.table("t")
    fill(log, 20)
    assert disk.cleaner.run_once()
    disk.logs.remove(log.tp)
    new = disk.table("t")
    assert disk.cleaner.compacted_to(new) == 0
    fill(new, 20)
    assert disk.cleaner.run_once()
    assert len(read_all(new)) < 20


def test_a_damaged_checkpoint_costs_a_pass(disk: Disk) -> None:
    log = disk.table("t")
    fill(log, 20)
    assert disk.cleaner.run_once()
    last = [record.value for record in read_all(log)][-1]
    disk.logs.close()
    (disk.folder / CLEANER_OFFSETS).write_bytes(b"what?")
    disk.open()
    again = disk.logs.get(log.tp)
    assert again is not None
    assert disk.cleaner.run_once()
    assert read_all(again)[-1].value == last


def harm(log: PartitionLog) -> Path:
    """Flips a bit of a batch in the first sealed segment; returns its file."""
    path = log.sealed_segments()[0].path
    raw = bytearray(path.read_bytes())
    raw[70] ^= 1
    path.write_bytes(raw)
    return path


def test_a_batch_that_cannot_be_read_is_left_with_its_log(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    log = disk.table("t")
    fill(log, 20)
    path = harm(log)
    harmed = path.read_bytes()
    assert disk.cleaner.run_once()
    assert "t-0 cannot be compacted" in caplog.text
    assert not disk.cleaner.run_once()
    assert path.read_bytes() == harmed


def test_a_batch_that_cannot_be_read_leaves_the_other_partitions(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    damaged = disk.table("t")
    other = disk.logs.create(TopicPartition("t", 1), damaged.topic_id, damaged.config)
    for log in (damaged, other):
        fill(log, 20)
    harm(damaged)
    assert disk.cleaner.run_once()
    assert "t-0 cannot be compacted" in caplog.text
    assert disk.cleaner.run_once()
    assert disk.cleaner.compacted_to(other) > 0
    assert not disk.cleaner.run_once()


def test_a_truncation_under_a_pass_is_no_damage(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pass finds the end of a segment cut off that it is reading."""
    log = disk.table("t")
    fill(log, 20)

    def truncate(_: float) -> bool:
        if log.log_end_offset > 1:
            log.truncate_to(1)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(disk.cleaner, "_tools", replace(disk.cleaner._tools, throttle=Throttle(1e12, truncate)))
        assert not disk.cleaner.run_once()
    assert "cannot be compacted" not in caplog.text
    fill(log, 20)
    assert disk.cleaner.run_once()
    assert disk.cleaner.compacted_to(log) > 0


def test_a_broker_compacts_while_it_is_written_and_read(tmp_path: Path) -> None:
    """With standard clients: the last value of every key is what a reader from the start ends with."""
    table = {"partitions": 1, "config": {"cleanup.policy": "compact", "segment.bytes": 20_000, "segment.ms": 1000}}
    with running_broker(tmp_path, topics={"table": table}, broker={"log.cleaner.backoff.ms": 10}) as broker:
        producer: Any = ForeignProducer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        for number in range(3000):
            producer.produce("table", b"%d" % number, b"key-%d" % (number % 10))
            if number % 20 == 19:
                producer.flush(60)
        eventually(lambda: "is compacted to offset" in broker.log(), "compaction", 60)
        found: dict[bytes, bytes] = {}
        seen: list[int] = []
        reader: Any = ForeignConsumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        reader.assign([ForeignPartition("table", 0, 0)])

        def read_on() -> bool:
            for message in reader.consume(500, timeout=0.2):
                assert message.error() is None, message.error()
                found[message.key()] = message.value()
                seen.append(message.offset())
            return bool(seen) and seen[-1] == 2999

        eventually(read_on, "the last record", 60)
        reader.close()
        assert found == {b"key-%d" % (n % 10): b"%d" % n for n in range(2990, 3000)}
        assert seen == sorted(set(seen))
        assert "Traceback" not in broker.log()


def test_a_topic_created_anew_is_not_given_the_old_ones_place(disk: Disk) -> None:
    """Deleted and made again, and the broker killed before the cleaner wrote anything of it."""
    log = disk.table("t")
    fill(log, 20)
    assert disk.cleaner.run_once()
    disk.logs.remove(log.tp)
    fill(disk.table("t"), 20)
    disk.logs.close(clean=False)
    disk.open()
    again = disk.logs.logs()[log.tp]
    again.advance_high_watermark(again.log_end_offset)
    assert disk.cleaner.compacted_to(again) == 0
    assert disk.cleaner.run_once()


def test_a_truncated_log_is_compacted_again(disk: Disk) -> None:
    """Otherwise records appended since the truncation, below the old offset, count as compacted for ever."""
    log = disk.table("t")
    fill(log, 60)
    assert disk.cleaner.run_once()
    reached = disk.cleaner.compacted_to(log)
    cut = log.sealed_segments()[0].base_offset + 1
    log.truncate_to(cut)
    assert disk.cleaner.compacted_to(log) == 0
    assert log.tp not in disk.logs.shared_checkpoint(CLEANER_OFFSETS).read()
    while log.log_end_offset <= reached + 20:
        fill(log, 1)
    assert disk.cleaner.run_once()
    assert disk.cleaner.compacted_to(log) > reached
    sealed_end = log.sealed_end(log.sealed_segments())
    assert len([record for record in read_all(log) if record.offset < sealed_end]) == 1, "the last of the one key"


def test_a_pass_that_a_truncation_overtakes_counts_for_nothing(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = disk.table("t")
    fill(log, 60)
    write = disk.cleaner._write_checkpoint

    def truncate_then_write(log: PartitionLog, compacted_to: CompactedTo) -> None:
        log.truncate_to(1)
        write(log, compacted_to)

    monkeypatch.setattr(disk.cleaner, "_write_checkpoint", truncate_then_write)
    assert disk.cleaner.run_once()
    assert disk.cleaner.compacted_to(log) == 0
    assert log.tp not in disk.logs.shared_checkpoint(CLEANER_OFFSETS).read()


def test_an_offset_beyond_the_log_is_not_used(disk: Disk) -> None:
    log = disk.table("t")
    fill(log, 60)
    assert disk.cleaner.run_once()
    log.on_truncated = None  # as if the process ended before the checkpoints were corrected
    log.truncate_to(1)
    disk.logs.close()
    disk.open()
    again = disk.logs.get(TopicPartition("t", 0))
    assert again is not None
    fill(again, 100)
    assert disk.cleaner.compacted_to(again) == 0
