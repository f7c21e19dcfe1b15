"""What the paths hold: JSON in the layout that Kafka 3.x wrote to ZooKeeper (`kafka.zk.ZkData`)."""

from __future__ import annotations

import base64
from typing import Annotated, Self
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from ..errors import CoordinationError


def encode_uuid(value: UUID) -> str:
    """Kafka's text of an id: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str | UUID) -> UUID:
    if isinstance(text, UUID):
        return text
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


KafkaUuid = Annotated[UUID, BeforeValidator(decode_uuid), PlainSerializer(encode_uuid, return_type=str)]
DecimalText = Annotated[int, PlainSerializer(str, return_type=str)]
"""A number that Kafka writes as a string."""


class Node(BaseModel):
    """The data of one path. Unknown fields are passed over, as Kafka does: a newer release may have written them."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="ignore")

    def encode(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """`CoordinationError` naming the path when the data is not such a node's."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise CoordinationError(f"{path} holds no {cls.__name__}: {where or 'JSON'}: {first['msg']}") from error


class ClusterIdNode(Node):
    version: str = "1"
    id: str


class BrokerIdNode(Node):
    """`/brokers/ids/<id>`; `directory_id` is Klamm's own: the log directory, whose lock proves who may reclaim it."""

    version: int = 5
    host: str
    port: int
    endpoints: tuple[str, ...]
    listener_security_protocol_map: dict[str, str] = Field(default_factory=dict)
    jmx_port: int = -1
    rack: str | None = None
    timestamp: DecimalText
    directory_id: str = ""


class LogDirectoryNode(Node):
    """`/brokers/log_dirs/<id>`. `last_start`: the broker epoch of the last start at which every partition was
    opened."""

    version: int = 1
    last_start: int = -1


class ControllerNode(Node):
    version: int = 1
    brokerid: int
    timestamp: DecimalText


class TopicNode(Node):
    """`/brokers/topics/<name>`: replicas by partition number."""

    version: int = 3
    topic_id: KafkaUuid
    partitions: dict[int, tuple[int, ...]]
    adding_replicas: dict[int, tuple[int, ...]] = Field(default_factory=dict)
    removing_replicas: dict[int, tuple[int, ...]] = Field(default_factory=dict)


class DeletedTopicNode(Node):
    """`/admin/delete_topics/<topic id>`."""

    version: int = 1
    name: str
    topic_id: KafkaUuid


class PartitionStateNode(Node):
    controller_epoch: int
    leader: int
    version: int = 1
    leader_epoch: int
    isr: tuple[int, ...]


class ConfigNode(Node):
    """Of a topic, or of a broker."""

    version: int = 1
    config: dict[str, str] = Field(default_factory=dict)


class ProducerIdBlockNode(Node):
    """The block that was given out last, both ends included."""

    version: int = 1
    broker: int
    block_start: DecimalText
    block_end: DecimalText


class MetadataVersionNode(Node):
    """`topics`: those that the last change touched; the path's own version counts the changes."""

    version: int = 1
    topics: tuple[str, ...] = ()
