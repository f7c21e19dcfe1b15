"""Requests that broker tests send over a raw socket, in the versions with most fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.encode import encode_batch
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

_NAMES = count()


def batch(*values: bytes, timestamp_ms: int = 1_700_000_000_000, **fields: Any) -> bytes:
    """Makes a record batch of these values, without keys; `fields` are those of `encode_batch`."""
    return encode_batch([(timestamp_ms, None, value, ()) for value in values], **fields)


def produce_fields(
    batches: Mapping[tuple[str, int], bytes | None],
    acks: int = -1,
    version: int = 9,
    transactional_id: str | None = None,
    topic_ids: Mapping[str, UUID] | None = None,
) -> dict[str, Any]:
    """`topic_ids`: from version 13 on; a topic without one is named by the id of zeros."""
    topics: dict[str, list[Any]] = {}
    for (topic, partition), records in batches.items():
        data = part(ApiKey.PRODUCE, version, "PartitionProduceData", index=partition, records=records)
        topics.setdefault(topic, []).append(data)
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timedelta(seconds=5),
        "topic_data": tuple(
            part(
                ApiKey.PRODUCE,
                version,
                "TopicProduceData",
                name=topic,
                topic_id=(topic_ids or {}).get(topic),
                partition_data=tuple(parts),
            )
            for topic, parts in topics.items()
        ),
    }


def produce(
    wire: WireClient,
    topic: str,
    records: bytes | None,
    partition: int = 0,
    acks: int = -1,
    version: int = 9,
    known_by: WireClient | None = None,
) -> Any:
    """Produces to one partition and returns its result. `known_by`: who may read the topic's id, if another client."""
    topic_ids = {topic: topic_id(known_by or wire, topic)} if version >= 13 else None
    fields = produce_fields({(topic, partition): records}, acks, version, topic_ids=topic_ids)
    answer = wire.call(ApiKey.PRODUCE, version, **fields)
    return answer.responses[0].partition_responses[0]


def fetch_fields(
    wanted: Mapping[tuple[str, int], int],
    *,
    version: int = 12,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 10_000_000,
    partition_max_bytes: int = 1_000_000,
    leader_epoch: int = -1,
    topic_ids: Mapping[str, UUID] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """`topic_ids`: from version 13 on; a topic without one is asked for by the id of zeros."""
    topics: dict[str, list[Any]] = {}
    for (topic, partition), offset in wanted.items():
        asked = part(
            ApiKey.FETCH, version, "FetchPartition", partition=partition, fetch_offset=offset,
            partition_max_bytes=partition_max_bytes, current_leader_epoch=leader_epoch,
        )  # fmt: skip
        topics.setdefault(topic, []).append(asked)
    return {
        "max_wait": timedelta(milliseconds=max_wait_ms),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "topics": tuple(
            part(
                ApiKey.FETCH,
                version,
                "FetchTopic",
                topic=topic,
                topic_id=(topic_ids or {}).get(topic),
                partitions=tuple(parts),
            )
            for topic, parts in topics.items()
        ),
        "forgotten_topics_data": (),
        **more,
    }


def fetch(wire: WireClient, topic: str, offset: int, partition: int = 0, version: int = 12, **more: Any) -> Any:
    """Fetches one partition and returns its part of the response."""
    if version >= 13:
        more["topic_ids"] = {topic: topic_id(wire, topic)}
    answer = wire.call(ApiKey.FETCH, version, **fetch_fields({(topic, partition): offset}, version=version, **more))
    return answer.responses[0].partitions[0]


def new_topic(wire: WireClient, partitions: int = 1, **config: Any) -> str:
    """Creates a topic for one test; config keys have underscores for dots."""
    name = f"topic-{next(_NAMES)}"
    answer = create_topic(wire, name, partitions, {key.replace("_", "."): str(value) for key, value in config.items()})
    assert answer.error_code is ErrorCode.none, answer
    return name


def create_topic(
    wire: WireClient, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, **more: Any
) -> Any:
    configs = tuple(
        part(ApiKey.CREATE_TOPICS, 7, "CreatableTopicConfig", name=key, value=value)
        for key, value in (config or {}).items()
    )
    fields = {"replication_factor": -1, "assignments": (), **more}
    validate_only = fields.pop("validate_only", False)
    topic = part(
        ApiKey.CREATE_TOPICS, 7, "CreatableTopic", name=name, num_partitions=partitions, configs=configs, **fields
    )
    answer = wire.call(
        ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout=timedelta(seconds=10), validate_only=validate_only
    )
    return answer.topics[0]


def metadata(wire: WireClient, topics: Sequence[str] | None, version: int = 9, *, create: bool = False) -> Any:
    asked = (
        None
        if topics is None
        else tuple(part(ApiKey.METADATA, version, "MetadataRequestTopic", name=t, topic_id=None) for t in topics)
    )
    return wire.call(
        ApiKey.METADATA, version, topics=asked, allow_auto_topic_creation=create,
        include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
    )  # fmt: skip


def wait_until_all_are_known(addresses: Collection[str]) -> None:
    """Waits until each broker at these addresses describes all of them. A start ends before the other brokers, the
    controller among them, count the new one as live.
    """

    def all_are_known(address: str) -> bool:
        with WireClient(address) as wire:
            return len(metadata(wire, []).brokers) == len(addresses)

    for address in addresses:
        eventually(partial(all_are_known, address), f"the broker at {address} knows all {len(addresses)}")


def topic_id(wire: WireClient, topic: str) -> UUID:
    """Returns the topic's id."""
    found: UUID = metadata(wire, [topic], version=12).topics[0].topic_id
    return found


def alter_topic(wire: WireClient, topic: str, key: str, value: str) -> None:
    """Sets one config of a topic."""
    api = ApiKey.INCREMENTAL_ALTER_CONFIGS
    change = part(api, 1, "AlterableConfig", name=key, config_operation=0, value=value)
    resource = part(api, 1, "AlterConfigsResource", resource_type=2, resource_name=topic, configs=(change,))
    answer = wire.call(api, 1, resources=(resource,), validate_only=False).responses[0]
    assert answer.error_code is ErrorCode.none, answer
