"""A coordination that is older than the logs: what it allocates goes on above what the logs hold."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from klamm.core.cluster import node, producer_ids
from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.image import Endpoint
from klamm.core.cluster.producer_ids import SKIPPED, allocate_block
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.bootstrap import create_base_paths
from klamm.core.cluster.tree.nodes import ProducerIdBlockNode
from klamm.core.cluster.tree.steps import run_steps
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.coordination import Coordination
from klamm.core.log.state.given_producer_ids import GIVEN_PRODUCER_IDS, GivenProducerIds
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.encode import encode_batch
from klammtest.brokers.inprocess import broker_thread
from klammtest.guarantees import guarantee
from klammtest.requests import create_topic, produce
from klammtest.wire import WireClient


def set_back(coordination: Coordination, last: int) -> None:
    """As in a backup from when `last` was the last id given out."""
    node = ProducerIdBlockNode(broker=0, block_start=last - 999, block_end=last)
    coordination.set(paths.PRODUCER_ID_BLOCK, node.encode())


def test_a_block_begins_above_what_is_used(coordination: Coordination, caplog: pytest.LogCaptureFixture) -> None:
    assert run_steps(coordination, allocate_block(0)) == range(1000)
    assert run_steps(coordination, allocate_block(0, highest_used=999)) == range(1000, 2000)
    assert "backup" not in caplog.text
    set_back(coordination, 999)
    begin = 1700 + SKIPPED + 1
    assert run_steps(coordination, allocate_block(0, highest_used=1700)) == range(begin, begin + 1000)
    (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "allocated producer id is 999, but the log directory has 1700" in line
    assert f"the next id is {begin}" in line


def test_a_broker_that_joins_has_the_others_go_on_above_its_logs(coordination: Coordination) -> None:
    create_base_paths(coordination, uuid4)
    assert run_steps(coordination, allocate_block(1)) == range(1000)
    joining = Cluster(coordination, 0, [Endpoint("127.0.0.1", 9092)], data_ids=("d",), highest_producer_id=lambda: 5000)
    joining.register()
    try:
        assert run_steps(coordination, allocate_block(1)).start == 5000 + SKIPPED + 1
    finally:
        joining.close()


def test_a_restore_under_a_running_broker_is_noticed(coordination: Coordination) -> None:
    """Ids that this broker has allocated are not allocated again, whether they were written with or not."""
    broker_cluster = Cluster(coordination, 0, [Endpoint("127.0.0.1", 9092)], data_ids=("d",))
    broker_cluster.register()
    try:
        first, second = broker_cluster.allocate_producer_ids(), broker_cluster.allocate_producer_ids()
        set_back(coordination, first.stop - 1)
        assert broker_cluster.allocate_producer_ids().start > second.stop
    finally:
        broker_cluster.close()


@contextmanager
def broker(folder: Path) -> Iterator[WireClient]:
    with broker_thread(folder, {"plugin": "embedded", "path": str(folder / "tree.db")}) as running:
        own = running.advertised[0]
        with WireClient(f"{own.host}:{own.port}") as wire:
            yield wire


def new_producer(wire: WireClient) -> tuple[int, int]:
    """Its id and epoch."""
    patience = timedelta(minutes=1)
    who = wire.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=patience)
    assert who.error_code is ErrorCode.none
    return who.producer_id, who.producer_epoch


def five_records(wire: WireClient, producer: tuple[int, int]) -> list[int]:
    """The first five of a producer; the offsets that its batches were acknowledged with."""
    offsets = []
    for sequence in range(5):
        record = encode_batch(
            [(1_700_000_000_000, None, b"x", ())],
            producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence,
        )  # fmt: skip
        answer = produce(wire, "t", record)
        assert answer.error_code is ErrorCode.none
        offsets.append(answer.base_offset)
    return offsets


def restore_tree(folder: Path, backup: bytes) -> None:
    for left in folder.glob("tree.db-*"):
        left.unlink()
    (folder / "tree.db").write_bytes(backup)


def believe_the_coordination(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(producer_ids, "_above", lambda last, highest_used: last)


@guarantee("D14", "a coordination from an older backup gives no producer id again", plant=believe_the_coordination)
def test_new_producers_are_not_taken_for_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "producer_id_floor", lambda _: 0)  # a clock that is behind: the logs alone tell
    with broker(tmp_path) as wire:
        create_topic(wire, "t")
    backup = (tmp_path / "tree.db").read_bytes()
    with broker(tmp_path) as wire:
        assert five_records(wire, new_producer(wire)) == [0, 1, 2, 3, 4]
    restore_tree(tmp_path, backup)
    with broker(tmp_path) as wire:
        assert five_records(wire, new_producer(wire)) == [5, 6, 7, 8, 9]


def forget_the_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(node, "producer_id_floor", lambda _: 0)


@guarantee("D14", "nor do logs and coordination from one backup", plant=forget_the_clock)
def test_a_producer_that_outlives_a_restore_shares_its_id_with_nobody(tmp_path: Path) -> None:
    with broker(tmp_path) as wire:
        create_topic(wire, "t")
    backup = (tmp_path / "tree.db").read_bytes()
    shutil.copytree(tmp_path / "data", tmp_path / "backup")
    with broker(tmp_path) as wire:
        living = new_producer(wire)
    restore_tree(tmp_path, backup)
    shutil.rmtree(tmp_path / "data")
    shutil.move(tmp_path / "backup", tmp_path / "data")
    with broker(tmp_path) as wire:
        assert five_records(wire, new_producer(wire)) == [0, 1, 2, 3, 4]
        assert five_records(wire, living) == [5, 6, 7, 8, 9]


def test_ids_that_were_given_and_not_written_with_are_not_given_again(tmp_path: Path) -> None:
    """Nor after a restart, nor where the file that says it is damaged: then by the logs alone."""
    given = GivenProducerIds(tmp_path)
    assert given.highest == -1
    given.note(1999)
    given.note(999)
    assert GivenProducerIds(tmp_path).highest == 1999
    path = tmp_path / GIVEN_PRODUCER_IDS
    path.write_bytes(path.read_bytes().replace(b"1999", b"1998"))
    assert GivenProducerIds(tmp_path).highest == -1


def test_a_broker_notes_what_it_takes(coordination: Coordination, tmp_path: Path) -> None:
    given = GivenProducerIds(tmp_path)
    broker_cluster = Cluster(
        coordination, 0, [Endpoint("127.0.0.1", 9092)], data_ids=("d",), note_producer_id=given.note
    )
    broker_cluster.register()
    try:
        block = broker_cluster.allocate_producer_ids()
        assert GivenProducerIds(tmp_path).highest == block.stop - 1
    finally:
        broker_cluster.close()
