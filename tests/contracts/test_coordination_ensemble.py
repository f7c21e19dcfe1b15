"""A coordination and a broker on a ZooKeeper ensemble whose leader is killed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.interfaces.coordination import (
    SessionEvent,
)
from klamm.testing.contracts import SessionEvents, WatchSignal
from klammtest.broker import running_broker
from klammtest.requests import batch, create_topic, fetch, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient
from klammtest.zookeeper import ZooKeeperCase, found_or_made
from klammtest.zookeeper_ensemble import EnsembleMember, ZooKeeperEnsemble

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """One whose members the tests kill, and start again."""
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
        yield ensemble


def _follows(member: EnsembleMember) -> bool:
    return member.mode == "follower"


def test_a_session_survives_the_leader_of_the_ensemble(ensemble: ZooKeeperEnsemble) -> None:
    case = ZooKeeperCase(ensemble)
    coordination, other = case.open(session_timeout_ms=20_000), case.open(session_timeout_ms=20_000)
    events, signal = SessionEvents(coordination), WatchSignal()
    session_id = coordination.session_id
    ephemeral = coordination.create("/ephemeral", b"mine", ephemeral=True)
    coordination.watch("/by-another", signal)
    for number in range(2):
        leader = ensemble.leader()
        leader.kill()
        eventually(partial(found_or_made, coordination, f"/{number}"), "a write without that member")
        assert ensemble.leader() is not leader
        leader.start()
        eventually(partial(_follows, leader), "the member is back")
    signal.mark()
    eventually(partial(found_or_made, other, "/by-another"), "a write of another session")
    signal.wait_for_more()
    assert coordination.get("/ephemeral") == (b"mine", ephemeral)
    assert coordination.create("/later").creation_id > ephemeral.creation_id
    assert coordination.children("/") == ["0", "1", "by-another", "ephemeral", "later"]
    assert (coordination.session_id, SessionEvent.EXPIRED in events.seen) == (session_id, False)
    case.close()


def test_a_broker_survives_the_leader_of_the_ensemble(ensemble: ZooKeeperEnsemble, tmp_path: Path) -> None:
    section = {**ZooKeeperCase(ensemble).section(), "zookeeper.session.timeout.ms": 20_000}
    with running_broker(tmp_path, coordination=section, topics={"t": {"partitions": 1}}) as broker:
        with WireClient(broker.bootstrap) as wire:
            assert produce(wire, "t", batch(b"before")).base_offset == 0
            leader = ensemble.leader()
            leader.kill()
            assert produce(wire, "t", batch(b"meanwhile")).base_offset == 1
            made = (ErrorCode.none, ErrorCode.topic_already_exists)
            eventually(lambda: create_topic(wire, "u").error_code in made, "a topic is made without that member")
            eventually(lambda: produce(wire, "u", batch(b"x")).error_code is ErrorCode.none, "it is led")
            assert fetch(wire, "t", 0).high_watermark == 2
            leader.start()
            eventually(partial(_follows, leader), "the member is back")
            assert produce(wire, "t", batch(b"after")).base_offset == 2
        assert "Traceback" not in broker.log()
