"""The facade: topics, images, several brokers, expiry; on both coordinations."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn, cast
from uuid import UUID

import pytest

from klamm.core.broker.services import Services
from klamm.core.broker.topic_creation import added_replicas
from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.image import ClusterImage, Endpoint, PartitionImage
from klamm.core.cluster.mirrors import (
    LinkNode,
    MirrorOf,
    MirrorTopicNode,
    link_path,
    read_topics,
    remove_link,
    topic_path,
    update,
)
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import decode_uuid
from klamm.core.errors import BrokerError, CoordinationError, ErrorCode
from klamm.core.interfaces.coordination import Coordination, CoordinationUnavailableError, NoNodeError
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.partition_state import NO_LEADER, PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klammtest.clusters.joined import Joined
from klammtest.waiting import eventually
from klammtest.zookeeper import CoordinationCase


def error_code(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return caught.value.code


def test_a_cluster_of_one(join: Joined) -> None:
    cluster = join(0)
    image = cluster.image()
    assert image.controller_id == 0
    assert cluster.is_controller
    assert list(image.brokers) == [0]
    node = image.brokers[0]
    assert (node.host, node.port, node.directory_id) == ("127.0.0.1", 9092, "directory-0")
    assert node.epoch == cluster.broker_epoch > 0
    assert image.topics == {}
    assert len(decode_uuid(image.cluster_id).bytes) == 16


def test_a_coordination_without_a_session_is_started(coordination_case: CoordinationCase) -> None:
    coordination = coordination_case.make()
    cluster = Cluster(coordination, 0, [Endpoint("127.0.0.1", 9092)], data_ids=("d0",))
    cluster.register()
    assert coordination.session_id != 0
    cluster.close()
    assert coordination.exists(paths.broker(0)) is None
    assert coordination.exists(paths.CONTROLLER) is None


def test_a_topic_is_created_whole(join: Joined) -> None:
    cluster = join(0)
    topic_id = cluster.create_topic("flights", 3, 1, {"retention.ms": "-1"})
    topic = cluster.image().topics["flights"]
    assert (topic.name, topic.topic_id, topic.configs) == ("flights", topic_id, {"retention.ms": "-1"})
    first = PartitionState(0, 0, cluster.broker_epoch, (0,), (), {0: "data-0"}, 1)
    assert topic.partitions == {number: PartitionImage(first, (0,)) for number in range(3)}
    assert cluster.image().topic_by_id(topic_id) is topic
    assert cluster.image().topic_by_id(UUID(int=1)) is None
    coordination = join.coordinations[0]
    state = json.loads(coordination.get("/brokers/topics/flights/partitions/2/state")[0])
    assert state == {
        "version": 2, "leader": 0, "leader_epoch": 0, "leader_broker_epoch": cluster.broker_epoch, "isr": [0],
        "elr": [], "data_ids": {"0": "data-0"}, "controller_epoch": 1,
    }  # fmt: skip
    assert json.loads(coordination.get("/config/topics/flights")[0]) == {"version": 1, "config": {"retention.ms": "-1"}}


def test_a_mirror_topic_is_created_together_with_what_is_held_of_it(join: Joined) -> None:
    cluster, coordination = join(0), join.coordinations[0]
    first, second = (MirrorTopicNode(source="t", topic_id=UUID(int=n)) for n in (1, 2))
    update(coordination, link_path("berlin"), LinkNode, lambda _: LinkNode(config={}))
    cluster.create_topic("t", 1, 1, mirror=MirrorOf("berlin", first))
    assert read_topics(coordination, "berlin") == {"t": first}
    assert cluster.image().topics["t"].partitions[0].state.mirror == "berlin"
    found = first.model_copy(update={"gaps": {0: ((1, 2),)}, "paused": True})
    update(coordination, topic_path("berlin", "t"), MirrorTopicNode, lambda _: found)
    twice = error_code(lambda: cluster.create_topic("t", 1, 1, mirror=MirrorOf("berlin", second)))
    assert twice is ErrorCode.topic_already_exists
    assert read_topics(coordination, "berlin") == {"t": found}
    cluster.delete_topic("t")
    cluster.create_topic("t", 1, 1, mirror=MirrorOf("berlin", second))
    assert read_topics(coordination, "berlin") == {"t": second.model_copy(update={"paused": True})}
    remove_link(coordination, "berlin")
    with pytest.raises(NoNodeError):
        cluster.create_topic("u", 1, 1, mirror=MirrorOf("berlin", first))
    assert list(cluster.image().topics) == ["t"]
    assert read_topics(coordination, "berlin") == {}


def test_topics_that_cannot_be(join: Joined) -> None:
    cluster = join(0)
    cluster.create_topic("a.b", 1, 1)
    assert error_code(lambda: cluster.create_topic("a.b", 1, 1)) is ErrorCode.topic_already_exists
    assert error_code(lambda: cluster.create_topic("a_b", 1, 1)) is ErrorCode.invalid_topic_exception
    assert error_code(lambda: cluster.create_topic("../x", 1, 1)) is ErrorCode.invalid_topic_exception
    assert error_code(lambda: cluster.create_topic("x", 0, 1)) is ErrorCode.invalid_partitions
    assert error_code(lambda: cluster.create_topic("x", 1001, 1)) is ErrorCode.invalid_partitions
    assert error_code(lambda: cluster.create_topic("x", 1, 2)) is ErrorCode.invalid_replication_factor
    assert error_code(lambda: cluster.create_topic("x", 1, 0)) is ErrorCode.invalid_replication_factor
    assert error_code(lambda: cluster.check_create_topic("a.b", 1)) is ErrorCode.topic_already_exists
    cluster.check_create_topic("x", 1)
    assert list(cluster.image().topics) == ["a.b"]
    assert join.coordinations[0].children(paths.TOPICS) == ["a.b"]


def test_the_largest_topic_fits_a_transaction(join: Joined) -> None:
    cluster = join(0)
    cluster.create_topic("x" * 249, 1000, 1)
    assert len(cluster.image().topics["x" * 249].partitions) == 1000
    cluster.delete_topic("x" * 249)
    assert cluster.image().topics == {}


def test_delete_and_create_again(join: Joined) -> None:
    cluster = join(0)
    first = cluster.create_topic("t", 2, 1, {"a": "b"})
    cluster.delete_topic("t")
    assert cluster.image().topics == {}
    coordination = join.coordinations[0]
    assert coordination.children(paths.TOPICS) == coordination.children(paths.TOPIC_CONFIGS) == []
    assert error_code(lambda: cluster.delete_topic("t")) is ErrorCode.unknown_topic_or_partition
    assert cluster.create_topic("t", 2, 1) != first
    assert cluster.image().topics["t"].configs == {}


def test_more_partitions(join: Joined) -> None:
    cluster = join(0)
    topic_id = cluster.create_topic("t", 2, 1)
    cluster.create_partitions("t", 5)
    topic = cluster.image().topics["t"]
    assert topic.topic_id == topic_id
    assert list(topic.partitions) == [0, 1, 2, 3, 4]
    assert error_code(lambda: cluster.create_partitions("t", 5)) is ErrorCode.invalid_partitions
    assert error_code(lambda: cluster.create_partitions("t", 4)) is ErrorCode.invalid_partitions
    assert error_code(lambda: cluster.create_partitions("t", 5000)) is ErrorCode.invalid_partitions
    assert error_code(lambda: cluster.create_partitions("none", 5)) is ErrorCode.unknown_topic_or_partition


def test_configs_are_set_and_taken_back(join: Joined) -> None:
    cluster = join(0)
    cluster.create_topic("t", 1, 1, {"a": "1", "b": "2"})
    cluster.alter_topic_config("t", {"a": "3", "b": None, "c": "4", "never": None})
    assert cluster.image().topics["t"].configs == {"a": "3", "c": "4"}
    assert error_code(lambda: cluster.alter_topic_config("none", {})) is ErrorCode.unknown_topic_or_partition


def test_changes_are_told_with_the_new_image(join: Joined) -> None:
    cluster = join(0)
    seen: list[ClusterImage] = []

    def fail(image: ClusterImage) -> None:
        raise RuntimeError("planted")

    cluster.on_change(fail)
    cluster.on_change(seen.append)
    cluster.create_topic("a", 1, 1)
    cluster.create_topic("b", 1, 1)
    cluster.delete_topic("a")
    assert [list(image.topics) for image in seen] == [["a"], ["a", "b"], ["b"]]
    assert seen[-1] == cluster.image()


def test_brokers_see_each_other_and_each_others_topics(join: Joined) -> None:
    first, second = join(0), join(1)
    eventually(lambda: list(first.image().brokers) == [0, 1], "the second broker")
    assert second.image().controller_id == 0
    topic_id = first.create_topic("t", 4, 2)
    eventually(lambda: "t" in second.image().topics, "the topic at the second broker")
    topic = second.image().topics["t"]
    assert topic.topic_id == topic_id
    assert [partition.replicas for partition in topic.partitions.values()] == [(0, 1), (1, 0), (0, 1), (1, 0)]
    first.alter_topic_config("t", {"a": "b"})
    eventually(lambda: second.image().topics["t"].configs == {"a": "b"}, "the config at the second broker")
    assert error_code(lambda: second.create_topic("u", 1, 1)) is ErrorCode.not_controller
    first.delete_topic("t")
    eventually(lambda: not second.image().topics, "the end of the topic at the second broker")


def led(cluster: Cluster, topic: str, number: int) -> tuple[int, tuple[int, ...]]:
    """The leader and the in-sync replicas."""
    partition = cluster.image().topics[topic].partitions[number]
    return partition.leader, partition.isr


def test_leaders_move_when_a_broker_goes_and_comes_back(join: Joined) -> None:
    first = join(0)
    join(1)
    eventually(lambda: len(first.image().brokers) == 2, "the second broker")
    first.create_topic("both", 2, 2)
    first.create_topic("single", 2, 1)
    join.leave(1)
    eventually(lambda: led(first, "both", 1) == (0, (0,)), "the first to lead")
    assert led(first, "single", 1) == (NO_LEADER, (1,))
    assert led(first, "both", 0) == (0, (0,))
    without = first.image().topics["single"].partitions[1].leader_epoch
    assert without > 0
    join(1)
    eventually(lambda: led(first, "single", 1) == (1, (1,)), "the second to lead")
    assert first.image().topics["single"].partitions[1].leader_epoch > without


def test_the_controller_fails_over(join: Joined) -> None:
    first, second = join(0), join(1)
    first.create_topic("t", 1, 1)
    first.close()
    eventually(lambda: second.is_controller, "the second to be elected")
    eventually(lambda: second.image().controller_id == 1, "the second to know it")
    assert second.create_topic("u", 1, 1)
    assert second.image().topics["u"].partitions[0].leader == 1
    assert join.coordinations[1].get(paths.CONTROLLER_EPOCH)[0] == b"2"


def created(cluster: Cluster, name: str) -> bool:
    try:
        cluster.create_topic(name, 1, 1)
    except (BrokerError, CoordinationError):
        return name in cluster.image().topics
    return True


def test_an_expired_broker_rejoins_by_itself(join: Joined, coordination_case: CoordinationCase) -> None:
    cluster = join(0)
    cluster.create_topic("t", 1, 1)
    for _ in range(2):
        before = cluster.broker_epoch
        coordination_case.expire(join.coordinations[0])
        eventually(
            lambda before=before: cluster.broker_epoch > before and cluster.is_controller, "the broker to rejoin"
        )
    eventually(
        lambda: [node.epoch for node in cluster.image().brokers.values()] == [cluster.broker_epoch],
        "the image of the new registration",
    )
    eventually(lambda: created(cluster, "u"), "a topic to be created")  # a busy machine may end the session once more
    eventually(lambda: cluster.image().topics["t"].partitions[0].leader == 0, "the partition to be led again")


def test_a_broker_whose_work_as_controller_failed_is_told_that_it_is_registered_again(
    join: Joined, coordination_case: CoordinationCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image is the same as before the failure. The broker would have no role until the next change."""
    cluster = join(0)
    told: list[BrokerRegistration | None] = []
    cluster.on_change(lambda _: told.append(cluster.own_registration))

    def fail_once(_: ClusterImage) -> NoReturn:
        monkeypatch.undo()
        told.clear()
        raise CoordinationUnavailableError("planted")

    monkeypatch.setattr(cluster.node.tasks, "suspects", fail_once)
    coordination_case.expire(join.coordinations[0])
    eventually(lambda: None in told, "the broker is told that it is registered no more")
    eventually(lambda: cluster.own_registration is not None, "the registration")
    eventually(lambda: told[-1:] == [cluster.own_registration], "the broker is told of it")


