"""A coordination that is older than what a broker has seen: the check, and what the controller does then (R13)."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from klamm.core.cluster.change_writer import ChangeWriter, Plan
from klamm.core.cluster.control.cold_start import ColdStart
from klamm.core.cluster.image_reader import read_image
from klamm.core.cluster.restored import is_older
from klamm.core.cluster.tree.bootstrap import create_base_paths
from klamm.core.interfaces.coordination import Coordination
from klamm.core.log.state.seen_metadata import SEEN_METADATA, SeenChange, SeenMetadata
from klamm.core.replication.elections import RecoveredEnd, elect
from klamm.core.replication.partition_state import NO_EPOCH, NO_LEADER, PartitionState
from klamm.core.replication.registrations import DOUBTED, BrokerRegistration


def test_a_change_that_is_not_there_tells(coordination: Coordination) -> None:
    create_base_paths(coordination, uuid4)
    writer = ChangeWriter(coordination, lambda _: read_image(coordination), "w")
    for _ in range(3):
        assert writer.change(lambda _: [], lambda _: Plan()) is not None
    image = read_image(coordination)
    assert (image.version, image.by) == (3, "w/2")
    for seen, older in (
        (SeenChange(3, "w/2", 5), False),
        (SeenChange(3, "x/9", 5), True),
        (SeenChange(2, "w/1", 5), False),
        (SeenChange(2, "x/8", 5), True),
        (SeenChange(4, "w/3", 5), True),
    ):
        assert is_older(coordination, seen) is older, seen
    for _ in range(70):
        writer.change(lambda _: [], lambda _: Plan())
    assert not is_older(coordination, SeenChange(2, "x/8", 5)), "the ring does not reach back"


def registration(broker: int) -> BrokerRegistration:
    return BrokerRegistration(broker, 100 + broker, f"i{broker}", (f"d{broker}",))


def test_a_doubted_partition_waits_for_all_and_the_longest_log_leads() -> None:
    state = PartitionState(NO_LEADER, 9, NO_EPOCH, (0, 1, 2), (), dict.fromkeys(range(3), DOUBTED), 1)
    ends = {
        0: RecoveredEnd(9, "d0", 5, 40),
        1: RecoveredEnd(9, "d1", 6, 20),
        2: RecoveredEnd(9, "d2", 6, 10),
    }
    two = {number: registration(number) for number in (1, 2)}
    assert elect(state, (0, 1, 2), two, ends, 1, 1) is None
    three = {0: registration(0), **two}
    assert elect(state, (0, 1, 2), three, {0: ends[0]}, 1, 1) is None, "not all have reported"
    elected = elect(state, (0, 1, 2), three, ends, 1, 1)
    assert elected is not None
    assert (elected.leader, elected.isr, elected.elr, dict(elected.data_ids)) == (1, (1,), (), {1: "d1"})


def test_a_cold_start_holds_what_is_older_for_a_while() -> None:
    now = [100.0]
    start = ColdStart("me", lambda: 12.0, lambda: now[0])
    assert start.held_below() == NO_EPOCH
    start.registered(77, 5)
    assert (start.held_below(), start.left_s()) == (77, 12.0)
    start.saw(6, "me/1")
    assert start.held_below() == 77, "its own change"
    now[0] += 12.0
    assert start.held_below() == NO_EPOCH
    again = ColdStart("me", lambda: 12.0, lambda: now[0])
    again.registered(77, 5)
    again.saw(6, "another/1")
    assert again.held_below() == NO_EPOCH, "the cluster is running"


def test_the_file_survives_and_a_damaged_one_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SeenMetadata(tmp_path).note(SeenChange(7, "w/1", 5))
    assert SeenMetadata(tmp_path).last == SeenChange(7, "w/1", 5)
    (tmp_path / SEEN_METADATA).write_bytes(b'1\n[8, "w/2"]\n')
    assert SeenMetadata(tmp_path).last is None
    assert "is damaged" in caplog.text
