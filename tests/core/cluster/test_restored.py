"""A coordination that is older than what a broker has seen: the check, and what the controller does then (R13)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import pytest

from klamm.core.cluster.change_writer import ChangeWriter, Plan, no_guard
from klamm.core.cluster.changes import incarnation_path, last_change_path
from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.control.leadership import Terms, doubted
from klamm.core.cluster.image import ClusterImage, Endpoint, PartitionImage, TopicImage
from klamm.core.cluster.image_reader import MetadataWentBackError, image_steps, read_image
from klamm.core.cluster.restored import is_older
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.bootstrap import create_base_paths
from klamm.core.cluster.tree.nodes import RestoredNode
from klamm.core.cluster.tree.steps import plain, run_steps
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.interfaces.coordination import Coordination, Create, Delete, Operation, Set
from klamm.core.log.state.seen_metadata import SEEN_METADATA, SeenChange, SeenMetadata
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.elections import RecoveredEnd, elect
from klamm.core.replication.leader import ProposalOutcome
from klamm.core.replication.partition_state import NO_EPOCH, NO_LEADER, PartitionState
from klamm.core.replication.registrations import DOUBTED, BrokerRegistration
from klammtest.clusters.joined import FaultyCoordination, Joined
from klammtest.waiting import eventually
from klammtest.zookeeper import CoordinationCase


def test_a_change_that_is_not_there_tells(coordination: Coordination) -> None:
    create_base_paths(coordination, uuid4)
    writer = ChangeWriter(coordination, lambda _: image_steps(), "w")
    for _ in range(3):
        assert run_steps(coordination, writer.change(no_guard, plain(lambda _: Plan()))) is not None
    image = read_image(coordination)
    assert (image.version, image.by) == (3, "w/2")
    for seen, older in (
        (SeenChange(3, "w/2", 5), False),
        (SeenChange(3, "x/9", 5), True),
        (SeenChange(2, "w/1", 5), False),
        (SeenChange(2, "x/8", 5), True),
        (SeenChange(4, "w/3", 5), True),
    ):
        assert run_steps(coordination, is_older(seen)) is older, seen
    for _ in range(70):
        run_steps(coordination, writer.change(no_guard, plain(lambda _: Plan())))
    assert not run_steps(coordination, is_older(SeenChange(2, "x/8", 5))), "the ring does not reach back"


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


def test_states_that_were_made_since_are_not_doubted() -> None:
    topic = TopicImage("t", UUID(int=1), {
        0: PartitionImage(PartitionState(0, 9, 100, (0, 1), (), {0: "d0", 1: "d1"}, 1), (0, 1)),
        1: PartitionImage(PartitionState(1, 50, 101, (1,), (), {1: "d1"}, 2), (0, 1)),
    })  # fmt: skip
    image = ClusterImage("c", 0, {}, {"t": topic}, version=3, restored=20)
    terms = Terms(2, 0, TopicConfig())
    found = doubted(image, terms, 20, 10)
    doubted_one = PartitionState(NO_LEADER, 10, NO_EPOCH, (0, 1), (), dict.fromkeys((0, 1), DOUBTED), 2)
    assert found == {TopicPartition("t", 0): doubted_one}


def test_metadata_that_went_back_are_not_read_as_changes(coordination: Coordination) -> None:
    """Also when other changes have brought them to the version again that was read."""
    create_base_paths(coordination, uuid4)
    writer = ChangeWriter(coordination, lambda _: image_steps(), "w")
    for _ in range(2):
        run_steps(coordination, writer.change(no_guard, plain(lambda _: Plan())))
    before = read_image(coordination)
    coordination.transaction([Delete(paths.METADATA_VERSION), Create(paths.METADATA_VERSION, b"{}")])
    other = ChangeWriter(coordination, lambda _: image_steps(), "x")
    for version in range(4):
        with pytest.raises(MetadataWentBackError):
            read_image(coordination, before)
        assert read_image(coordination).version == version
        run_steps(coordination, other.change(no_guard, plain(lambda _: Plan())))


def test_a_change_from_before_a_restore_is_refused_when_the_version_comes_again(coordination: Coordination) -> None:
    """`make sim` found it: a broker that had not noticed the restore elected a leader by the states from before."""
    create_base_paths(coordination, uuid4)
    writer = ChangeWriter(coordination, lambda _: image_steps(), "w")
    other = ChangeWriter(coordination, lambda _: image_steps(), "x")
    for _ in range(2):
        run_steps(coordination, writer.change(no_guard, plain(lambda _: Plan())))
    before = read_image(coordination)
    coordination.transaction(
        [
            Delete(paths.METADATA_VERSION),
            Create(paths.METADATA_VERSION, b"{}"),
            Delete(last_change_path(before.by)),
        ]
    )
    for _ in range(2):
        run_steps(coordination, other.change(no_guard, plain(lambda _: Plan())))
    assert read_image(coordination).version == before.version
    assert run_steps(coordination, writer.attempt((), before, Plan())) is ProposalOutcome.REFUSED
    assert run_steps(coordination, other.attempt((), read_image(coordination), Plan())) is ProposalOutcome.APPLIED
    assert len(coordination.children(paths.LAST_CHANGE)) == 1


class Members:
    """Brokers that keep what they have seen of the metadata, and the tree as another client sees it."""

    def __init__(self, case: CoordinationCase, folder: Path) -> None:
        self._case = case
        self._folder = folder
        self.made: list[Cluster] = []
        self.tree = case.open()

    def __call__(
        self, number: int, prepare: Callable[[FaultyCoordination], object] = lambda _: None
    ) -> tuple[Cluster, FaultyCoordination]:
        """Joins as a process that starts; `prepare` is called before."""
        own = self._folder / str(number)
        own.mkdir(exist_ok=True)
        faulty = FaultyCoordination(self._case.open())
        prepare(faulty)
        cluster = Cluster(
            cast(Coordination, faulty), number, [Endpoint("127.0.0.1", 9092 + number)], data_ids=(f"d{number}",),
            directory_id=f"directory-{number}", seen=SeenMetadata(own),
        )  # fmt: skip
        cluster.register()
        self.made.append(cluster)
        return cluster, faulty

    def restore(self, state: PartitionState) -> None:
        """Sets partition 0 of t and the version of the metadata back, as a backup would; sessions go on."""
        tree: list[Operation] = [Set(paths.partition_state("t", 0), state.encode())]
        tree += [Delete(paths.METADATA_VERSION), Create(paths.METADATA_VERSION, b"{}")]
        if self.tree.exists(paths.RESTORED):
            tree.append(Delete(paths.RESTORED))
        self.tree.transaction(tree)


@pytest.fixture
def members(coordination_case: CoordinationCase, tmp_path: Path) -> Iterator[Members]:
    made = Members(coordination_case, tmp_path)
    yield made
    for cluster in made.made:
        cluster.close()


def is_registration(operations: Sequence[Operation], broker: int = 0) -> bool:
    return any(isinstance(each, Create) and each.path == paths.broker(broker) for each in operations)


def with_two_in_sync(cluster: Cluster) -> PartitionState:
    """Returns the state of partition 0 of t as of a backup from the time when broker 1 was in sync, too."""
    now = cluster.image().topics["t"].partitions[0].state
    return PartitionState(0, now.leader_epoch, cluster.broker_epoch, (0, 1), (), {0: "d0", 1: "d1"}, 1)


def test_a_running_member_registers_anew_when_the_metadata_went_back(members: Members) -> None:
    """Its session goes on, as one that the backup has: its states are doubted all the same."""
    cluster, _ = members(0)
    cluster.create_topic("t", 1, 1)
    epoch, history = cluster.broker_epoch, cluster.image().history
    seen: list[PartitionState] = []
    cluster.on_change(lambda image: seen.append(image.topics["t"].partitions[0].state))
    members.restore(with_two_in_sync(cluster))
    eventually(lambda: cluster.broker_epoch > epoch, "it has registered anew")
    eventually(lambda: members.tree.exists(paths.RESTORED) is None and seen, "the states are doubted")
    eventually(lambda: any(DOUBTED in state.data_ids.values() for state in seen), "the state was doubted")
    assert cluster.image().history == history + 1
    assert cluster.own_registration is not None


def test_a_restore_that_is_noticed_again_while_it_registers_anew_does_not_lock_it_out(
    members: Members, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It joins a second time then, and does not take what it has elected itself meanwhile for others' elections."""
    cluster, faulty = members(0)
    cluster.create_topic("t", 1, 1)
    noticed: list[object] = []

    def at_registration(operations: Sequence[Operation]) -> None:
        if is_registration(operations):
            noticed.append(cluster.propose([]))  # as its partitions do, on other threads
        else:
            faulty.next(at_registration)
        faulty.inner.transaction(operations)

    def before_join() -> None:
        if noticed and "later" not in cluster.image().topics:
            cluster.create_topic("later", 1, 1)
            begun = cluster.image().topics["later"].partitions[0].leader_epoch
            cluster.raise_leader_epochs({TopicPartition("later", 0): begun + 5})
        faulty.inner.restart()

    caplog.set_level(logging.INFO)
    faulty.next(at_registration)
    monkeypatch.setattr(faulty, "restart", before_join, raising=False)
    members.restore(with_two_in_sync(cluster))
    eventually(lambda: caplog.text.count("broker 0 has rejoined") == 2, "it has joined a second time")
    eventually(lambda: members.tree.exists(paths.RESTORED) is None, "the states are doubted")
    assert "later" in cluster.image().topics


