from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.apis import SERVED
from klammtest.broker import RunningBroker, running_broker
from klammtest.requests import batch, create_topic, fetch, metadata, new_topic, produce
from klammtest.wire import WireClient, part

WAIT = timedelta(seconds=10)


def delete(wire: WireClient, *names: str) -> list[ErrorCode]:
    answer = wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=names, timeout=WAIT)
    return [topic.error_code for topic in answer.responses]


def grow(wire: WireClient, name: str, count: int, *, validate_only: bool = False, assignments: Any = None) -> Any:
    topic = part(ApiKey.CREATE_PARTITIONS, 3, "CreatePartitionsTopic", name=name, count=count, assignments=assignments)
    fields = {"topics": (topic,), "timeout": WAIT, "validate_only": validate_only}
    return wire.call(ApiKey.CREATE_PARTITIONS, 3, **fields).results[0]


def test_a_new_topic_can_be_used_at_once(wire: WireClient) -> None:
    topic = new_topic(wire, partitions=4)
    for partition in range(4):
        assert produce(wire, topic, batch(b"x"), partition).error_code is ErrorCode.none


def test_the_answer_holds_id_and_configuration(wire: WireClient) -> None:
    answer = create_topic(wire, "described", -1, {"retention.ms": "1000"})
    assert answer.error_code is ErrorCode.none
    assert (answer.num_partitions, answer.replication_factor) == (1, 1)
    assert answer.topic_id.int != 0
    configs = {c.name: (c.value, c.config_source) for c in answer.configs}
    assert configs["retention.ms"] == ("1000", 1)
    assert configs["cleanup.policy"] == ("delete", 5)


def test_validate_only_makes_nothing(wire: WireClient) -> None:
    assert create_topic(wire, "imagined", validate_only=True).error_code is ErrorCode.none
    assert create_topic(wire, "events", validate_only=True).error_code is ErrorCode.topic_already_exists
    assert metadata(wire, ["imagined"]).topics[0].error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize(
    ("name", "fields", "error"),
    [
        ("events", {}, ErrorCode.topic_already_exists),
        ("none", {"partitions": 0}, ErrorCode.invalid_partitions),
        ("many", {"partitions": 5000}, ErrorCode.invalid_partitions),
        ("replicated", {"replication_factor": 3}, ErrorCode.invalid_replication_factor),
        ("typo", {"config": {"retention.mss": "1"}}, ErrorCode.invalid_config),
        ("value", {"config": {"retention.ms": "long"}}, ErrorCode.invalid_config),
        ("codec", {"config": {"compression.type": "brotli"}}, ErrorCode.invalid_config),
    ],
)
def test_what_is_wrong_is_said(wire: WireClient, name: str, fields: dict[str, Any], error: ErrorCode) -> None:
    answer = create_topic(wire, name, **fields)
    assert answer.error_code is error
    assert answer.error_message


def test_a_typo_names_the_nearest_config(wire: WireClient) -> None:
    assert "retention.ms" in create_topic(wire, "typo", config={"retention.mss": "1"}).error_message


def test_a_topic_named_twice_is_refused(wire: WireClient) -> None:
    topic = part(
        ApiKey.CREATE_TOPICS, 7, "CreatableTopic",
        name="twice", num_partitions=1, replication_factor=1, assignments=(), configs=(),
    )  # fmt: skip
    answer = wire.call(ApiKey.CREATE_TOPICS, 7, topics=(topic, topic), timeout=WAIT)
    assert [t.error_code for t in answer.topics] == [ErrorCode.invalid_request]


@pytest.mark.parametrize("version", range(SERVED[ApiKey.CREATE_TOPICS][0], SERVED[ApiKey.CREATE_TOPICS][1] + 1))
def test_every_version_creates(wire: WireClient, version: int) -> None:
    topic = part(
        ApiKey.CREATE_TOPICS, version, "CreatableTopic",
        name=f"version-{version}", num_partitions=1, replication_factor=1, assignments=(), configs=(),
    )  # fmt: skip
    answer = wire.call(ApiKey.CREATE_TOPICS, version, topics=(topic,), timeout=WAIT)
    assert answer.topics[0].error_code is ErrorCode.none


