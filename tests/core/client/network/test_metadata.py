"""The cache of leaders: epochs that do not fall, and leaders that answers name."""

from __future__ import annotations

from uuid import UUID, uuid4

from klamm.core.client.network.metadata import ClusterMetadata, ClusterView, NewLeader, Node, PartitionView, TopicView
from klamm.core.errors import ErrorCode
from klamm.core.records.partition import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NODES = {number: Node(number, "host", 9000 + number) for number in (1, 2, 3)}
ID = uuid4()


def view(*leaders: tuple[int, int], topic_id: UUID | None = ID) -> ClusterView:
    """(leader, epoch) of each partition."""
    partitions = {number: PartitionView(*one) for number, one in enumerate(leaders)}
    return ClusterView("c", 1, NODES, {"t": TopicView("t", ErrorCode.none, partitions, topic_id=topic_id)})


def cached(*leaders: tuple[int, int], topic_id: UUID | None = ID) -> ClusterMetadata:
    cluster = ClusterMetadata()
    cluster.update(view(*leaders, topic_id=topic_id))
    return cluster


def known(cluster: ClusterMetadata, partition: TopicPartition = T0) -> tuple[int | None, int]:
    return cluster.leader(partition), cluster.leader_epoch(partition)


def test_an_older_leader_epoch_changes_nothing() -> None:
    cluster = cached((1, 5), (1, 5))
    cluster.update(view((2, 4), (2, 6)))
    assert (known(cluster), known(cluster, T1)) == ((1, 5), (2, 6))
    cluster.update(view((2, 5), (3, 6)))
    assert (known(cluster), known(cluster, T1)) == ((2, 5), (3, 6))


def test_another_topic_begins_with_other_epochs() -> None:
    cluster = cached((1, 5))
    cluster.update(view((2, 0), topic_id=uuid4()))
    assert known(cluster) == (2, 0)


def test_a_topic_that_was_deleted_is_forgotten() -> None:
    cluster = cached((1, 5))
    gone = TopicView("t", ErrorCode.unknown_topic_or_partition, {})
    cluster.update(ClusterView("c", 1, NODES, {"t": gone}))
    assert known(cluster) == (None, -1)
    cluster.update(view((2, 0)))
    assert known(cluster) == (2, 0)


def test_without_topic_ids_the_newest_answer_wins() -> None:
    cluster = cached((1, 5), topic_id=None)
    cluster.update(view((2, 4), topic_id=None))
    assert known(cluster) == (2, 4)


def test_the_epoch_is_remembered_while_the_topic_is_requested_again() -> None:
    cluster = cached((1, 5))
    cluster.forget(["t"])
    cluster.update(view((2, 4)))
    assert known(cluster) == (1, 5)


def test_a_leader_that_an_answer_names_is_known_if_it_is_newer() -> None:
    cluster = cached((1, 5), (1, 5))
    far = Node(4, "far", 1)
    cluster.elected([NewLeader(T0, 4, 6), NewLeader(T1, 4, 5), NewLeader(TopicPartition("u", 0), 4, 9)], [far])
    assert (known(cluster), known(cluster, T1)) == ((4, 6), (1, 5))
    assert cluster.view.nodes[4] == far
    cluster.update(view((1, 5), (1, 5)))
    assert cluster.leader_epoch(T0) == 6


def test_a_leader_without_an_address_is_not_taken_over() -> None:
    cluster = cached((1, 5))
    cluster.elected([NewLeader(T0, 7, 6)])
    assert known(cluster) == (1, 5)


def test_a_leader_is_forgotten_only_as_long_as_it_is_the_one_that_refused() -> None:
    cluster = cached((1, 5), (2, 5))
    cluster.forget_leaders([T0, T1, TopicPartition("u", 0)], 1)
    assert (known(cluster), known(cluster, T1)) == ((None, 5), (2, 5))
