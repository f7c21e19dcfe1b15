"""The JSON of the paths, against texts as Kafka 3.x wrote them."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.cluster.tree.nodes import (
    BrokerIdNode,
    ConfigNode,
    ControllerNode,
    ProducerIdBlockNode,
    TopicNode,
    decode_uuid,
    encode_uuid,
)
from klamm.core.errors import CoordinationError

TOPIC = b"""{"removing_replicas":{},"partitions":{"0":[0,1],"10":[1]},"topic_id":"MkIN3jdVQPm5nzxrhwKFjg",
"adding_replicas":{},"version":3}"""
BROKER = b"""{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},
"endpoints":["PLAINTEXT://kafka:9092"],"jmx_port":-1,"port":9092,"host":"kafka","version":5,
"timestamp":"1632482013312","rack":null,"directory_id":"dir","incarnation":"one","data":["a0"],"state":"serving",
"inter_broker_listener":"PLAINTEXT"}"""


def test_a_topic_of_kafkas() -> None:
    node = TopicNode.decode("/brokers/topics/t", TOPIC)
    assert node.partitions == {0: (0, 1), 10: (1,)}
    assert encode_uuid(node.topic_id) == "MkIN3jdVQPm5nzxrhwKFjg"
    assert json.loads(node.encode()) == json.loads(TOPIC)


def test_a_broker_of_kafkas() -> None:
    node = BrokerIdNode.decode("/brokers/ids/0", BROKER)
    assert (node.host, node.port, node.timestamp, node.directory_id) == ("kafka", 9092, 1632482013312, "dir")
    written = json.loads(node.encode())
    assert written["timestamp"] == "1632482013312"
    assert written["endpoints"] == ["PLAINTEXT://kafka:9092"]


def test_the_other_nodes_of_kafkas() -> None:
    controller = b'{"version":1,"brokerid":3,"timestamp":"1632482013412"}'
    assert json.loads(ControllerNode.decode("/controller", controller).encode()) == json.loads(controller)
    newer = b'{"version":2,"brokerid":3,"timestamp":"1632482013412","kraftControllerEpoch":-1}'
    assert ControllerNode.decode("/controller", newer).brokerid == 3
    block = b'{"version":1,"broker":0,"block_start":"2000","block_end":"2999"}'
    assert json.loads(ProducerIdBlockNode.decode("/b", block).encode()) == json.loads(block)
    config = b'{"version":1,"config":{"retention.ms":"-1"}}'
    assert json.loads(ConfigNode.decode("/c", config).encode()) == json.loads(config)


@given(st.uuids())
def test_ids_are_22_characters(value: UUID) -> None:
    text = encode_uuid(value)
    assert len(text) == 22
    assert decode_uuid(text) == value


@pytest.mark.parametrize(
    "data",
    [b"", b"no json", b"[]", b"{}", b'{"version":3,"topic_id":"short","partitions":{}}', TOPIC.replace(b'"0"', b'"x"')],
)
def test_data_that_is_no_topic_names_the_path(data: bytes) -> None:
    with pytest.raises(CoordinationError, match="/brokers/topics/t holds no TopicNode") as caught:
        TopicNode.decode("/brokers/topics/t", data)
    assert "\n" not in str(caught.value)
