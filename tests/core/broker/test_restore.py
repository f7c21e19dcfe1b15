"""Restored backups: an older coordination beside newer logs, older logs beside a newer coordination."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import klamm
from klamm.core.broker.replication import roles
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.cluster.clock_floors import leader_epoch_floor
from klamm.core.cluster.topics import TopicChanges
from klamm.core.cluster.tree import paths
from klamm.core.errors import ErrorCode, StorageError
from klamm.core.interfaces.coordination import Coordination, Create, Delete
from klamm.core.log.manager import LogManager
from klamm.core.log.partition_log import PartitionLog
from klamm.core.plugins import plugin_host
from klamm.core.records.codecs import CodecTable
from klamm.core.records.epoch_end import EpochEnd
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.partition_state import PartitionState
from klammtest.brokers.inprocess import broker_thread
from klammtest.clients.readers import read
from klammtest.guarantees import guarantee
from klammtest.requests import batch, create_topic, fetch, metadata, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient

TREE = "tree.db"
T0 = TopicPartition("t", 0)


@contextmanager
def broker(folder: Path) -> Iterator[WireClient]:
    with broker_thread(folder, {"plugin": "embedded", "path": str(folder / TREE)}) as running:
        own = running.advertised[0]
        with WireClient(f"{own.host}:{own.port}") as wire:
            yield wire


@contextmanager
def coordination(folder: Path) -> Iterator[Coordination]:
    tree = plugin_host().coordinations.create("embedded", {"path": str(folder / TREE)})
    tree.start()
    yield tree
    tree.close()


def set_leader_epoch(folder: Path, epoch: int) -> None:
    """As many elections would."""
    path = paths.partition_state("t", 0)
    with coordination(folder) as tree:
        state = PartitionState.decode(path, tree.get(path)[0])
        tree.set(path, replace(state, leader_epoch=epoch).encode())


def leader_epoch(wire: WireClient) -> int:
    return int(metadata(wire, ["t"]).topics[0].partitions[0].leader_epoch)


def raise_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicChanges, "raise_leader_epochs", lambda *_: None)


@guarantee("D14", "leader epochs do not go back with a coordination from an older backup", plant=raise_nothing)
def test_an_older_coordination_goes_on_above_the_logs_epochs(tmp_path: Path) -> None:
    with broker(tmp_path) as wire:
        create_topic(wire, "t")
    shutil.copy(tmp_path / TREE, tmp_path / "backup.db")
    far = 2**30 + 7  # above what the clock gives
    set_leader_epoch(tmp_path, far)
    with broker(tmp_path) as wire:
        assert leader_epoch(wire) == far + 1
        assert produce(wire, "t", batch(b"a")).base_offset == 0
    shutil.copy(tmp_path / "backup.db", tmp_path / TREE)
    for start in (2, 3):
        with broker(tmp_path) as wire:
            assert leader_epoch(wire) == far + start
            assert produce(wire, "t", batch(b"b")).error_code is ErrorCode.none
            assert fetch(wire, "t", 0, leader_epoch=far + start).error_code is ErrorCode.none
    with broker(tmp_path) as wire:
        assert fetch(wire, "t", 0).high_watermark == 3


def believe_the_coordination(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(roles, "_went_back", lambda *_: False)


@guarantee("D14", "a backup restored under a running broker deletes no topic's records", plant=believe_the_coordination)
def test_what_an_older_coordination_lacks_was_not_deleted(tmp_path: Path) -> None:
    with broker(tmp_path) as wire:
        create_topic(wire, "t")
        produce(wire, "t", batch(b"a"))
        with coordination(tmp_path) as tree:  # what a restored tree of that time would hold
            tree.delete(paths.topic("t"), recursive=True)
            tree.delete(paths.topic_config("t"))
            tree.transaction([Delete(paths.METADATA_VERSION), Create(paths.METADATA_VERSION, b"{}")])
        eventually(lambda: not metadata(wire, None).topics, "the broker sees the older tree")
        eventually(lambda: not (tmp_path / "data" / "t-0").exists(), "its log is cleared away")
    assert len(list((tmp_path / "data").glob("t-0.*-stray"))) == 1


def test_topics_made_after_the_backup_are_set_aside(tmp_path: Path) -> None:
    with broker(tmp_path) as wire:
        create_topic(wire, "t")
    shutil.copy(tmp_path / TREE, tmp_path / "backup.db")
    with broker(tmp_path) as wire:
        create_topic(wire, "later")
        produce(wire, "later", batch(b"a"))
    shutil.copy(tmp_path / "backup.db", tmp_path / TREE)
    with broker(tmp_path) as wire:
        assert [topic.name for topic in metadata(wire, None).topics] == ["t"]
    (stray,) = (tmp_path / "data").glob("later-0.*-stray")
    assert (stray / f"{0:020}.log").stat().st_size > 0


def test_older_logs_go_on_where_they_end(tmp_path: Path) -> None:
    with broker(tmp_path) as wire:
        create_topic(wire, "t")
        produce(wire, "t", batch(b"a"))
    shutil.copytree(tmp_path / "data", tmp_path / "backup")
    with broker(tmp_path) as wire:
        produce(wire, "t", batch(b"b", b"c"))
    shutil.rmtree(tmp_path / "data")
    shutil.move(tmp_path / "backup", tmp_path / "data")
    with broker(tmp_path) as wire:
        assert fetch(wire, "t", 3).error_code is ErrorCode.offset_out_of_range
        assert produce(wire, "t", batch(b"d")).base_offset == 1


@pytest.fixture
def crashes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on brokers end as after kill -9, as far as files and coordination show it."""

    def crash() -> None:
        close = LogManager.close
        monkeypatch.setattr(LogManager, "close", lambda logs, **_: close(logs, clean=False))

    return crash


