from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.epoch_end import EpochEnd
from klamm.core.records.partition import TopicPartition
from klammtest.apis import SERVED
from klammtest.broker import RunningBroker
from klammtest.requests import new_topic, produce
from klammtest.wire import WireClient, part


def ask(wire: WireClient, topic: str, epoch: int, version: int = 4, current: int = -1) -> Any:
    asked = part(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, version, "OffsetForLeaderPartition",
        partition=0, leader_epoch=epoch, current_leader_epoch=current,
    )  # fmt: skip
    of = part(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, "OffsetForLeaderTopic", topic=topic, partitions=(asked,))
    return wire.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=(of,)).topics[0].partitions[0]


@pytest.mark.parametrize(
    "version",
    range(SERVED[ApiKey.OFFSET_FOR_LEADER_EPOCH][0], SERVED[ApiKey.OFFSET_FOR_LEADER_EPOCH][1] + 1),
)
def test_the_end_of_the_present_epoch_is_the_end_of_the_log(wire: WireClient, version: int) -> None:
    topic = new_topic(wire)
    produce(wire, topic, encode_batch([(1, None, b"x", ())] * 3))
    found = ask(wire, topic, 0, version)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (ErrorCode.none, 0, 3)
    later = ask(wire, topic, 7, version)
    assert (later.error_code, later.leader_epoch, later.end_offset) == (ErrorCode.none, -1, -1)


def test_errors(wire: WireClient) -> None:
    assert ask(wire, "nowhere", 0).error_code is ErrorCode.unknown_topic_or_partition
    assert ask(wire, new_topic(wire), 0, current=9).error_code is ErrorCode.unknown_leader_epoch


def metadata(wire: WireClient, version: int, **wanted: Any) -> Any:
    topic = part(ApiKey.METADATA, version, "MetadataRequestTopic", **wanted)
    asked = wire.call(
        ApiKey.METADATA, version, topics=(topic,), allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
    )  # fmt: skip
    return asked.topics[0]


@pytest.mark.parametrize("version", [10, 11, 12])
def test_topics_by_their_ids(wire: WireClient, version: int) -> None:
    name = new_topic(wire)
    topic_id = metadata(wire, version, name=name, topic_id=None).topic_id
    assert topic_id is not None
    if version == 12:
        found = metadata(wire, version, name=None, topic_id=topic_id)
        assert (found.error_code, found.name, found.topic_id) == (ErrorCode.none, name, topic_id)
        unknown = metadata(wire, version, name=None, topic_id=uuid4())
        assert (unknown.error_code, unknown.name) == (ErrorCode.unknown_topic_id, None)


def test_the_client_sees_a_new_id_when_a_topic_is_created_again(broker: RunningBroker, wire: WireClient) -> None:
    name = new_topic(wire)
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
        first = client.topic_ids([name, "nowhere"])
        assert list(first) == [name]
        client.delete_topics([name])
        client.create_topics({name: NewTopic(partitions=1)})
        assert client.topic_ids([name])[name] != first[name]
        tp = TopicPartition(name, 0)
        assert client.leader_epoch_ends({tp: 0}) == {tp: EpochEnd(0, 0)}
