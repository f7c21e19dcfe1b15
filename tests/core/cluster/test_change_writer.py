"""Changes of the metadata that race, and answers that are lost, on each coordination."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from klamm.core.cluster.changes import RING_SIZE, MetadataChange, ring_path
from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.image_reader import MetadataWentBackError, read_image
from klamm.core.cluster.tree import paths
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.interfaces.coordination import BadVersionError, Coordination, CoordinationUnavailableError, Set
from klammtest.clusters.joined import Joined
from klammtest.waiting import eventually


def code_of(error: pytest.ExceptionInfo[BrokerError]) -> ErrorCode:
    return error.value.code


def is_what_is_stored(cluster: Cluster, coordination: Coordination) -> bool:
    """Returns True if the image, read change by change, is the whole tree read now."""
    return cluster.image() == read_image(coordination)


def bump(coordination: Coordination) -> None:
    """Counts a change without an entry in the ring."""
    coordination.set(paths.METADATA_VERSION, b'{"version":1,"topics":[]}')


def test_a_topic_whose_creation_was_not_answered_is_created_once(join: Joined) -> None:
    cluster = join(0)
    for number, lose in enumerate((join.faulty[0].lose_answer, join.faulty[0].lose_request)):
        name = f"t{number}"
        lose()
        before = cluster.image().version
        topic_id = cluster.create_topic(name, 3, 1, {"retention.ms": "1"})
        assert cluster.image().topics[name].topic_id == topic_id
        assert cluster.image().version == before + 1
    with pytest.raises(BrokerError) as error:
        cluster.create_topic("t0", 3, 1)
    assert code_of(error) is ErrorCode.topic_already_exists


def test_every_other_change_that_was_not_answered_is_made_once(join: Joined) -> None:
    cluster, lose = join(0), join.faulty[0].lose_answer
    topic_id = cluster.create_topic("t", 1, 1)
    lose()
    cluster.create_partitions("t", 3)
    lose()
    cluster.alter_topic_config("t", {"retention.ms": "7"})
    topic = cluster.image().topics["t"]
    assert (len(topic.partitions), topic.configs) == (3, {"retention.ms": "7"})
    lose()
    assert cluster.delete_topic("t") == topic_id
    assert cluster.image().topics == {}


def test_an_unanswered_change_that_another_overtook_is_made_again(join: Joined) -> None:
    """The request was lost, and another change took its version."""
    cluster, tree = join(0), join.coordinations[0]
    join.faulty[0].lose_request(then=lambda: bump(tree))
    assert cluster.create_topic("t", 1, 1) == cluster.image().topics["t"].topic_id


def test_a_change_whose_fate_is_hidden_is_not_made_again(join: Joined) -> None:
    """It was carried out, and not answered; before its writer looks, the ring has gone round."""
    cluster, tree = join(0), join.coordinations[0]
    cluster.create_topic("t", 1, 1)
    version = cluster.image().version
    foreign = MetadataChange(version + 1 + RING_SIZE, "another")

    def go_round() -> None:
        for _ in range(RING_SIZE):
            bump(tree)
        tree.set(ring_path(foreign.version), foreign.encode())

    join.faulty[0].lose_answer(then=go_round)
    with pytest.raises(CoordinationUnavailableError, match="was not answered, and 65 later changes hide its fate"):
        cluster.create_partitions("t", 2)
    assert len(cluster.image().topics["t"].partitions) == 2


def test_who_loses_a_race_plans_again(join: Joined) -> None:
    cluster, tree = join(0), join.coordinations[0]
    cluster.create_topic("t", 1, 1)

    def theirs() -> None:
        config = b'{"version":1,"config":{"a":"theirs"}}'
        tree.transaction([Set(paths.topic_config("t"), config), Set(paths.METADATA_VERSION, b"{}")])

    join.faulty[0].before_next(theirs)
    cluster.alter_topic_config("t", {"b": "ours"})
    assert cluster.image().topics["t"].configs == {"a": "theirs", "b": "ours"}
    assert is_what_is_stored(cluster, tree)


def test_two_brokers_that_change_states_at_once_both_succeed(join: Joined) -> None:
    """The controller creates topics, and the other raises the leader epochs of what it leads."""
    controller, leader = join(0), join(1)
    eventually(lambda: len(controller.image().brokers) == 2, "both brokers")
    controller.create_topic("t", 4, 1, {}, dict.fromkeys(range(4), (1,)))
    eventually(lambda: "t" in leader.image().topics, "the topic at the other")
    begun = {tp: partition.leader_epoch for tp, partition in leader.image().partitions()}

    def create() -> None:
        for number in range(10):
            controller.create_topic(f"u{number}", 1, 1)

    creating = threading.Thread(target=create)
    creating.start()
    for _ in range(10):
        leader.raise_leader_epochs(begun)
        begun = {tp: partition.leader_epoch for tp, partition in leader.image().partitions() if tp.topic == "t"}
    creating.join()
    eventually(lambda: len(leader.image().topics) == 11, "all topics")
    eventually(lambda: leader.image().version == controller.image().version, "the last change")
    assert is_what_is_stored(leader, join.coordinations[1])
    assert is_what_is_stored(controller, join.coordinations[0])


def test_a_deposed_controller_finds_out_by_its_next_change(join: Joined) -> None:
    first, second = join(0), join(1)
    eventually(lambda: len(first.image().brokers) == 2, "both brokers")
    own = second.image().brokers[0].registration
    join.faulty[0].before_next(lambda: second.suspect(0, own.incarnation))
    with pytest.raises(BrokerError) as error:
        first.create_topic("t", 1, 1)
    assert code_of(error) is ErrorCode.not_controller
    assert second.create_topic("u", 1, 1)
    assert list(second.image().topics) == ["u"]


def test_what_was_written_past_the_order_of_changes_is_read(join: Joined) -> None:
    cluster, tree = join(0), join.coordinations[0]
    cluster.create_topic("t", 2, 1)
    path = paths.partition_state("t", 1)
    tree.set(path, tree.get(path)[0])  # its version is another now
    cluster.raise_leader_epochs({tp: partition.leader_epoch for tp, partition in cluster.image().partitions()})
    assert all(partition.leader_epoch > 0 for _, partition in cluster.image().partitions())
    assert is_what_is_stored(cluster, tree)


def test_a_change_that_cannot_be_made_is_refused_with_the_reason(join: Joined) -> None:
    cluster, tree = join(0), join.coordinations[0]
    tree.create(paths.topic_config("t"), b'{"version":1,"config":{}}')  # left by nobody knows whom
    with pytest.raises(Exception, match="/config/topics/t"):
        cluster.create_topic("t", 1, 1)


def test_a_change_that_is_too_large_is_one_clear_line(join: Joined) -> None:
    cluster = join(0)
    for number in range(1, 8):
        join(number, tuple(f"{number}-{data}" * 8 for data in range(2)))
    eventually(lambda: len(cluster.image().brokers) == 8, "all brokers")
    with pytest.raises(BrokerError, match=r"takes \d+ bytes in the coordination, 1000000 at most; make it in smaller"):
        cluster.create_topic("x" * 249, 1000, 8)
    assert cluster.image().topics == {}


def test_a_topic_of_more_partitions_than_a_change_may_have_is_deleted_in_steps(join: Joined) -> None:
    cluster = join(0)
    for total in (1000, 2000, 2500):
        if total == 1000:
            cluster.create_topic("t", total, 1)
        else:
            cluster.create_partitions("t", total)
    before = cluster.image().version
    cluster.delete_topic("t")
    assert cluster.image().topics == {}
    assert cluster.image().version == before + 2
    assert join.coordinations[0].children(paths.TOPICS) == []


def test_a_broker_that_missed_changes_reads_them_one_by_one(join: Joined) -> None:
    cluster, tree = join(0), join.coordinations[0]
    cluster.create_topic("t", 3, 1)
    before = cluster.image()
    cluster.create_topic("u", 1, 1, {"a": "1"})
    cluster.create_partitions("t", 5)
    cluster.alter_topic_config("u", {"a": None, "b": "2"})
    cluster.raise_leader_epochs({tp: partition.leader_epoch for tp, partition in cluster.image().partitions()})
    cluster.delete_topic("u")
    cluster.create_topic("u", 2, 1)
    seen: list[str] = []

    class Counting:
        def get(self, path: str) -> object:
            seen.append(path)
            return tree.get(path)

        def get_many(self, wanted: list[str]) -> object:
            seen.extend(wanted)
            return tree.get_many(wanted)

        def children(self, path: str) -> list[str]:
            return tree.children(path)

    after = read_image(Counting(), before)  # type: ignore[arg-type]
    assert after == cluster.image() == read_image(tree)
    assert not [path for path in seen if path.startswith(paths.TOPICS)], "no topic was read"
    # That of the image, too: it must be the one that led to it.
    assert len([path for path in seen if path.startswith(paths.CHANGES)]) == after.version - before.version + 1


def test_a_ring_that_does_not_reach_back_is_not_used(join: Joined) -> None:
    cluster, tree = join(0), join.coordinations[0]
    cluster.create_topic("t", 1, 1)
    before = cluster.image()
    for number in range(RING_SIZE):
        cluster.alter_topic_config("t", {"a": str(number)})
    assert read_image(tree, before) == cluster.image()


def test_a_coordination_that_went_back_is_not_read_as_changes(join: Joined) -> None:
    cluster, tree = join(0), join.coordinations[0]
    cluster.create_topic("t", 1, 1)
    newer = read_image(tree)
    older = type(newer)(newer.cluster_id, 0, newer.brokers, {}, newer.version + 5)
    with pytest.raises(MetadataWentBackError):
        read_image(tree, older)


def test_the_largest_change_fits_the_ring(join: Joined) -> None:
    cluster = join(0)
    for number in (1, 2):
        join(number)
    eventually(lambda: len(cluster.image().brokers) == 3, "all brokers")
    cluster.create_topic("t" * 40, 1000, 3)
    entry, _ = join.coordinations[0].get(ring_path(cluster.image().version))
    assert len(entry) < 150_000
    assert is_what_is_stored(cluster, join.coordinations[0])


def test_the_versions_of_states_are_checked(join: Joined) -> None:
    cluster, tree = join(0), join.coordinations[0]
    cluster.create_topic("t", 1, 1)
    path = paths.partition_state("t", 0)
    partition = cluster.image().topics["t"].partitions[0]
    assert tree.get(path)[1].version == partition.path_version
    with pytest.raises(BadVersionError):
        tree.transaction([Set(path, b"", partition.path_version + 1)])
    assert cluster.image().topic_by_id(UUID(int=3)) is None
