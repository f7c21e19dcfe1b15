"""Names on disk, and the offset checkpoints."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from klamm.core.errors import StorageError
from klamm.core.log.errors import InvalidTopicNameError
from klamm.core.log.segment.naming import (
    check_topic_name,
    is_deleted,
    is_stray,
    parse_directory,
    parse_segment_file,
    partition_directory,
    suffixed,
)
from klamm.core.log.state.checkpoints import OffsetCheckpoint
from klamm.core.log.state.topic_id import parse_uuid, uuid_text
from klamm.core.records.partition import TopicPartition


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "a b", "ä", "x" * 250, "a\n", "a\0"])
def test_names_that_cannot_be_topics(name: str) -> None:
    with pytest.raises(InvalidTopicNameError, match="should be 1 to 249"):
        check_topic_name(name)
    with pytest.raises(InvalidTopicNameError):
        partition_directory(TopicPartition(name, 0))


@pytest.mark.parametrize("topic", ["a", "my-topic-7", "x" * 249, "...", "a.b_c-d"])
def test_directories_round_trip(topic: str) -> None:
    tp = TopicPartition(topic, 12)
    assert parse_directory(partition_directory(tp)) == tp


@pytest.mark.parametrize("name", ["topic", "topic-", "topic-x", "topic-01", "-1", "lost+found", "a b-1"])
def test_other_directories_are_no_partitions(name: str) -> None:
    assert parse_directory(name) is None


def test_suffixes_fit_and_are_recognised() -> None:
    for topic in ("t", "x" * 249):
        deleted = suffixed(TopicPartition(topic, 123), UUID(int=5), "delete")
        stray = suffixed(TopicPartition(topic, 123), UUID(int=5), "stray")
        assert len(deleted) <= 255
        assert is_deleted(deleted)
        assert is_stray(stray)
        assert not is_deleted(stray)
        assert parse_directory(stray) is None
        assert parse_directory(deleted) is None
    assert not is_deleted("topic-delete-0")
    assert parse_directory("topic-delete-0") == TopicPartition("topic-delete", 0)


def test_segment_files() -> None:
    assert parse_segment_file("00000000000000000042.log") == (42, ".log")
    for name in ("42.log", "00000000000000000042.log.deleted", "00000000000000000042", "notes.txt"):
        assert parse_segment_file(name) is None


def test_uuids_are_written_as_kafka_does() -> None:
    value = UUID("01234567-89ab-cdef-0123-456789abcdef")
    assert uuid_text(value) == "ASNFZ4mrze8BI0VniavN7w"
    assert parse_uuid(uuid_text(value)) == value


def test_checkpoints_round_trip_in_kafka_s_format(tmp_path: Path) -> None:
    checkpoint = OffsetCheckpoint(tmp_path / "recovery-point-offset-checkpoint")
    assert checkpoint.read() == {}
    offsets = {TopicPartition("a", 0): 5, TopicPartition("b-c", 11): 2**40}
    checkpoint.write(offsets)
    assert checkpoint.path.read_text() == f"1\n2\na 0 5\nb-c 11 {2**40}\ncrc32c 8b67f6af\n"
    assert OffsetCheckpoint(checkpoint.path).read() == offsets
    before = checkpoint.path.stat().st_ino
    checkpoint.write(dict(offsets))
    assert checkpoint.path.stat().st_ino == before, "nothing changed, nothing written"


@pytest.mark.parametrize("text", ["", "2\n0\n", "0\n2\na 0 5\n", "0\n1\na 0\n", "0\n1\na x 5\n"])
def test_damaged_checkpoints_are_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(StorageError, match="is damaged"):
        OffsetCheckpoint(path).read()
