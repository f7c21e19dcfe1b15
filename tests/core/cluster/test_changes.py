"""Changes in one total order, the ring, and answers that are lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from klamm.core.cluster.brokers.incarnations import evict_operations, register_operations
from klamm.core.cluster.change_writer import ChangeWriter, Plan
from klamm.core.cluster.changes import (
    INCARNATIONS,
    RING_SIZE,
    MetadataChange,
    StoredState,
    controller_guard,
    incarnation_path,
    leader_guard,
    ring_path,
)
from klamm.core.cluster.image import ClusterImage, PartitionImage
from klamm.core.cluster.image_reader import image_steps, read_image
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.bootstrap import create_base_paths
from klamm.core.cluster.tree.nodes import ConfigNode, TopicNode
from klamm.core.cluster.tree.steps import run_steps
from klamm.core.errors import CoordinationError
from klamm.core.interfaces.coordination import CoordinationUnavailableError, Create, Operation
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.leader import ProposalOutcome
from klamm.core.replication.partition_state import NO_EPOCH, NO_LEADER, PartitionState
from klammsim.coordination import SimCoordination, SimTree
from klammtest.clusters.images import registered_elsewhere

TP = TopicPartition("t", 0)
STATE = PartitionState(0, 5, 100, (0, 1), (), {0: "a0", 1: "a1"}, 1)


@pytest.fixture
def coordination() -> SimCoordination:
    made = SimCoordination(SimTree(lambda: 1_800_000_000_000))
    made.start()
    create_base_paths(made, lambda: UUID(int=7))
    made.create(paths.topic("t"), TopicNode(topic_id=UUID(int=1), partitions={0: (0, 1), 1: (0, 1)}).encode())
    made.create(paths.topic_config("t"), ConfigNode().encode())
    for number in (0, 1):
        made.create(paths.partition_state("t", number), STATE.encode(), make_parents=True)
    return made


def read(coordination: SimCoordination, known: ClusterImage | None = None) -> ClusterImage:
    return read_image(coordination, known)


def stored(image: ClusterImage, tp: TopicPartition = TP) -> PartitionImage:
    found = image.partition(tp)
    assert found is not None
    return found


def attempt(
    coordination: SimCoordination,
    guard: list[Operation],
    base: ClusterImage,
    state: PartitionState,
    tp: TopicPartition = TP,
) -> ProposalOutcome:
    writer = ChangeWriter(coordination, lambda _: image_steps(), "test")
    return run_steps(coordination, writer.attempt(guard, base, Plan({tp: state})))


def write(coordination: SimCoordination, base: ClusterImage, isr: tuple[int, ...]) -> ProposalOutcome:
    state = replace(stored(base).state, isr=isr, data_ids={member: f"a{member}" for member in isr})
    return attempt(coordination, controller_guard(0), base, state)


def test_a_change_is_read_from_the_ring(coordination: SimCoordination) -> None:
    base = read(coordination)
    assert (base.version, stored(base).state, stored(base).path_version) == (0, STATE, 0)
    assert write(coordination, base, (0,)) is ProposalOutcome.APPLIED
    after = read(coordination, base)
    assert (after.version, stored(after).isr, stored(after).path_version) == (1, (0,), 1)
    assert read(coordination) == after, "as when all is read"


def test_who_has_not_read_the_newest_change_writes_nothing(coordination: SimCoordination) -> None:
    base = read(coordination)
    write(coordination, base, (0,))
    assert write(coordination, base, (1,)) is ProposalOutcome.REFUSED
    assert stored(read(coordination)).isr == (0,)


def test_all_is_read_when_the_ring_does_not_reach_back(coordination: SimCoordination) -> None:
    base = newest = read(coordination)
    for number in range(RING_SIZE + 3):
        write(coordination, newest, (number % 2,))
        newest = read(coordination, newest)
    assert read(coordination, base) == newest


def test_a_leader_that_was_evicted_or_adds_one_that_was_is_refused(coordination: SimCoordination) -> None:
    for name in ("mine", "theirs"):
        coordination.create(incarnation_path(name), ephemeral=True)
    base = read(coordination)
    guard = leader_guard("mine", ["theirs"])
    coordination.delete(incarnation_path("theirs"))
    assert attempt(coordination, guard, base, STATE) is ProposalOutcome.REFUSED
    coordination.create(incarnation_path("theirs"))
    assert attempt(coordination, guard, base, STATE) is ProposalOutcome.APPLIED


class LosesAnswers(SimCoordination):
    """Carries a transaction out, and says that it is not known."""

    def transaction(self, operations: Sequence[Operation]) -> None:
        super().transaction(operations)
        raise CoordinationUnavailableError("planted")


def test_a_write_whose_answer_was_lost_is_found_in_the_ring(coordination: SimCoordination) -> None:
    loses = LosesAnswers(coordination._tree)
    loses.start()
    base = read(coordination)
    assert write(loses, base, (0,)) is ProposalOutcome.UNKNOWN
    change = MetadataChange.decode(ring_path(1), coordination.get(ring_path(1))[0])
    assert (change.version, change.by, change.states[TP].state.isr) == (1, "test/0", (0,))


def test_a_registration_is_two_paths_that_come_and_go_together(coordination: SimCoordination) -> None:
    data = registered_elsewhere("one", ("a0",)).encode()
    coordination.transaction(register_operations(0, "one", data, None))
    first = read(coordination).brokers[0]
    assert first.session_id == coordination.session_id
    again = data.replace(b"one", b"two")
    coordination.transaction(register_operations(0, "two", again, first.registration))
    second = read(coordination).registrations[0]
    assert (second.incarnation, second.data_ids, second.leaving) == ("two", ("a0",), False)
    assert second.epoch > first.epoch
    assert coordination.children(INCARNATIONS) == ["two"]
    with pytest.raises(CoordinationError):
        coordination.transaction(evict_operations(first.registration))
    coordination.transaction(evict_operations(second))
    assert read(coordination).brokers == {}


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"leader":"x"}'])
def test_a_damaged_state_is_one_clear_line(coordination: SimCoordination, data: bytes) -> None:
    path = paths.partition_state("t", 0)
    coordination.set(path, data)
    with pytest.raises(CoordinationError, match=f"{path} holds no partition state"):
        read(coordination)


def test_a_damaged_registration_is_one_clear_line(coordination: SimCoordination) -> None:
    coordination.transaction([Create(paths.broker(0), b'{"incarnation":"one","data":[]}')])
    with pytest.raises(CoordinationError, match="/brokers/ids/0 holds no BrokerIdNode"):
        read(coordination)


def test_a_change_is_stored_whole() -> None:
    node = TopicNode(topic_id=UUID(int=7), partitions={0: (0, 1), 1: (1, 2)}, adding_replicas={1: (2,)})
    eligible = PartitionState(NO_LEADER, 5, NO_EPOCH, (1,), (2, 0), {0: "a0", 1: "a1", 2: "a0"}, 3)
    states = {TP: StoredState(STATE, 4), TopicPartition("t", 1): StoredState(eligible, 0)}
    change = MetadataChange(9, "0-x/3", states, {"t": node, "gone": None}, {"t": {"a": "b"}})
    assert MetadataChange.decode("/x", change.encode()) == change
    assert MetadataChange.decode("/x", MetadataChange(1, "y").encode()) == MetadataChange(1, "y")


@pytest.mark.parametrize(
    "data", [b"no json", b"[]", b'{"version":1}', b'{"version":1,"by":"x","data_ids":[],"states":[]}']
)
def test_a_damaged_change_is_one_clear_line(data: bytes) -> None:
    with pytest.raises(CoordinationError, match="/admin/changes/3 holds no metadata change"):
        MetadataChange.decode("/admin/changes/3", data)


def test_states_that_do_not_exist_are_created(coordination: SimCoordination) -> None:
    base, new = read(coordination), TopicPartition("t", 2)
    assert attempt(coordination, controller_guard(0), base, STATE, new) is ProposalOutcome.APPLIED
    path = ring_path(base.version + 1)
    assert coordination.get(paths.partition_state("t", 2))[0] == STATE.encode()
    assert MetadataChange.decode(path, coordination.get(path)[0]).states[new] == StoredState(STATE, 0)


@pytest.mark.parametrize("data", [b"", b"{}", None])
def test_a_ring_that_holds_nothing_yet_is_not_used(coordination: SimCoordination, data: bytes | None) -> None:
    """The metadata have changed, and the ring has no entry of it."""
    base = read(coordination)
    if data is None:
        coordination.delete(ring_path(1))
    else:
        coordination.set(ring_path(1), data)
    coordination.set(paths.partition_state("t", 0), replace(STATE, leader_epoch=9).encode())
    coordination.set(paths.METADATA_VERSION, b"{}")
    assert stored(read(coordination, base)).leader_epoch == 9
