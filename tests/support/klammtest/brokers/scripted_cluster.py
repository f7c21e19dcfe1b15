"""Several scripted brokers that are one cluster: a test says who leads, who is down, and what is refused.

All brokers have the same logs, as if replicas had them whole at any time: `stored` for readers, the brokers' `logs` for
producers. A broker refuses what it does not lead, or what carries another leader epoch, as real ones do.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from klamm.core.config.section import ConfigSource
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.protocol import messages
from klamm.core.protocol.apis import SPOKEN, ApiKey
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.scripted import NO_TIME, Log, ScriptedBroker
from klammtest.stored_topic import StoredLog, epoch_end

EARLIEST, LATEST = -2, -1


@dataclass(frozen=True)
class Seen:
    """A request as a broker saw it."""

    node: int
    api: ApiKey
    version: int
    message: Any


@dataclass
class Led:
    leader: int
    epoch: int = 0


@dataclass
class ScriptedCluster:
    """`faults` of an API are used up one by one, by each partition's answer (or each answer, for groups).
    `names_leaders`: answers name the leader (KIP-951). `behind`: brokers that have the leaders as they were before
    the elections. `preferred`: by rack, the broker that a leader names to fetch from (KIP-392); such brokers serve what
    they do not lead, unless `refused` has an error for it. `poll_s`: how long a Fetch without records waits, unless it
    asks for less; `polls_s`: the same of some brokers; `delays_s`: how much later these answer each Fetch.
    `coordinators`: brokers that name another coordinator than `coordinator`, and which. `configs`: what topics set
    themselves; `hidden`: topics whose configurations the client may not see.
    """

    topics: dict[str, int]
    brokers: dict[int, ScriptedBroker] = field(default_factory=dict)
    led: dict[TopicPartition, Led] = field(default_factory=dict)
    stored: dict[TopicPartition, StoredLog] = field(default_factory=dict)
    faults: dict[ApiKey, deque[ErrorCode]] = field(default_factory=lambda: defaultdict(deque))
    seen: list[Seen] = field(default_factory=list)
    ids: dict[str, UUID] = field(default_factory=dict)
    names_leaders: bool = False
    behind: dict[int, dict[TopicPartition, Led]] = field(default_factory=dict)
    preferred: dict[str, int] = field(default_factory=dict)
    refused: ErrorCode = ErrorCode.none
    coordinator: int = 1
    coordinators: dict[int, int] = field(default_factory=dict)
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    cluster_id: str = "scripted"
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    poll_s: float = 0.02
    polls_s: dict[int, float] = field(default_factory=dict)
    delays_s: dict[int, float] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self, count: int, codecs: CodecTable) -> None:
        logs: dict[TopicPartition, Log] = {}
        for topic, partitions in self.topics.items():
            self.ids[topic] = uuid4()
            for number in range(partitions):
                partition = TopicPartition(topic, number)
                self.led[partition] = Led(1)
                self.stored[partition] = StoredLog()
        for node in range(1, count + 1):
            broker = self.brokers[node] = ScriptedBroker(self.topics, codecs)
            broker.logs = logs
            broker.versions = {**broker.versions, **SPOKEN}
            own: dict[ApiKey, Callable[[int, Any, int], Any]] = {
                ApiKey.METADATA: self._metadata,
                ApiKey.FETCH: self._fetch,
                ApiKey.LIST_OFFSETS: self._list_offsets,
                ApiKey.DESCRIBE_CONFIGS: self._describe_configs,
                ApiKey.OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
                ApiKey.FIND_COORDINATOR: self._find_coordinator,
                ApiKey.OFFSET_COMMIT: self._commit,
                ApiKey.OFFSET_FETCH: self._fetch_offsets,
                ApiKey.PRODUCE: self._produce,
            }
            for api, handler in own.items():
                broker.handlers[api] = self._noting(node, api, handler)

    def kill(self, node: int) -> None:
        """Ends the broker: its connections break, new ones are refused."""
        self.brokers[node].close()

    def elect(self, partition: TopicPartition, node: int, lost: int = 0) -> None:
        """Makes the broker the leader, in the next leader epoch; so many batches at the log's end are lost."""
        self.stored[partition].cut(lost)
        self.led[partition] = Led(node, self.stored[partition].epochs[-1][0])

    def asked(self, api: ApiKey, node: int | None = None) -> list[Seen]:
        return [one for one in list(self.seen) if one.api is api and node in (None, one.node)]

    # -- answers

    def _noting(self, node: int, api: ApiKey, handler: Callable[[int, Any, int], Any]) -> Callable[[Any, int], Any]:
        def answer(request: Any, version: int) -> Any:
            self.seen.append(Seen(node, api, version, request))
            return handler(node, request, version)

        return answer

    def _fault(self, api: ApiKey) -> ErrorCode:
        return self.faults[api].popleft() if self.faults[api] else ErrorCode.none

    def _refusal(self, node: int, partition: TopicPartition, epoch: int, api: ApiKey) -> ErrorCode:
        """Why the broker does not serve the partition's leader's part; none if it does."""
        led = self.led.get(partition)
        if led is None:
            return ErrorCode.unknown_topic_or_partition
        if led.leader != node:
            return ErrorCode.not_leader_or_follower
        if 0 <= epoch < led.epoch:
            return ErrorCode.fenced_leader_epoch
        if epoch > led.epoch:
            return ErrorCode.unknown_leader_epoch
        return self._fault(api)

    def _metadata(self, node: int, request: Any, version: int) -> Any:
        schema = messages.response(ApiKey.METADATA, version)
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        return schema.build(
            throttle_time=NO_TIME,
            brokers=tuple(
                schema.part("MetadataResponseBroker", node_id=number, host="127.0.0.1", port=broker.port, rack=None)
                for number, broker in self.brokers.items()
            ),
            cluster_id=self.cluster_id,
            controller_id=1,
            topics=tuple(self._topic(schema, name, self.behind.get(node, self.led)) for name in names),
            error_code=ErrorCode.none,
        )

    def _topic(self, schema: messages.Schema, name: str, known: dict[TopicPartition, Led]) -> Any:
        count = self.topics.get(name, 0)
        nodes = tuple(self.brokers)
        led = [known[TopicPartition(name, number)] for number in range(count)]
        return schema.part(
            "MetadataResponseTopic",
            error_code=ErrorCode.none if count else ErrorCode.unknown_topic_or_partition,
            name=name,
            topic_id=self.ids.get(name),
            is_internal=name.startswith("__"),
            partitions=tuple(
                schema.part(
                    "MetadataResponsePartition",
                    error_code=ErrorCode.none if one.leader >= 0 else ErrorCode.leader_not_available,
                    partition_index=number,
                    leader_id=one.leader,
                    leader_epoch=one.epoch,
                    replica_nodes=nodes,
                    isr_nodes=nodes,
                    offline_replicas=(),
                )
                for number, one in enumerate(led)
            ),
        )

    def _leader_of(self, schema: messages.Schema, partition: TopicPartition) -> dict[str, Any]:
        led = self.led.get(partition)
        if not self.names_leaders or led is None or not hasattr(schema.module, "LeaderIdAndEpoch"):
            return {}
        return {"current_leader": schema.part("LeaderIdAndEpoch", leader_id=led.leader, leader_epoch=led.epoch)}

    def _endpoints(self, schema: messages.Schema) -> dict[str, Any]:
        if not self.names_leaders or not hasattr(schema.module, "NodeEndpoint"):
            return {}
        nodes = self.brokers.items()
        return {
            "node_endpoints": tuple(
                schema.part("NodeEndpoint", node_id=n, host="127.0.0.1", port=b.port, rack=None) for n, b in nodes
            )
        }

    def _produce(self, node: int, request: Any, version: int) -> Any:
        schema = messages.response(ApiKey.PRODUCE, version)
        broker = self.brokers[node]
        answers = []
        for topic in request.topic_data:
            for data in topic.partition_data:
                partition = TopicPartition(topic.name, data.index)
                code, base = self._refusal(node, partition, -1, ApiKey.PRODUCE), -1
                if code in (ErrorCode.none, ErrorCode.not_enough_replicas_after_append):
                    refused, base = broker.log(*partition).append(bytes(data.records), broker.codecs)
                    code = code if refused is ErrorCode.none else refused
                answers.append(
                    schema.part(
                        "TopicProduceResponse",
                        name=topic.name,
                        partition_responses=(
                            schema.part(
                                "PartitionProduceResponse",
                                index=data.index,
                                error_code=code,
                                base_offset=base if code is ErrorCode.none else -1,
                                log_append_time=None,
                                log_start_offset=0,
                                record_errors=(),
                                error_message=None,
                                **(self._leader_of(schema, partition) if code is not ErrorCode.none else {}),
                            ),
                        ),
                    )
                )
        return schema.build(responses=tuple(answers), throttle_time=NO_TIME, **self._endpoints(schema))

    def _fetch(self, node: int, request: Any, version: int) -> Any:
        schema = messages.response(ApiKey.FETCH, version)
        names = {topic_id: name for name, topic_id in self.ids.items()}
        topics, quiet = [], True
        for topic in request.topics:
            name = topic.topic if hasattr(topic, "topic") else names.get(topic.topic_id)
            parts = []
            for p in topic.partitions:
                fields = self._fetched(schema, node, name, p, getattr(request, "rack_id", ""))
                quiet = quiet and not fields["records"] and fields["error_code"] is ErrorCode.none
                parts.append(schema.part("PartitionData", partition_index=p.partition, **fields))
            named = {"topic": name} if hasattr(topic, "topic") else {"topic_id": topic.topic_id}
            topics.append(schema.part("FetchableTopicResponse", **named, partitions=tuple(parts)))
        wait_s = self.delays_s.get(node, 0.0)
        if quiet:
            wait_s += min(self.polls_s.get(node, self.poll_s), request.max_wait.total_seconds())
        if wait_s:
            with self.brokers[node].waiting():
                threading.Event().wait(wait_s)
        return schema.build(
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            session_id=0,
            responses=tuple(topics),
            **self._endpoints(schema),
        )

    def _fetched(self, schema: messages.Schema, node: int, name: str | None, p: Any, rack: str) -> dict[str, Any]:
        nothing = {
            "high_watermark": -1,
            "last_stable_offset": -1,
            "log_start_offset": -1,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": b"",
        }
        if name is None:
            return {**nothing, "error_code": ErrorCode.unknown_topic_id}
        partition = TopicPartition(name, p.partition)
        reads_here = node in self.preferred.values() and self.led[partition].leader != node
        code = (
            self._fault(ApiKey.FETCH) or self.refused
            if reads_here
            else self._refusal(node, partition, getattr(p, "current_leader_epoch", -1), ApiKey.FETCH)
        )
        log = self.stored[partition]
        if code is ErrorCode.none and not log.start <= p.fetch_offset <= log.end:
            code = ErrorCode.offset_out_of_range
        if code is not ErrorCode.none:
            return {**nothing, "error_code": code, **self._leader_of(schema, partition)}
        found = {
            **nothing,
            "error_code": code,
            "high_watermark": log.visible,
            "last_stable_offset": log.visible,
            "log_start_offset": log.start,
        }
        if (last := getattr(p, "last_fetched_epoch", -1)) >= 0:
            end = epoch_end(log, last)
            if end.leader_epoch < 0:
                return {**nothing, "error_code": ErrorCode.offset_out_of_range}
            if end.leader_epoch < last or end.end_offset < p.fetch_offset:
                part = schema.part("EpochEndOffset", epoch=end.leader_epoch, end_offset=end.end_offset)
                return {**found, "diverging_epoch": part}
        nearer = self.preferred.get(rack, node)
        if nearer != node:
            return {**found, "preferred_read_replica": nearer}
        return {**found, "records": log.batch_at(p.fetch_offset)}

    def _describe_configs(self, node: int, request: Any, version: int) -> Any:
        schema = messages.response(ApiKey.DESCRIBE_CONFIGS, version)
        results = tuple(
            schema.part(
                "DescribeConfigsResult",
                error_code=ErrorCode.topic_authorization_failed
                if resource.resource_name in self.hidden
                else ErrorCode.none,
                error_message=None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(
                    schema.part(
                        "DescribeConfigsResourceResult",
                        name=name,
                        value=value,
                        read_only=False,
                        config_source=int(ConfigSource.TOPIC),
                        is_sensitive=False,
                        synonyms=(),
                        documentation=None,
                    )
                    for name, value in self.configs.get(resource.resource_name, {}).items()
                ),
            )
            for resource in request.resources
        )
        return schema.build(throttle_time=NO_TIME, results=results)

    def _list_offsets(self, node: int, request: Any, version: int) -> Any:
        schema = messages.response(ApiKey.LIST_OFFSETS, version)

        def one(name: str, p: Any) -> Any:
            partition = TopicPartition(name, p.partition_index)
            epoch = getattr(p, "current_leader_epoch", -1)
            code = self._refusal(node, partition, epoch, ApiKey.LIST_OFFSETS)
            log = self.stored[partition]
            offset = log.start if p.timestamp == EARLIEST else log.visible
            return schema.part(
                "ListOffsetsPartitionResponse",
                partition_index=p.partition_index,
                error_code=code,
                timestamp=-1,
                offset=offset if code is ErrorCode.none else -1,
                leader_epoch=self.led[partition].epoch,
            )

        topics = tuple(
            schema.part(
                "ListOffsetsTopicResponse",
                name=topic.name,
                partitions=tuple(one(topic.name, p) for p in topic.partitions),
            )
            for topic in request.topics
        )
        return schema.build(throttle_time=NO_TIME, topics=topics)

    def _epoch_ends(self, node: int, request: Any, version: int) -> Any:
        schema = messages.response(ApiKey.OFFSET_FOR_LEADER_EPOCH, version)

        def one(name: str, p: Any) -> Any:
            partition = TopicPartition(name, p.partition)
            code = self._refusal(node, partition, p.current_leader_epoch, ApiKey.OFFSET_FOR_LEADER_EPOCH)
            end = epoch_end(self.stored[partition], p.leader_epoch)
            return schema.part(
                "EpochEndOffset",
                error_code=code,
                partition=p.partition,
                leader_epoch=end.leader_epoch,
                end_offset=end.end_offset,
            )

        topics = tuple(
            schema.part(
                "OffsetForLeaderTopicResult",
                topic=topic.topic,
                partitions=tuple(one(topic.topic, p) for p in topic.partitions),
            )
            for topic in request.topics
        )
        return schema.build(throttle_time=NO_TIME, topics=topics)

    # -- groups

    def _find_coordinator(self, node: int, request: Any, version: int) -> Any:
        named = self.coordinators.get(node, self.coordinator)
        schema = messages.response(ApiKey.FIND_COORDINATOR, version)
        code = self._fault(ApiKey.FIND_COORDINATOR)
        found = {
            "error_code": code,
            "node_id": named,
            "host": "127.0.0.1",
            "port": self.brokers[named].port,
        }
        if version >= 4:
            keys = request.coordinator_keys
            return schema.build(
                throttle_time=NO_TIME,
                coordinators=tuple(schema.part("Coordinator", key=key, error_message=None, **found) for key in keys),
            )
        return schema.build(throttle_time=NO_TIME, error_message=None, **found)

    def _group_refusal(self, node: int, api: ApiKey) -> ErrorCode:
        return self._fault(api) if node == self.coordinator else ErrorCode.not_coordinator

    def _commit(self, node: int, request: Any, version: int) -> Any:
        schema = messages.response(ApiKey.OFFSET_COMMIT, version)
        code = self._group_refusal(node, ApiKey.OFFSET_COMMIT)
        names = {topic_id: name for name, topic_id in self.ids.items()}
        topics = []
        for topic in request.topics:
            name = topic.name if hasattr(topic, "name") else names[topic.topic_id]
            for p in topic.partitions:
                if code is ErrorCode.none:
                    committed = CommittedOffset(p.committed_offset, p.committed_leader_epoch)
                    self.offsets[TopicPartition(name, p.partition_index)] = committed
            named = {"name": name} if hasattr(topic, "name") else {"topic_id": topic.topic_id}
            kind = "OffsetCommitResponsePartition"
            parts = tuple(
                schema.part(kind, partition_index=p.partition_index, error_code=code) for p in topic.partitions
            )
            topics.append(schema.part("OffsetCommitResponseTopic", **named, partitions=parts))
        return schema.build(throttle_time=NO_TIME, topics=tuple(topics))

    def _fetch_offsets(self, node: int, request: Any, version: int) -> Any:
        schema = messages.response(ApiKey.OFFSET_FETCH, version)
        code = self._group_refusal(node, ApiKey.OFFSET_FETCH)
        [group] = request.groups
        kind = "OffsetFetchResponsePartitions"
        topics = tuple(
            schema.part(
                "OffsetFetchResponseTopics",
                name=topic.name,
                partitions=tuple(
                    schema.part(
                        kind,
                        partition_index=number,
                        error_code=ErrorCode.none,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata="",
                    )
                    for number in topic.partition_indexes
                    if (found := self.offsets.get(TopicPartition(topic.name, number), CommittedOffset(-1)))
                ),
            )
            for topic in group.topics or ()
        )
        answer = schema.part("OffsetFetchResponseGroup", group_id=group.group_id, topics=topics, error_code=code)
        return schema.build(throttle_time=NO_TIME, groups=(answer,))


@contextlib.contextmanager
def scripted_cluster(
    topics: dict[str, int], brokers: int = 3, codecs: CodecTable | None = None
) -> Iterator[ScriptedCluster]:
    """Runs a cluster of brokers 1, 2, …, of which 1 leads all partitions."""
    cluster = ScriptedCluster(topics)
    cluster.start(brokers, codecs or CodecTable())
    try:
        yield cluster
    finally:
        for broker in cluster.brokers.values():
            broker.close()
