"""Restored backups: an older coordination beside newer logs, older logs beside a newer coordination."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.core.broker import leadership
from klamm.core.cluster import paths
from klamm.core.cluster.nodes import PartitionStateNode
from klamm.core.cluster.topics import TopicChanges
from klamm.core.errors import ErrorCode
from klamm.core.plugins import plugin_host
from klamm.core.seams.coordination import Coordination, Create, Delete
from klammtest.guarantees import guarantee
from klammtest.inprocess import broker_thread
from klammtest.requests import batch, create_topic, fetch, metadata, produce
from klammtest.wire import WireClient
from klammtest.zookeeper import eventually

TREE = "tree.db"


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
        state = PartitionStateNode.decode(path, tree.get(path)[0])
        tree.set(path, state.model_copy(update={"leader_epoch": epoch}).encode())


def leader_epoch(wire: WireClient) -> int:
    return int(metadata(wire, ["t"]).topics[0].partitions[0].leader_epoch)


def raise_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicChanges, "raise_leader_epochs", lambda *_: None)


@guarantee("D14", "leader epochs do not go back with a coordination from an older backup", plant=raise_nothing)
def test_an_older_coordination_goes_on_above_the_logs_epochs(tmp_path: Path) -> None:
    with broker(tmp_path) as wire:
        create_topic(wire, "t")
    shutil.copy(tmp_path / TREE, tmp_path / "backup.db")
    set_leader_epoch(tmp_path, 7)
    with broker(tmp_path) as wire:
        assert leader_epoch(wire) == 7
        assert produce(wire, "t", batch(b"a")).base_offset == 0
    shutil.copy(tmp_path / "backup.db", tmp_path / TREE)
    for _ in range(2):  # the second start finds nothing to raise
        with broker(tmp_path) as wire:
            assert leader_epoch(wire) == 8
            assert produce(wire, "t", batch(b"b")).error_code is ErrorCode.none
            assert fetch(wire, "t", 0, leader_epoch=8).error_code is ErrorCode.none
    with broker(tmp_path) as wire:
        assert fetch(wire, "t", 0).high_watermark == 3


def believe_the_coordination(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leadership, "_went_back", lambda *_: False)


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