def keep_epochs(patch: pytest.MonkeyPatch) -> None:
    """Only logs that are ahead of the coordination get another leader epoch."""

    def keep(before: PartitionState, after: PartitionState, _: int) -> PartitionState:
        return replace(after, leader_epoch=before.leader_epoch)

    patch.setattr("klamm.core.cluster.control.leadership.above_floor", keep)


def restore_logs(folder: Path) -> None:
    shutil.rmtree(folder / "data")
    shutil.move(folder / "backup", folder / "data")


@guarantee("A1", "a consumer group of a broker restored from an older backup skips no records", plant=keep_epochs)
@pytest.mark.parametrize("ended", ["in order", "by kill -9"])
@pytest.mark.parametrize("copied", ["when stopped", "while it ran"])
def test_a_group_over_older_logs(tmp_path: Path, ended: str, copied: str, crashes: Callable[[], None]) -> None:
    """70 records are in the backup, the group has read and committed 120; 60 others take the place of the lost 50."""
    with broker(tmp_path) as wire:
        create_topic(wire, "t")
        produce(wire, "t", batch(*[b"kept"] * 70))
        if copied == "while it ran":
            shutil.copytree(tmp_path / "data", tmp_path / "backup", ignore=shutil.ignore_patterns("*.tmp"))
    if copied == "when stopped":
        shutil.copytree(tmp_path / "data", tmp_path / "backup")
    if ended == "by kill -9":
        crashes()
    with group(tmp_path) as (wire, config):
        produce(wire, "t", batch(*[b"lost"] * 50))
        with klamm.Consumer(config, topics=["t"]) as consumer:
            assert len(read(consumer, 120)) == 120
            consumer.commit()
    restore_logs(tmp_path)
    with group(tmp_path) as (wire, config):
        assert produce(wire, "t", batch(*[b"new"] * 60)).base_offset == 70
        with klamm.Consumer(config, topics=["t"]) as consumer:
            assert read(consumer, 1)[0].offset == 70


