"""The data of the paths: JSON in the layout that Kafka 3.x wrote to ZooKeeper (`kafka.zk.ZkData`)."""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import Annotated, Final, Self
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from ...errors import CoordinationError


def encode_uuid(value: UUID) -> str:
    """Returns Kafka's text form of an id: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str | UUID) -> UUID:
    if isinstance(text, UUID):
        return text
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


KafkaUuid = Annotated[UUID, BeforeValidator(decode_uuid), PlainSerializer(encode_uuid, return_type=str)]
DecimalText = Annotated[int, PlainSerializer(str, return_type=str)]
"""A number that Kafka writes as a string."""
_SMALL: Final = 512


class NodeData(BaseModel):
    """The data of one path. Unknown fields are ignored, as in Kafka: a newer release may have written them."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, extra="ignore")

    def encode(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def decode(cls, path: str, data: bytes) -> Self:
        """Raises `CoordinationError` with the path if the data is not valid for this class. The newest small results
        are kept: what every read of the image has (such as the controller) is mostly the same as before."""
        try:
            if len(data) <= _SMALL:
                return cls._decode_small(data)
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise CoordinationError(f"{path} holds no {cls.__name__}: {where or 'JSON'}: {first['msg']}") from error

    @classmethod
    @lru_cache(maxsize=64)
    def _decode_small(cls, data: bytes) -> Self:
        return cls.model_validate_json(data)


class ClusterIdNode(NodeData):
    version: str = "1"
    id: str


class BrokerIdNode(NodeData):
    """`/brokers/ids/<id>`. The fields from `directory_id` on are Klamm's own.

    A broker that holds the lock of the log directory `directory_id` may replace the path. `incarnation` names the
    registration, `data` is the data ids of the log directory, newest first, `state` is `serving`, `full` (its disk is
    full) or `leaving`.
    """

    version: int = 5
    host: str
    port: int
    endpoints: tuple[str, ...] = Field(min_length=1)
    listener_security_protocol_map: dict[str, str] = Field(default_factory=dict)
    jmx_port: int = -1
    rack: str | None = None
    timestamp: DecimalText
    directory_id: str
    incarnation: str
    data: tuple[str, ...] = Field(min_length=1)
    state: str
    inter_broker_listener: str


class LogDirectoryNode(NodeData):
    """`/brokers/log_dirs/<id>`: the broker epochs of the broker's last start, and of the last one that opened every
    partition."""

    version: int = 1
    last_start: int = -1
    last_complete_start: int = -1


class ControllerNode(NodeData):
    version: int = 1
    brokerid: int
    timestamp: DecimalText


class FormerTopic(NodeData):
    """The topic whose logs a topic has taken over (docs/mirror.md, section "Adopt"). `promotions`: by partition, the
    offset and the leader epoch at which its former mirror was promoted."""

    topic_id: KafkaUuid
    promotions: dict[int, tuple[int, int]]


class TopicNode(NodeData):
    """`/brokers/topics/<name>`: replicas by partition number."""

    version: int = 3
    topic_id: KafkaUuid
    partitions: dict[int, tuple[int, ...]]
    adding_replicas: dict[int, tuple[int, ...]] = Field(default_factory=dict)
    removing_replicas: dict[int, tuple[int, ...]] = Field(default_factory=dict)
    former: FormerTopic | None = None

    def encode(self) -> bytes:
        """Returns Kafka's keys alone, unless the topic has taken over another one's logs."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


class DeletedTopicNode(NodeData):
    """`/admin/delete_topics/<topic id>`."""

    version: int = 1
    name: str
    topic_id: KafkaUuid


class ConfigNode(NodeData):
    """The configuration of a topic or a broker."""

    version: int = 1
    config: dict[str, str] = Field(default_factory=dict)


class ProducerIdBlockNode(NodeData):
    """The last allocated block, both ends included."""

    version: int = 1
    broker: int
    block_start: DecimalText
    block_end: DecimalText


class MetadataVersionNode(NodeData):
    """`/admin/metadata_version`. `topics`: those that the last change touched; `by`: the name of its writer's attempt.
    The version of the path is the number of changes."""

    version: int = 1
    by: str = ""
    topics: tuple[str, ...] = ()


class RestoredNode(NodeData):
    """`/admin/restored`: a broker had seen the change `seen` of the metadata, and found the metadata at `found`, or at
    another change of that number. `leader_epoch` is the highest that it had seen: states of the backup are not above
    it; states made since are, because leader epochs follow the clock."""

    version: int = 1
    broker: int
    seen: int
    found: int
    leader_epoch: int = 2**31 - 1
