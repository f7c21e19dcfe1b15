"""The small files of the log: every flipped bit is noticed."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from klamm.core.errors import CorruptRecordError, StorageError
from klamm.core.log.log_directory import (
    CLEAN_SHUTDOWN,
    META,
    DirectoryMeta,
    claim_meta,
    leave_clean_marker,
    read_meta,
    take_clean_marker,
)
from klamm.core.log.state.checkpoints import OffsetCheckpoint
from klamm.core.log.state.leader_epochs import LeaderEpochs
from klamm.core.log.state.producer_state import ProducerState
from klamm.core.log.state.topic_id import claim_directory, read_topic_id
from klamm.core.records.header import BatchHeader
from klamm.core.records.partition import TopicPartition
from klammtest.logs import batch

TP = TopicPartition("events", 3)


def flips(raw: bytes) -> list[bytes]:
    return [raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :] for at in range(len(raw)) for bit in range(8)]


def test_offset_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    OffsetCheckpoint(path).write({TP: 12, TopicPartition("a", 0): 7})
    for raw in flips(path.read_bytes()):
        path.write_bytes(raw)
        with pytest.raises(StorageError, match="is damaged"):
            OffsetCheckpoint(path).read()


def test_leader_epochs(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    epochs = LeaderEpochs(path)
    epochs.assign(1, 0)
    epochs.assign(4, 17)
    for raw in flips(path.read_bytes()):
        path.write_bytes(raw)
        with pytest.raises(StorageError, match="is damaged"):
            LeaderEpochs.read(path)


def test_meta_properties(tmp_path: Path) -> None:
    meta = claim_meta(tmp_path, "c1", 3)
    path = tmp_path / META
    whole = path.read_bytes()
    for raw in flips(whole):
        path.write_bytes(raw)
        with pytest.raises(StorageError, match="is damaged"):
            read_meta(tmp_path)
    path.write_bytes(whole)
    assert read_meta(tmp_path) == meta == DirectoryMeta("c1", 3, meta.directory_id)


def test_partition_metadata(tmp_path: Path) -> None:
    claim_directory(tmp_path, TP, UUID(int=7))
    path = tmp_path / "partition.metadata"
    whole = path.read_bytes()
    for raw in flips(whole):
        path.write_bytes(raw)
        with pytest.raises(StorageError, match="is damaged"):
            read_topic_id(tmp_path)
    path.write_bytes(whole)
    assert read_topic_id(tmp_path) == UUID(int=7)


def test_the_mark_of_a_clean_stop(tmp_path: Path) -> None:
    leave_clean_marker(tmp_path)
    path = tmp_path / CLEAN_SHUTDOWN
    for raw in flips(path.read_bytes()):
        path.write_bytes(raw)
        assert not take_clean_marker(tmp_path)
        assert not path.exists()
    leave_clean_marker(tmp_path)
    assert take_clean_marker(tmp_path)
    assert not take_clean_marker(tmp_path)


def test_snapshots_of_producers() -> None:
    state = ProducerState(TP)
    for pid in range(3):
        state.update(BatchHeader.parse(batch(producer=(pid, 0, 0))))
    for raw in flips(state.to_bytes()):
        with pytest.raises(CorruptRecordError):
            ProducerState.from_bytes(TP, raw)
