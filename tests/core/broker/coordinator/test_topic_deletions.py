"""A deletion that its broker did not live to finish: groups keep no offset of the topic."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from klamm.core.broker.coordinator.topic_deletions import TopicDeletions
from klamm.core.errors import ErrorCode
from klammtest.broker import running_broker
from klammtest.brokers.deletions import PATIENT, delete_topic, stored_in, unfinished
from klammtest.brokers.inprocess import broker_thread
from klammtest.clients.grouping import commit, stored
from klammtest.guarantees import guarantee
from klammtest.requests import create_topic
from klammtest.waiting import PATIENCE_S, eventually
from klammtest.wire import WireClient


def finish_nothing_later(patch: pytest.MonkeyPatch) -> None:
    """As it was: whoever deletes a topic forgets its offsets at once, or nobody ever does."""
    patch.setattr(TopicDeletions, "start", lambda _: None)


@guarantee("A3", "a deletion that a killed broker has left is finished", plant=finish_nothing_later)
@pytest.mark.parametrize("plugin", ["coordination", "topic"])
def test_the_next_broker_finishes_a_deletion(
    tmp_path: Path, plugin: str, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    tree = tmp_path / "tree.db"
    section = {"plugin": "embedded", "path": str(tree)}
    offsets = {"plugin": plugin, **(PATIENT if plugin == "topic" else {})}

    async def dies_before_it(_: TopicDeletions) -> None:
        return

    with monkeypatch.context() as first_life, broker_thread(tmp_path, section, offsets=offsets) as broker:
        first_life.setattr(TopicDeletions, "finish", dies_before_it)
        with WireClient(f"127.0.0.1:{broker.advertised[0].port}") as wire:
            for topic in ("gone", "kept"):
                assert create_topic(wire, topic).error_code is ErrorCode.none
            assert set(commit(wire, "g", {("gone", 0): 1500, ("kept", 0): 7}).values()) == {ErrorCode.none}
            assert set(commit(wire, "only", {("gone", 0): 3}).values()) == {ErrorCode.none}
            assert delete_topic(wire, "gone") is ErrorCode.none
            assert len(unfinished(tree)) == 1
    with broker_thread(tmp_path, section, offsets=offsets) as broker:
        with WireClient(f"127.0.0.1:{broker.advertised[0].port}") as wire:
            assert create_topic(wire, "gone").error_code is ErrorCode.none
        assert finishes(tree, 3.0 if planted else PATIENCE_S)
        assert {name.topic for name in stored_in(tree, plugin, "g")} == {"kept"}
        assert stored_in(tree, plugin, "only") == {}


def finishes(tree: Path, patience_s: float) -> bool:
    """Returns True if the marker disappears in time."""
    deadline = time.monotonic() + patience_s
    while unfinished(tree):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_offsets_that_the_new_topic_has_by_then_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree.db"

    async def dies_before_it(_: TopicDeletions) -> None:
        return

    with (
        monkeypatch.context() as patch,
        broker_thread(tmp_path, {"plugin": "embedded", "path": str(tree)}) as broker,
        WireClient(f"127.0.0.1:{broker.advertised[0].port}") as wire,
    ):
        patch.setattr(TopicDeletions, "finish", dies_before_it)
        create_topic(wire, "t")
        commit(wire, "g", {("t", 0): 1500})
        delete_topic(wire, "t")
        create_topic(wire, "t")
        assert stored(wire, "g", "t", (0,))[0].committed_offset == -1, "the old topic's is passed over already"
        commit(wire, "g", {("t", 0): 2})
    with broker_thread(tmp_path, {"plugin": "embedded", "path": str(tree)}):
        eventually(lambda: unfinished(tree) == [], "the deletion is finished")
        assert [found.offset for found in stored_in(tree, "coordination", "g").values()] == [2]


def test_kill_9_right_after_deleted_topic(tmp_path: Path) -> None:
    """The first broker dies between the two halves, the second finishes."""
    faults = {"KLAMM_FAULTS": "topics.deleted=kill"}
    with running_broker(tmp_path, topics={"gone": {"partitions": 1}}, environment=faults) as broker:
        with WireClient(broker.bootstrap) as wire:
            assert set(commit(wire, "g", {("gone", 0): 1500}).values()) == {ErrorCode.none}
            with pytest.raises(AssertionError, match="closed the connection"):
                delete_topic(wire, "gone")
        assert "deleted topic gone" in broker.log()
        tree = broker.folder / "coordination.db"
        assert len(stored_in(tree, "coordination", "g")) == 1
        broker.kill()
        broker.environment.clear()
        broker.start()
        eventually(lambda: stored_in(tree, "coordination", "g") == {}, "the offsets are forgotten")
        eventually(lambda: unfinished(tree) == [], "the deletion is finished")
