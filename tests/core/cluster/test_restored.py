"""A coordination that is older than what a broker has seen: the check, and what the controller does then (R13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from klamm.core.cluster.change_writer import ChangeWriter, Plan
from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.control.cold_start import ColdStart
from klamm.core.cluster.control.leadership import Terms, doubted, is_held
from klamm.core.cluster.image import ClusterImage, Endpoint, PartitionImage, TopicImage
from klamm.core.cluster.image_reader import MetadataWentBackError, read_image
from klamm.core.cluster.restored import is_older
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.bootstrap import create_base_paths
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.interfaces.coordination import Coordination, Create, Delete, Set
from klamm.core.log.state.seen_metadata import SEEN_METADATA, SeenChange, SeenMetadata
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.elections import RecoveredEnd, elect
from klamm.core.replication.partition_state import NO_EPOCH, NO_LEADER, PartitionState
from klamm.core.replication.registrations import DOUBTED, BrokerRegistration
from klammtest.waiting import eventually
from klammtest.zookeeper import CoordinationCase


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


def test_a_cold_start_takes_older_registrations_for_those_of_a_backup() -> None:
    state = PartitionState(0, 9, 100, (0, 1), (), {0: "d0", 1: "d1"}, 1)
    both = {number: registration(number) for number in (0, 1)}
    assert is_held(state, (0, 1), both, 101), "0 has not registered since"
    assert not is_held(state, (0, 1), both, NO_EPOCH), "the wait is over"
    again = both | {0: BrokerRegistration(0, 102, "i0b", ("d0",))}
    assert not is_held(state, (0, 1), again, 101)
    assert is_held(state, (0, 1, 2), again, 101), "2 is absent"
    assert not is_held(PartitionState(0, 10, 102, (0,), (), {0: "d0"}, 1), (0, 1, 2), again, 101), "elected since"


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
    writer = ChangeWriter(coordination, lambda _: read_image(coordination), "w")
    for _ in range(2):
        writer.change(lambda _: [], lambda _: Plan())
    before = read_image(coordination)
    coordination.transaction([Delete(paths.METADATA_VERSION), Create(paths.METADATA_VERSION, b"{}")])
    other = ChangeWriter(coordination, lambda _: read_image(coordination), "x")
    for version in range(4):
        with pytest.raises(MetadataWentBackError):
            read_image(coordination, before)
        assert read_image(coordination).version == version
        other.change(lambda _: [], lambda _: Plan())


@pytest.fixture
def members(coordination_case: CoordinationCase, tmp_path: Path) -> Iterator[Callable[[int], Cluster]]:
    made: list[Cluster] = []

    def join(number: int) -> Cluster:
        own = tmp_path / str(number)
        own.mkdir()
        endpoints = [Endpoint("127.0.0.1", 9092 + number)]
        cluster = Cluster(
            coordination_case.open(), number, endpoints, data_ids=(f"d{number}",), directory_id=f"directory-{number}",
            seen=SeenMetadata(own),
        )  # fmt: skip
        cluster.register()
        made.append(cluster)
        return cluster

    yield join
    for cluster in made:
        cluster.close()


def test_a_running_member_registers_anew_when_the_metadata_went_back(
    members: Callable[[int], Cluster], coordination_case: CoordinationCase
) -> None:
    """Its session goes on, as one that the backup has: its states are doubted all the same."""
    cluster = members(0)
    cluster.create_topic("t", 1, 1)
    epoch, history, begun = cluster.broker_epoch, cluster.image().history, cluster.image().topics["t"].partitions[0]
    path = paths.partition_state("t", 0)
    seen: list[PartitionState] = []
    cluster.on_change(lambda image: seen.append(image.topics["t"].partitions[0].state))
    tree = coordination_case.open()
    # "isr 0, 1" is of the time of the backup.
    older = PartitionState(0, begun.leader_epoch, epoch, (0, 1), (), {0: "d0", 1: "d1"}, 1)
    tree.transaction([Set(path, older.encode()), Delete(paths.METADATA_VERSION), Create(paths.METADATA_VERSION, b"{}")])
    eventually(lambda: cluster.broker_epoch > epoch, "it has registered anew")
    eventually(lambda: tree.exists(paths.RESTORED) is None and seen, "the states are doubted")
    eventually(lambda: any(DOUBTED in state.data_ids.values() for state in seen), "the state was doubted")
    assert cluster.image().history == history + 1
    assert cluster.own_registration is not None


def test_the_file_survives_and_a_damaged_one_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SeenMetadata(tmp_path).note(SeenChange(7, "w/1", 5))
    assert SeenMetadata(tmp_path).last == SeenChange(7, "w/1", 5)
    (tmp_path / SEEN_METADATA).write_bytes(b'1\n[8, "w/2"]\n')
    assert SeenMetadata(tmp_path).last is None
    assert "is damaged" in caplog.text