@contextmanager
def group(folder: Path) -> Iterator[tuple[WireClient, dict[str, dict[str, str]]]]:
    """A broker, and the configuration of a group's member."""
    tree = {"plugin": "embedded", "path": str(folder / TREE)}
    with broker_thread(folder, tree) as running:
        own = running.advertised[0]
        at = f"{own.host}:{own.port}"
        consumer = {"bootstrap.servers": at, "group.id": "g", "auto.offset.reset": "earliest"}
        with WireClient(at) as wire:
            yield wire, {"coordination": tree, "consumer": consumer}


@pytest.mark.parametrize("ended", ["in order", "by kill -9"])
def test_each_start_begins_a_leader_epoch(tmp_path: Path, ended: str, crashes: Callable[[], None]) -> None:
    """The log may have lost its end, or be out of a backup together with the coordination: nothing in them can tell."""
    if ended == "by kill -9":
        crashes()
    with broker(tmp_path) as wire:
        create_topic(wire, "t")
        produce(wire, "t", batch(b"a"))
        epochs = [leader_epoch(wire)]
    assert epochs == [0]
    for _ in range(2):
        with broker(tmp_path) as wire:
            epochs.append(leader_epoch(wire))
            produce(wire, "t", batch(b"b"))
    assert sorted(set(epochs)) == epochs


def forget_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Epochs are counted on from what the backup holds."""
    patch.setattr("klamm.core.cluster.clock_floors.leader_epoch_floor", lambda _: 0)


@guarantee("A1", "logs and coordination from one backup never repeat a leader epoch", plant=forget_the_clock)
def test_a_history_that_is_lost_ends_where_the_backup_did(tmp_path: Path) -> None:
    """70 records are in the backup, 50 more are lost with the restore, 60 new ones take their offsets: whoever has read
    the lost ones is told that their leader epoch ends at 70."""
    with broker(tmp_path) as wire:
        create_topic(wire, "t")
        produce(wire, "t", batch(*[b"kept"] * 70))
    backup = tmp_path / "backup"
    backup.mkdir()
    shutil.copytree(tmp_path / "data", backup / "data")
    shutil.copy(tmp_path / TREE, backup / TREE)
    with broker(tmp_path) as wire:
        produce(wire, "t", batch(*[b"lost"] * 50))
        lost = leader_epoch(wire)
    shutil.rmtree(tmp_path / "data")
    for left in tmp_path.glob(f"{TREE}*"):
        left.unlink()
    shutil.move(backup / "data", tmp_path / "data")
    shutil.move(backup / TREE, tmp_path / TREE)
    eventually(lambda: leader_epoch_floor(time.time()) > lost, "the clock has gone on since")
    with group(tmp_path) as (wire, config):
        assert produce(wire, "t", batch(*[b"new"] * 60)).base_offset == 70
        with ClusterClient(str(config["consumer"]["bootstrap.servers"]), codecs=CodecTable()) as client:
            assert client.leader_epoch_ends({T0: lost}) == {T0: EpochEnd(0, 70)}


@pytest.mark.parametrize("partitions", [2, 70], ids=["one by one", "together"])
def test_epochs_are_durable_before_they_are_led(
    tmp_path: Path, partitions: int, monkeypatch: pytest.MonkeyPatch, crashes: Callable[[], None]
) -> None:
    crashes()
    with broker(tmp_path) as wire:
        create_topic(wire, "t", partitions)
    waited: list[list[PartitionLog]] = []
    sync = LogManager.make_durable

    def synced(logs: LogManager) -> dict[TopicPartition, StorageError]:
        waited.append([log for log in logs.logs().values() if not log.is_durable])
        return sync(logs)

    monkeypatch.setattr(LogManager, "make_durable", synced)
    with broker(tmp_path) as wire:
        assert leader_epoch(wire) > 0
        assert len(waited[0]) == partitions
        assert all(log.is_durable for log in waited[0])