def test_a_deleted_topic_is_gone_and_a_new_one_of_its_name_is_empty(broker: RunningBroker, wire: WireClient) -> None:
    topic = new_topic(wire, partitions=2)
    produce(wire, topic, batch(b"old"))
    assert delete(wire, topic, "nowhere") == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    assert produce(wire, topic, batch(b"x")).error_code is ErrorCode.unknown_topic_or_partition
    assert not (broker.log_dir / f"{topic}-0").exists()
    assert create_topic(wire, topic).error_code is ErrorCode.none
    assert produce(wire, topic, batch(b"new")).base_offset == 0
    assert fetch(wire, topic, 0).high_watermark == 1


@pytest.mark.parametrize("version", range(SERVED[ApiKey.DELETE_TOPICS][0], SERVED[ApiKey.DELETE_TOPICS][1] + 1))
def test_every_version_deletes(wire: WireClient, version: int) -> None:
    name = new_topic(wire)
    named = {"topics": (part(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=name, topic_id=None),)}
    if version < 6:
        named = {"topic_names": (name,)}
    answer = wire.call(ApiKey.DELETE_TOPICS, version, **named, timeout=WAIT)
    assert answer.responses[0].error_code is ErrorCode.none


def test_partitions_grow(wire: WireClient) -> None:
    topic = new_topic(wire, partitions=2)
    assert grow(wire, topic, 4, validate_only=True).error_code is ErrorCode.none
    assert len(metadata(wire, [topic]).topics[0].partitions) == 2
    assert grow(wire, topic, 4).error_code is ErrorCode.none
    assert produce(wire, topic, batch(b"x"), partition=3).base_offset == 0
    for count in (4, 1, 0):
        assert grow(wire, topic, count).error_code is ErrorCode.invalid_partitions
    assert grow(wire, "nowhere", 4).error_code is ErrorCode.unknown_topic_or_partition
    placed = part(ApiKey.CREATE_PARTITIONS, 3, "CreatePartitionsAssignment", broker_ids=(0,))
    assert grow(wire, topic, 5, assignments=(placed,)).error_code is ErrorCode.none


@pytest.mark.parametrize("version", range(SERVED[ApiKey.METADATA][0], SERVED[ApiKey.METADATA][1] + 1))
def test_every_version_of_metadata(broker: RunningBroker, wire: WireClient, version: int) -> None:
    answer = metadata(wire, ["events", "nowhere"], version)
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(0, "127.0.0.1", broker.port)]
    known, unknown = answer.topics
    assert [(p.partition_index, p.leader_id, p.replica_nodes) for p in known.partitions] == [
        (i, 0, (0,)) for i in range(3)
    ]
    assert unknown.error_code is ErrorCode.unknown_topic_or_partition
    everything = metadata(wire, None if version else [], version)
    assert {"events", "small"} <= {t.name for t in everything.topics}
    if version:
        assert metadata(wire, [], version).topics == ()


def test_topics_are_created_on_demand_only_where_that_is_configured(
    broker: RunningBroker, wire: WireClient, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert metadata(wire, ["wished"], create=True).topics[0].error_code is ErrorCode.unknown_topic_or_partition
    config = {"auto.create.topics.enable": True, "num.partitions": 2, "delete.topic.enable": False}
    with (
        running_broker(tmp_path_factory.mktemp("creating"), broker=config) as creating,
        WireClient(creating.bootstrap) as client,
    ):
        assert metadata(client, ["wished"]).topics[0].error_code is ErrorCode.unknown_topic_or_partition
        answer = metadata(client, ["wished", "no/pe"], create=True).topics
        assert [t.error_code for t in answer] == [ErrorCode.none, ErrorCode.invalid_topic_exception]
        assert len(answer[0].partitions) == 2
        assert produce(client, "wished", batch(b"x"), partition=1).error_code is ErrorCode.none
        assert delete(client, "wished") == [ErrorCode.topic_deletion_disabled]


def test_describe_cluster(broker: RunningBroker, wire: WireClient) -> None:
    answer = wire.call(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False)
    assert (answer.error_code, answer.controller_id) == (ErrorCode.none, 0)
    assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(0, "127.0.0.1", broker.port)]
    assert answer.cluster_id == metadata(wire, []).cluster_id
    controllers = wire.call(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=2)
    assert controllers.error_code is ErrorCode.mismatched_endpoint_type
