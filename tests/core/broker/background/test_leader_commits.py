"""The positions of services are stored only by the broker that leads, in the leader epoch in which it has read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.core.broker.background.leader_commits import LeaderCommits
from klamm.core.broker.coordinator.guarded_commits import GuardedCommits
from klamm.core.broker.session.session_contact import SessionContact
from klamm.core.cluster.changes import incarnation_path
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import TopicNode
from klamm.core.groups.membership.topic_ids import TopicIds
from klamm.core.interfaces.coordination import Check, CoordinationUnavailableError, SessionEvent
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.counting.broker_tier import GROUP
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klamm.plugins.offsets.coordination import CoordinationOffsetStore
from klamm.plugins.offsets.topic_config import CoordinationOffsetStoreConfig
from klammtest.clusters.images import partition_image
from klammtest.guarantees import guarantee

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC_ID = UUID(int=7)


class Scene:
    """Broker 0 leads both partitions of `t` in epoch 3; `session` is its session with the coordination."""

    def __init__(self, folder: Path) -> None:
        self.tree = EmbeddedCoordination(EmbeddedConfig(path=str(folder / "tree.db")))
        self.tree.start()
        self.incarnation = "own"
        self.tree.create(incarnation_path("own"), make_parents=True)
        node = TopicNode(topic_id=TOPIC_ID, partitions={0: (0, 1), 1: (0, 1)})
        self.tree.create(paths.topic("t"), node.encode(), make_parents=True)
        self.tree.create(paths.METADATA_VERSION, make_parents=True)
        for partition in (ONE, OTHER):
            self.tree.create(paths.partition_state(*partition), state(0, 3), make_parents=True)
        self.store = CoordinationOffsetStore(CoordinationOffsetStoreConfig(), self.tree)
        self.guarded = guarded_commits(self.tree)
        self.commits = LeaderCommits(self.tree, self.store, self.guarded, 0, lambda: self.incarnation)

    def elect(self, partition: TopicPartition, leader: int, epoch: int, isr: tuple[int, ...] = (0, 1)) -> None:
        self.tree.set(paths.partition_state(*partition), state(leader, epoch, isr))

    def commit(self, to: int, epoch: int = 3, topic_id: UUID = TOPIC_ID) -> set[TopicPartition]:
        offsets = {partition: CommittedOffset(to, epoch, topic_id=topic_id) for partition in (ONE, OTHER)}
        return self.commits.commit(GROUP, offsets, dict.fromkeys(offsets, epoch))

    @property
    def stored(self) -> dict[int, int]:
        return {at.partition: found.offset for at, found in self.store.fetch(GROUP).items()}


def guarded_commits(tree: EmbeddedCoordination) -> GuardedCommits:
    session = SessionContact(lambda: 0.0)
    session.start(60.0)
    return GuardedCommits(TopicIds(tree), session, lambda: 0.0)


def state(leader: int, epoch: int, isr: tuple[int, ...] = (0, 1)) -> bytes:
    return partition_image(leader, epoch, (0, 1), isr).state.encode()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.tree.close()


def without_guards(patch: pytest.MonkeyPatch) -> None:
    original = GuardedCommits.commit

    def store(self: GuardedCommits, store: Any, group: str, offsets: Any, _: list[Check]) -> set[TopicPartition]:
        return original(self, store, group, offsets, [])

    patch.setattr(GuardedCommits, "commit", store)
    patch.setattr(LeaderCommits, "_check", lambda self, partition, epoch: self._registered())


@guarantee("B8", "a leader that was cut off sets no service's position back", plant=without_guards)
def test_the_former_leaders_commit_is_not_stored(scene: Scene) -> None:
    assert scene.commit(1_000) == set()
    scene.elect(ONE, 1, 4)
    scene.store.commit(GROUP, {ONE: CommittedOffset(14_760, 4, topic_id=TOPIC_ID)})  # by broker 1
    assert scene.commit(1_480) == {ONE}
    assert scene.stored == {0: 14_760, 1: 1_480}


@guarantee("B8", "nor in a leader epoch that is over", plant=without_guards)
def test_a_leader_that_was_elected_again_stores_nothing_of_its_former_epoch(scene: Scene) -> None:
    scene.commit(1_000)
    for leader, epoch in ((1, 4), (0, 5)):
        scene.elect(ONE, leader, epoch)
    assert scene.commit(1_480) == {ONE}
    assert scene.stored == {0: 1_000, 1: 1_480}


def test_a_change_of_the_in_sync_replicas_refuses_nothing(scene: Scene) -> None:
    scene.commit(1_000)
    scene.elect(ONE, 0, 3, (0,))
    assert scene.commit(1_480) == set()
    assert scene.stored == {0: 1_480, 1: 1_480}


def test_the_offsets_of_a_deleted_topic_are_not_stored(scene: Scene) -> None:
    scene.commit(1_000)
    assert scene.commit(1_480, topic_id=UUID(int=8)) == {ONE, OTHER}
    assert scene.stored == {0: 1_000, 1: 1_000}


def test_a_broker_without_a_registration_stores_nothing(scene: Scene) -> None:
    scene.incarnation = ""
    with pytest.raises(CoordinationUnavailableError, match="not registered"):
        scene.commit(1_000)
    assert scene.stored == {}


def test_without_the_coordination_only_a_session_that_lives_stores(scene: Scene) -> None:
    """With a store that works without it, as `topic`."""
    now = [0.0]
    scene.guarded._session._clock = lambda: now[0]
    scene.guarded._session.event(SessionEvent.SUSPENDED)
    assert scene.commit(1_000) == set()
    now[0] = 61.0
    with pytest.raises(CoordinationUnavailableError, match="session"):
        scene.commit(1_480)
    assert scene.stored == {0: 1_000, 1: 1_000}
