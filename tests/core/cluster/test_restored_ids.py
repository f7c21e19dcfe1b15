"""A coordination that is older than the logs: what it allocates goes on above what the logs hold."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from klamm.core.cluster import paths, producer_ids
from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.image import Endpoint
from klamm.core.cluster.nodes import ProducerIdBlockNode
from klamm.core.cluster.producer_ids import SKIPPED, allocate_block
from klamm.core.cluster.skeleton import make_skeleton
from klamm.core.errors import ErrorCode
from klamm.core.log.given_producer_ids import GIVEN_PRODUCER_IDS, GivenProducerIds
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.encode import encode_batch
from klamm.core.seams.coordination import Coordination
from klammtest.guarantees import guarantee
from klammtest.inprocess import broker_thread
from klammtest.requests import create_topic, produce
from klammtest.wire import WireClient


def set_back(coordination: Coordination, last: int) -> None:
    """As in a backup from when `last` was the last id given out."""
    node = ProducerIdBlockNode(broker=0, block_start=last - 999, block_end=last)
    coordination.set(paths.PRODUCER_ID_BLOCK, node.encode())


def test_a_block_begins_above_what_is_used(coordination: Coordination, caplog: pytest.LogCaptureFixture) -> None:
    assert allocate_block(coordination, 0) == range(1000)
    assert allocate_block(coordination, 0, highest_used=999) == range(1000, 2000)
    assert "backup" not in caplog.text
    set_back(coordination, 999)
    begin = 1700 + SKIPPED + 1
    assert allocate_block(coordination, 0, highest_used=1700) == range(begin, begin + 1000)
    (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "given out is 999, but the log directory knows of 1700" in line
    assert f"go on at {begin}" in line


def test_a_broker_that_joins_has_the_others_go_on_above_its_logs(coordination: Coordination) -> None:
    make_skeleton(coordination, uuid4)
    assert allocate_block(coordination, 1) == range(1000)
    joining = Cluster(coordination, 0, Endpoint("127.0.0.1", 9092), highest_producer_id=lambda: 5000)
    joining.register()
    try:
        assert allocate_block(coordination, 1).start == 5000 + SKIPPED + 1
    finally:
        joining.close()


def test_a_restore_under_a_running_broker_is_noticed(coordination: Coordination) -> None:
    """What this broker gave out itself is not given again, written with or not."""
    cluster = Cluster(coordination, 0, Endpoint("127.0.0.1", 9092))
    cluster.register()
    try:
        first, second = cluster.allocate_producer_ids(), cluster.allocate_producer_ids()
        set_back(coordination, first.stop - 1)
        assert cluster.allocate_producer_ids().start > second.stop
    finally:
        cluster.close()


def believe_the_coordination(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(producer_ids, "_above", lambda last, highest_used: last)


@guarantee("D14", "a coordination from an older backup gives no producer id again", plant=believe_the_coordination)
def test_new_producers_are_not_taken_for_old_ones(tmp_path: Path) -> None:
    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db")}

    @contextmanager
    def broker() -> Iterator[WireClient]:
        with broker_thread(tmp_path, tree) as running:
            own = running.advertised[0]
            with WireClient(f"{own.host}:{own.port}") as wire:
                yield wire

    def five_records(wire: WireClient) -> list[int]:
        """Of a new producer; the offsets that its batches were acknowledged with."""
        patience = timedelta(minutes=1)
        who = wire.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=patience)
        assert who.error_code is ErrorCode.none
        offsets = []
        for sequence in range(5):
            record = encode_batch(
                [(1_700_000_000_000, None, b"x", ())],
                producer_id=who.producer_id, producer_epoch=who.producer_epoch, base_sequence=sequence,
            )  # fmt: skip
            answer = produce(wire, "t", record)
            assert answer.error_code is ErrorCode.none
            offsets.append(answer.base_offset)
        return offsets

    with broker() as wire:
        create_topic(wire, "t")
    backup = (tmp_path / "tree.db").read_bytes()
    with broker() as wire:
        assert five_records(wire) == [0, 1, 2, 3, 4]
    for left in tmp_path.glob("tree.db-*"):
        left.unlink()
    (tmp_path / "tree.db").write_bytes(backup)
    with broker() as wire:
        assert five_records(wire) == [5, 6, 7, 8, 9]


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
    cluster = Cluster(coordination, 0, Endpoint("127.0.0.1", 9092), note_producer_id=given.note)
    cluster.register()
    try:
        block = cluster.allocate_producer_ids()
        assert GivenProducerIds(tmp_path).highest == block.stop - 1
    finally:
        cluster.close()