def test_a_restore_while_a_broker_starts_ends_the_start_and_the_next_one_notices_it(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    """After it has compared, and before it has read: what it has seen would be forgotten."""
    cluster, _ = members(0)
    cluster.create_topic("t", 1, 1)
    older = with_two_in_sync(cluster)
    cluster.close()

    def restore_at_registration(faulty: FaultyCoordination) -> None:
        def restored(operations: Sequence[Operation]) -> None:
            faulty.inner.transaction(operations)
            if is_registration(operations):
                members.restore(older)
            else:
                faulty.next(restored)

        faulty.next(restored)

    with pytest.raises(MetadataWentBackError, match="while this broker joined it; start it again"):
        members(0, restore_at_registration)
    assert members.tree.exists(paths.RESTORED) is None
    members(0)
    assert "the coordination is older than this broker's logs" in caplog.text


def test_an_evicted_broker_registers_only_once_it_has_compared(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore ends its registration while it reads: its states are of before, its registrations of after it."""
    cluster, faulty = members(0)
    cluster.create_topic("t", 1, 1)
    older, own = with_two_in_sync(cluster), cluster.own_registration
    assert own is not None
    armed, noticed = [True], []

    def children(path: str) -> list[str]:
        if path == paths.BROKER_IDS and armed:
            armed.clear()
            members.restore(older)
            members.tree.transaction([Delete(incarnation_path(own.incarnation)), Delete(paths.broker(0))])
        return faulty.inner.children(path)

    def registers(operations: Sequence[Operation]) -> None:
        if is_registration(operations):
            noticed.append(members.tree.exists(paths.RESTORED) is not None)
        else:
            faulty.next(registers)
        faulty.inner.transaction(operations)

    faulty.next(registers)
    monkeypatch.setattr(faulty, "children", children, raising=False)
    cluster.suspect(7, "nobody")  # it reads
    eventually(lambda: noticed, "it registers again")
    assert noticed == [True]


def test_an_eviction_elects_nobody_by_the_states_of_a_backup(join: Joined) -> None:
    """That the coordination was restored is noticed while the controller connects to the broker that is suspected."""
    controller, _, _ = join(0), join(1), join(2)
    eventually(lambda: len(controller.image().brokers) == 3, "all brokers")
    controller.create_topic("t", 1, 2, replicas={0: (1, 2)})
    before = controller.image().topics["t"].partitions[0].state
    tree, incarnation = join.coordinations[2], controller.image().brokers[1].registration.incarnation

    def noticed() -> None:
        join.before_connecting = lambda: None
        node = RestoredNode(broker=2, seen=99, found=9, leader_epoch=before.leader_epoch)
        plan = Plan(operations=[Create(paths.RESTORED, node.encode())])
        writer = ChangeWriter(tree, lambda _: image_steps(), "w")
        run_steps(tree, writer.change(no_guard, plain(lambda _: plan)))

    join.kill(1)
    join.unreachable.add(1)
    join.before_connecting = noticed
    controller.suspect(1, incarnation)
    eventually(lambda: 1 not in controller.image().brokers, "it is evicted")
    eventually(lambda: tree.exists(paths.RESTORED) is None, "the states are doubted")
    state = controller.image().topics["t"].partitions[0].state
    assert (state.leader, set(state.data_ids.values())) == (NO_LEADER, {DOUBTED})


def test_the_file_survives_and_a_damaged_one_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SeenMetadata(tmp_path).note(SeenChange(7, "w/1", 5))
    assert SeenMetadata(tmp_path).last == SeenChange(7, "w/1", 5)
    (tmp_path / SEEN_METADATA).write_bytes(b'1\n[8, "w/2"]\n')
    assert SeenMetadata(tmp_path).last is None
    assert "is damaged" in caplog.text