def test_an_expired_controller_is_succeeded(join: Joined, coordination_case: CoordinationCase) -> None:
    first, second = join(0), join(1)
    coordination_case.expire(join.coordinations[0])
    eventually(lambda: first.is_controller != second.is_controller, "one of them to be elected")
    eventually(lambda: list(second.image().brokers) == [0, 1], "both to be registered")


def test_who_has_not_joined_changes_nothing(coordination: Coordination) -> None:
    cluster = Cluster(coordination, 0, [Endpoint("127.0.0.1", 9092)], data_ids=("d0",))
    assert cluster.image() == ClusterImage("", -1, {}, {})
    assert not cluster.is_controller
    cluster.close()


def test_producer_ids_are_given_once(join: Joined) -> None:
    clusters = [join(0), join(1)]
    blocks: list[range] = []

    def allocate(cluster: Cluster) -> None:
        for _ in range(5):
            blocks.append(cluster.allocate_producer_ids())

    threads = [threading.Thread(target=allocate, args=(cluster,)) for cluster in clusters * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    blocks.sort(key=lambda block: block.start)
    assert {len(block) for block in blocks} == {1000}
    assert all(block.stop <= after.start for block, after in itertools.pairwise(blocks))
    written = json.loads(join.coordinations[0].get(paths.PRODUCER_ID_BLOCK)[0])
    assert (written["block_start"], written["block_end"]) == (str(blocks[-1].start), str(blocks[-1].stop - 1))


def test_partitions_go_where_an_admin_places_them(join: Joined) -> None:
    cluster = join(0)
    join(1)
    eventually(lambda: len(cluster.image().brokers) == 2, "both brokers")
    cluster.create_topic("placed", 2, 1, {}, {1: (0,), 0: (1,)})
    cluster.create_partitions("placed", 4, {2: (1,), 3: (1,)})
    partitions = cluster.image().topics["placed"].partitions
    assert {number: (p.leader, p.replicas) for number, p in partitions.items()} == {
        0: (1, (1,)),
        1: (0, (0,)),
        2: (1, (1,)),
        3: (1, (1,)),
    }


def test_partitions_that_are_added_during_a_reassignment_have_the_factor_of_its_target(join: Joined) -> None:
    cluster = join(0)
    join(1)
    eventually(lambda: len(cluster.image().brokers) == 2, "both brokers")
    cluster.create_topic("moving", 1, 1, {}, {0: (0,)})
    cluster.alter_reassignments({TopicPartition("moving", 0): (1,)})
    moving = cluster.image().topics["moving"]
    assert moving.partitions[0].replicas == (1, 0)
    services = cast(Services, SimpleNamespace(image=cluster.image()))
    given = added_replicas(services, moving, 2, [[0]])
    assert given == {1: (0,)}
    with pytest.raises(BrokerError, match="partition 1 has 2 replicas, others have 1"):
        added_replicas(services, moving, 2, [[0, 1]])
    cluster.create_partitions("moving", 2, given)
    cluster.create_partitions("moving", 4)
    partitions = cluster.image().topics["moving"].partitions
    assert [partitions[number].replicas for number in (1, 2, 3)] == [(0,), (1,), (0,)]
