"""The blocking client of a cluster: used by every component that talks to brokers and is not a producer or consumer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from ..errors import BrokerError, ErrorCode, KlammError, LogEndMovedError
from ..protocol.apis import ApiKey
from ..protocol.messages import Buffer, Schema
from ..protocol.produce.client import write_produce_request
from ..protocol.produce.conditional import FEATURE as CONDITIONAL_APPEND
from ..protocol.produce.conditional import MOVED as LOG_END_MOVED
from ..records.aborted import hide_aborted
from ..records.epoch_end import EpochEnd
from ..records.isolation import AbortedTransaction, IsolationLevel
from ..records.offset_and_epoch import OffsetAndEpoch
from ..records.partition import TopicPartition, by_topic
from .edges import EARLIEST, LATEST
from .network.connection import of_fields
from .network.metadata import ClusterMetadata, NewLeader, Node
from .network.request_router import Caller

if TYPE_CHECKING:  # its module has what a store needs too, which few clients do
    from ..interfaces.offsets import CommittedOffset

__all__ = [
    "BROKER_RESOURCE",
    "EARLIEST",
    "LATEST",
    "TOPIC_RESOURCE",
    "ClusterClient",
    "ConfigEntry",
    "FetchedPartition",
    "Lineage",
    "ListedOffset",
    "NewTopic",
    "ProducedBatch",
    "nested",
    "numbers",
    "produce_request",
    "produce_results",
]

UNSERVED_GRACE_S = 2.0
"""Seconds for which no broker may serve a partition before it counts as offline: its leader may be moving."""
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4


@dataclass(frozen=True, slots=True)
class Lineage:
    """The topic and the history of its log in which an offset was found (KIP-320, KIP-516); -1 or None: not known.

    `leader_epoch`: the leader epoch in which the offset was last compared with the log; a broker that leads in
    another one refuses the Fetch. `last_epoch`: the leader epoch of the record before the offset; a broker whose log
    differs there answers with the divergence (`FetchedPartition.diverging`).
    """

    topic_id: UUID | None = None
    leader_epoch: int = -1
    last_epoch: int = -1


_NO_LINEAGE = Lineage()


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """`records` are whole batches as stored, perhaps with a partial one at the end; the first may start below the
    requested offset. Offsets are -1 if `error` is set.

    `preferred_read_replica`: the broker from which to fetch next (KIP-392), -1 for none. `diverging`: the log
    differs from what was read; the end of the largest epoch that both have, up to `Lineage.last_epoch`. With
    `READ_COMMITTED` the batches of aborted transactions are marked as control batches (`records.aborted`).
    """

    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    records: bytes
    last_stable_offset: int = -1
    preferred_read_replica: int = -1
    diverging: EpochEnd | None = None


class ListedOffset(NamedTuple):
    """`leader_epoch` is that of the record at the offset, or of the leader at the log's end; -1 if the broker
    returns none."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ProducedBatch:
    """`log_append_time_ms` is -1 unless the broker sets the topic's timestamps. Offset -1: the batch was stored before,
    at an unknown offset.
    """

    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """The properties of a new topic; -1: the broker's default."""

    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key of a topic or broker. `source` as in DescribeConfigs: 1 topic, 4 static broker, 5 default."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool


_ELSEWHERE = {ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch}

_LAST_FETCH_BY_NAME = 12
"""The last version of Fetch that names topics instead of carrying ids."""

_LAST_BY_NAME = 9
"""The last version of OffsetCommit that names topics instead of carrying ids."""


class _Committer(NamedTuple):
    group: str
    member_id: str
    generation: int


class _NoTopicIdsError(Exception):
    """The broker's OffsetCommit carries no topic ids; nothing was sent."""


class ClusterClient(Caller):
    """Thread-safe. Retriable errors are retried within the request's time-out; then the last one is raised:
    `BrokerError` with the code, `ConnectionFailedError` with the address. `close` when done.
    """

    # -- records

    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Returns for each partition (offset, timestamp in ms) of the first record at or after its timestamp, (-1, -1)
        if there is none; with `LATEST` or `EARLIEST` the offset of that end, and timestamp -1. With `READ_COMMITTED`
        the log ends at its last stable offset.
        """
        return self.to_leaders(timestamps, partial(self._list_offsets, isolation), timeout_s)

    def list_served_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KlammError]]:
        """Returns the offsets, as `list_offsets` does, of the partitions that a broker serves, and the errors of the
        others.
        """
        list_offsets = partial(self._list_offsets, IsolationLevel.READ_UNCOMMITTED)
        found, offline = self.try_leaders(timestamps, list_offsets, timeout_s, grace_s=UNSERVED_GRACE_S)
        return {tp: offset for tp, (offset, _) in found.items()}, offline

    def try_list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        timeout_s: float,
    ) -> tuple[dict[TopicPartition, ListedOffset], dict[TopicPartition, KlammError]]:
        """Asks the leaders that are known now, once; returns the offsets, and the errors of the other partitions."""
        return self.try_leaders(timestamps, partial(self._listed_offsets, isolation), timeout_s)

    def _list_offsets(
        self, isolation: IsolationLevel, node_id: int, share: dict[TopicPartition, int], left_s: float
    ) -> dict[TopicPartition, tuple[int, int] | ErrorCode]:
        return {
            tp: one if isinstance(one, ErrorCode) else (one.offset, one.timestamp)
            for tp, one in self._listed_offsets(isolation, node_id, share, left_s).items()
        }

    def _listed_offsets(
        self, isolation: IsolationLevel, node_id: int, share: dict[TopicPartition, int], left_s: float
    ) -> dict[TopicPartition, ListedOffset | ErrorCode]:
        asked = {
            tp: {
                "partition_index": tp.partition,
                "current_leader_epoch": self.cluster.leader_epoch(tp),
                "timestamp": timestamp,
            }
            for tp, timestamp in share.items()
        }
        message = self.call(
            ApiKey.LIST_OFFSETS, node_id, timeout_s=left_s, retry=False,
            replica_id=-1, isolation_level=int(isolation), topics=nested(asked),
        )  # fmt: skip
        return {
            TopicPartition(topic.name, p.partition_index): ListedOffset(
                p.offset, p.timestamp, getattr(p, "leader_epoch", -1)
            )
            if p.error_code == ErrorCode.none
            else p.error_code
            for topic in message.topics
            for p in topic.partitions
        }

    def leader_epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, EpochEnd]:
        """Returns the end of each partition's leader epoch (OffsetForLeaderEpoch, KIP-320). An end below an offset that
        was read under this epoch shows that the log's history has changed.
        """
        return self.to_leaders(epochs, self._epoch_ends, timeout_s)

    def try_leader_epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout_s: float
    ) -> tuple[dict[TopicPartition, EpochEnd], dict[TopicPartition, KlammError]]:
        """Asks the leaders that are known now, once; returns the ends, and the errors of the other partitions."""
        return self.try_leaders(epochs, self._epoch_ends, timeout_s)

    def _epoch_ends(
        self, node_id: int, share: dict[TopicPartition, int], left_s: float
    ) -> dict[TopicPartition, EpochEnd | ErrorCode]:
        asked = {
            tp: {
                "partition": tp.partition,
                "current_leader_epoch": self.cluster.leader_epoch(tp),
                "leader_epoch": epoch,
            }
            for tp, epoch in share.items()
        }
        message = self.call(
            ApiKey.OFFSET_FOR_LEADER_EPOCH, node_id, timeout_s=left_s, retry=False,
            replica_id=-1, topics=nested(asked, name="topic"),
        )  # fmt: skip
        return {
            TopicPartition(topic.topic, p.partition): EpochEnd(p.leader_epoch, p.end_offset)
            if p.error_code == ErrorCode.none
            else p.error_code
            for topic in message.topics
            for p in topic.partitions
        }

    def fetch(
        self,
        node_id: int,
        offsets: Mapping[TopicPartition, int],
        *,
        lineages: Mapping[TopicPartition, Lineage] | None = None,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 * 1024 * 1024,
        partition_max_bytes: int = 1024 * 1024,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        rack: str = "",
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, FetchedPartition]:
        """Sends one Fetch to one broker, which waits up to `max_wait_ms` for `min_bytes`.

        Each partition's error is in the result; the connection is tried once (`ConnectionFailedError`). `timeout_s`,
        which includes the broker's wait, is at most the client's request time-out plus that wait. Topics are named
        by their ids (Fetch 13) if all of them are known, from `lineages` or else from the metadata. A leader that
        the answer names (KIP-951) replaces the one in the metadata.
        """
        known = lineages or {}
        topics: dict[tuple[str, UUID | None], list[dict[str, Any]]] = {}
        for tp, offset in offsets.items():
            lineage = known.get(tp, _NO_LINEAGE)
            fields = {
                "partition": tp.partition,
                "current_leader_epoch": lineage.leader_epoch,
                "fetch_offset": offset,
                "last_fetched_epoch": lineage.last_epoch,
                "partition_max_bytes": partition_max_bytes,
            }
            topic_id = lineage.topic_id or self.cluster.topic_id(tp.topic)
            topics.setdefault((tp.topic, topic_id), []).append(fields)
        names = {topic_id: name for name, topic_id in topics}

        def build(schema: Schema) -> Any:
            return schema.build(
                replica_id=-1,
                max_wait=timedelta(milliseconds=max_wait_ms),
                min_bytes=min_bytes,
                max_bytes=max_bytes,
                isolation_level=int(isolation),
                topics=tuple(
                    schema.part(
                        "FetchTopic",
                        topic=name,
                        topic_id=topic_id,
                        partitions=tuple(schema.part("FetchPartition", **fields) for fields in partitions),
                    )
                    for (name, topic_id), partitions in topics.items()
                ),
                forgotten_topics_data=(),
                rack_id=rack,
            )

        longest_s = self.request_timeout_s + max_wait_ms / 1000
        left_s = longest_s if timeout_s is None else min(timeout_s, longest_s)
        last = _LAST_FETCH_BY_NAME if None in names else None
        message = self.call(ApiKey.FETCH, node_id, build=build, timeout_s=left_s, retry=False, max_version=last)
        code = getattr(message, "error_code", ErrorCode.none)
        if code != ErrorCode.none:
            raise BrokerError(code, f"fetch from broker {node_id}")
        answers = {
            TopicPartition(name, p.partition_index): p
            for topic in message.responses
            if (name := topic.topic if hasattr(topic, "topic") else names.get(topic.topic_id)) is not None
            for p in topic.partitions
        }
        learn_leaders(self.cluster, answers, message)
        return {tp: _fetched(p) for tp, p in answers.items()}

    def produce(
        self,
        batches: Mapping[TopicPartition, bytes | bytearray],
        *,
        acks: int = -1,
        after: Mapping[TopicPartition, OffsetAndEpoch] | None = None,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, ProducedBatch]:
        """Appends one encoded batch to each partition and waits for the acknowledgements. Without a producer id in
        the batch a retry may store it twice (as with `enable.idempotence` off).

        `after`: for each partition the log end at which its batch may be stored, and no other (compare-and-append);
        then no retry stores it twice. Raises `LogEndMovedError` if a log ends elsewhere: its next records are
        another writer's, or those of an attempt of this call whose answer was lost. Raises `BrokerError`
        (UNSUPPORTED_VERSION) if the leader cannot compare.
        """
        if acks == 0:
            raise ValueError("produce waits for the answer: acks is 1 or -1")

        def attempt(
            node_id: int, share: dict[TopicPartition, bytes | bytearray], left_s: float
        ) -> dict[TopicPartition, ProducedBatch | ErrorCode | BrokerError]:
            message = self.call(
                ApiKey.PRODUCE,
                node_id,
                build=lambda schema: produce_request(schema, share, acks, self.request_timeout_s, after),
                timeout_s=left_s,
                retry=False,
                feature=None if after is None else CONDITIONAL_APPEND,
            )
            learn_leaders(self.cluster, produced_partitions(message), message)
            return {
                tp: produced
                if error in (ErrorCode.none, ErrorCode.duplicate_sequence_number)
                else BrokerError(error, words)
                if words
                else error
                for tp, (error, produced, words) in produce_results(message).items()
            }

        try:
            return self.to_leaders(batches, attempt, timeout_s)
        except BrokerError as error:
            if after is not None and error.code == LOG_END_MOVED:
                raise LogEndMovedError(error.words) from error
            raise

    def init_producer_id(self, *, timeout_s: float | None = None) -> tuple[int, int]:
        """Returns a new producer id and its epoch, for batches with sequence numbers (KIP-98)."""
        message = self.call(
            ApiKey.INIT_PRODUCER_ID,
            timeout_s=timeout_s,
            transactional_id=None,
            transaction_timeout=timedelta(milliseconds=2**31 - 1),
            producer_id=-1,
            producer_epoch=-1,
        )
        if message.error_code != ErrorCode.none:
            raise BrokerError(message.error_code, "a producer id for enable.idempotence")
        return message.producer_id, message.producer_epoch

    # -- topics

    def create_topics(
        self, topics: Mapping[str, NewTopic], *, exists_ok: bool = False, timeout_s: float | None = None
    ) -> None:
        """Creates all topics; raises `BrokerError` for the first that fails (others may have been created)."""
        wanted = [
            {
                "name": name,
                "num_partitions": topic.partitions,
                "replication_factor": topic.replication_factor,
                "assignments": (),
                "configs": [{"name": key, "value": value} for key, value in topic.configs.items()],
            }
            for name, topic in topics.items()
        ]
        build = of_fields(topics=wanted, timeout=self._waiting(timeout_s), validate_only=False)
        message = self.call_controller(
            ApiKey.CREATE_TOPICS, build, lambda answer: [r.error_code for r in answer.topics], timeout_s
        )
        fine = {ErrorCode.topic_already_exists} if exists_ok else set()
        _raise_first(((r.error_code, r.error_message, f"topic {r.name!r}") for r in message.topics), fine)
        self.cluster.forget(topics)

    def delete_topics(
        self, names: Collection[str], *, missing_ok: bool = False, timeout_s: float | None = None
    ) -> None:
        """Deletes all topics; raises `BrokerError` for the first that fails (others may have been deleted)."""
        message = self.call_controller(
            ApiKey.DELETE_TOPICS,
            of_fields(
                topic_names=tuple(names),
                topics=[{"name": name, "topic_id": None} for name in names],
                timeout=self._waiting(timeout_s),
            ),
            lambda answer: [r.error_code for r in answer.responses],
            timeout_s,
        )
        fine = {ErrorCode.unknown_topic_or_partition} if missing_ok else set()
        answers = ((r.error_code, getattr(r, "error_message", None), f"topic {r.name!r}") for r in message.responses)
        _raise_first(answers, fine)
        self.cluster.forget(names)

    def create_partitions(self, name: str, total: int, *, timeout_s: float | None = None) -> None:
        """Increases a topic's partitions to `total`."""
        topics = [{"name": name, "count": total, "assignments": None}]
        build = of_fields(topics=topics, timeout=self._waiting(timeout_s), validate_only=False)
        message = self.call_controller(
            ApiKey.CREATE_PARTITIONS, build, lambda answer: [r.error_code for r in answer.results], timeout_s
        )
        _raise_first((r.error_code, r.error_message, f"topic {r.name!r}") for r in message.results)
        self.cluster.forget([name])

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes each partition's records before an offset (-1: all that consumers can see); returns each new log
        start offset. Raises `BrokerError` (offset_out_of_range) for an offset above the high watermark."""

        def attempt(
            node_id: int, share: dict[TopicPartition, int], left_s: float
        ) -> dict[TopicPartition, int | ErrorCode]:
            topics = nested({tp: {"partition_index": tp.partition, "offset": at} for tp, at in share.items()})
            message = self.call(
                ApiKey.DELETE_RECORDS, node_id, timeout_s=left_s, retry=False,
                topics=topics, timeout=self._waiting(left_s),
            )  # fmt: skip
            return {
                TopicPartition(topic.name, p.partition_index): p.low_watermark
                if p.error_code == ErrorCode.none
                else p.error_code
                for topic in message.topics
                for p in topic.partitions
            }

        return self.to_leaders(before, attempt, timeout_s)

    def describe_configs(
        self,
        name: str,
        *,
        resource: int = TOPIC_RESOURCE,
        node_id: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, ConfigEntry]:
        """Returns the configuration of a topic as `node_id` knows it (None: any broker), or of a broker (its id as
        text, and `BROKER_RESOURCE`), to which the request is then sent."""
        node_id = int(name) if resource == BROKER_RESOURCE else node_id
        (result,) = self._described(resource, [name], None, node_id, timeout_s)
        _raise_first([(result.error_code, result.error_message, f"{result.resource_name!r}")])
        return _entries(result)

    def describe_topics(
        self, names: Iterable[str], keys: Collection[str], *, timeout_s: float | None = None
    ) -> tuple[dict[str, dict[str, ConfigEntry]], dict[str, str]]:
        """Returns these keys of the configurations of topics, by one request; and of topics whose configurations the
        broker does not show, the reason."""
        found, failed = {}, {}
        for result in self._described(TOPIC_RESOURCE, names, tuple(keys), None, timeout_s):
            if result.error_code == ErrorCode.none:
                found[result.resource_name] = _entries(result)
            else:
                words = f": {result.error_message}" if result.error_message else ""
                failed[result.resource_name] = f"{result.error_code.name.upper()}{words}"
        return found, failed

    def _described(
        self,
        kind: int,
        names: Iterable[str],
        keys: Collection[str] | None,
        node_id: int | None,
        timeout_s: float | None,
    ) -> Sequence[Any]:
        resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys} for name in names]
        message = self.call(
            ApiKey.DESCRIBE_CONFIGS, node_id, timeout_s=timeout_s,
            resources=resources, include_synonyms=False, include_documentation=False,
        )  # fmt: skip
        results: Sequence[Any] = message.results
        return results

    def alter_configs(
        self,
        name: str,
        changes: Mapping[str, str | None],
        *,
        resource: int = TOPIC_RESOURCE,
        timeout_s: float | None = None,
    ) -> None:
        """Sets keys; None resets a key to its default."""
        configs = [{"name": k, "config_operation": int(v is None), "value": v} for k, v in changes.items()]
        resources = [{"resource_type": resource, "resource_name": name, "configs": configs}]
        build = of_fields(resources=resources, validate_only=False)
        if resource == BROKER_RESOURCE:
            message = self.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, int(name), build=build, timeout_s=timeout_s)
        else:
            message = self.call_controller(
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                build,
                lambda answer: [r.error_code for r in answer.responses],
                timeout_s,
            )
        _raise_first((r.error_code, r.error_message, f"{r.resource_name!r}") for r in message.responses)

    # -- offsets of groups, through the broker

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str = "",
        generation: int = -1,
        timeout_s: float | None = None,
    ) -> None:
        """Commits all offsets.

        Without member id and generation it commits from outside the group, which the broker accepts only while the
        group has no members. Offsets with the id of a topic that was deleted are not stored; `BrokerError`
        UNKNOWN_TOPIC_ID is then raised.

        The broker compares the ids when it accepts the offsets (OffsetCommit 10). Before that version the request names
        topics by name alone, so the ids are compared here, before it and after it. Offsets stored for a topic that was
        created again in between are replaced by -1, which is not an offset.
        """
        committer = _Committer(group, member_id, generation)
        gone = None
        if all(committed.topic_id is not None for committed in offsets.values()):
            gone = self._commit_by_id(committer, offsets, timeout_s)
        if gone is None:
            gone = self._commit_by_name(committer, offsets, timeout_s)
        if gone:
            names = ", ".join(sorted(gone))
            raise BrokerError(ErrorCode.unknown_topic_id, f"offsets of deleted topics were not stored: {names}")

    def _commit_by_id(
        self, committer: _Committer, offsets: Mapping[TopicPartition, CommittedOffset], timeout_s: float | None
    ) -> set[str] | None:
        """Commits with topic ids; returns the topics that no longer exist, or None, with nothing stored, if the broker
        accepts no ids.
        """
        retries = self._retries(timeout_s)
        gone: set[str] = set()
        left = dict(offsets)
        while True:
            try:
                unknown = self._commit_once(committer, left, retries.left_s, by_id=True)
            except _NoTopicIdsError:
                return None
            left = {p: committed for p, committed in left.items() if committed.topic_id in unknown}
            gone |= self._of_deleted_topics(left, retries.left_s)
            left = {p: committed for p, committed in left.items() if p.topic not in gone}
            if not left:
                return gone
            # The coordinator does not know a new topic yet.
            retries.wait(BrokerError(ErrorCode.unknown_topic_id, f"group {committer.group!r}"))

    def _commit_by_name(
        self, committer: _Committer, offsets: Mapping[TopicPartition, CommittedOffset], timeout_s: float | None
    ) -> set[str]:
        """Commits by topic names; returns the topics that no longer exist."""
        from ..interfaces.offsets import CommittedOffset

        gone = self._of_deleted_topics(offsets, timeout_s)
        kept = {p: committed for p, committed in offsets.items() if p.topic not in gone}
        if kept:
            self._commit_once(committer, kept, timeout_s)
            late = self._of_deleted_topics(kept, timeout_s)
            void = {p: CommittedOffset(-1) for p in kept if p.topic in late}
            if void:
                try:
                    self._commit_once(committer, void, timeout_s)
                except BrokerError as error:
                    # the topic was deleted, and its offsets with it
                    if error.code is not ErrorCode.unknown_topic_or_partition:
                        raise
            gone |= late
        return gone

    def _commit_once(
        self,
        committer: _Committer,
        offsets: Mapping[TopicPartition, CommittedOffset],
        timeout_s: float | None,
        *,
        by_id: bool = False,
    ) -> set[UUID]:
        """Commits once; returns the topic ids that the broker does not know, of which nothing is stored. Raises
        `_NoTopicIdsError` if `by_id` and the broker accepts no ids.
        """
        topics: dict[str | UUID | None, list[dict[str, Any]]] = {}
        for tp, committed in offsets.items():
            topics.setdefault(committed.topic_id if by_id else tp.topic, []).append(
                {
                    "partition_index": tp.partition,
                    "committed_offset": committed.offset,
                    "committed_leader_epoch": committed.leader_epoch,
                    "committed_metadata": committed.metadata,
                }
            )

        def build(schema: Schema) -> Any:
            if by_id and schema.root.__version__ <= _LAST_BY_NAME:
                raise _NoTopicIdsError
            return schema.message(
                group_id=committer.group,
                generation_id_or_member_epoch=committer.generation,
                member_id=committer.member_id,
                topics=[{"topic_id": named, "name": named, "partitions": rows} for named, rows in topics.items()],
            )

        def errors(message: Any) -> Iterable[ErrorCode]:
            codes = (p.error_code for topic in message.topics for p in topic.partitions)
            return (code for code in codes if not (by_id and code is ErrorCode.unknown_topic_id))

        message = self.call_coordinator(
            committer.group,
            ApiKey.OFFSET_COMMIT,
            build,
            errors,
            timeout_s=timeout_s,
            max_version=None if by_id else _LAST_BY_NAME,
        )
        if not by_id:
            return set()
        unknown = ErrorCode.unknown_topic_id
        return {t.topic_id for t in message.topics if any(p.error_code is unknown for p in t.partitions)}

    def _of_deleted_topics(
        self, offsets: Mapping[TopicPartition, CommittedOffset], timeout_s: float | None
    ) -> set[str]:
        named = {p.topic: committed.topic_id for p, committed in offsets.items() if committed.topic_id is not None}
        now = self.topic_ids(named, timeout_s=timeout_s) if named else {}
        return {topic for topic, topic_id in named.items() if now.get(topic) != topic_id}

    def fetch_offsets(
        self, group: str, partitions: Collection[TopicPartition] | None = None, *, timeout_s: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Returns the stored offsets; None requests every partition of the group."""
        topics = None if partitions is None else numbers(partitions, "partition_indexes")
        build = of_fields(group_id=group, topics=topics, groups=[{"group_id": group, "topics": topics}])

        def errors(message: Any) -> Iterable[ErrorCode]:
            found = _offset_group(message)
            yield getattr(found, "error_code", ErrorCode.none)
            yield from (p.error_code for topic in found.topics for p in topic.partitions)

        from ..interfaces.offsets import CommittedOffset

        message = self.call_coordinator(group, ApiKey.OFFSET_FETCH, build, errors, timeout_s=timeout_s)
        return {
            TopicPartition(topic.name, p.partition_index): CommittedOffset(
                p.committed_offset, getattr(p, "committed_leader_epoch", -1), p.metadata or ""
            )
            for topic in _offset_group(message).topics
            for p in topic.partitions
            if p.committed_offset >= 0
        }

    def delete_group(self, group: str, *, timeout_s: float | None = None) -> None:
        """Deletes a group with its offsets. Raises `BrokerError` if it has members, or does not exist."""
        message = self.call_coordinator(
            group,
            ApiKey.DELETE_GROUPS,
            of_fields(groups_names=(group,)),
            lambda answer: [r.error_code for r in answer.results if r.error_code.retriable],
            timeout_s=timeout_s,
        )
        _raise_first((r.error_code, None, f"group {r.group_id!r}") for r in message.results)

    def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> None:
        """Deletes the offsets of a group without members in these partitions (KIP-496)."""
        message = self.call_coordinator(
            group,
            ApiKey.OFFSET_DELETE,
            of_fields(group_id=group, topics=nested({tp: {"partition_index": tp.partition} for tp in partitions})),
            lambda answer: [answer.error_code] if answer.error_code.retriable else [],
            timeout_s=timeout_s,
        )
        answers = [(message.error_code, None, f"group {group!r}")]
        answers += [(p.error_code, None, f"{t.name}-{p.partition_index}") for t in message.topics for p in t.partitions]
        _raise_first(answers)

    def _waiting(self, timeout_s: float | None) -> timedelta:
        return timedelta(seconds=self.request_timeout_s if timeout_s is None else timeout_s)


def produce_request(
    schema: Schema,
    batches: Mapping[TopicPartition, bytes | bytearray],
    acks: int,
    timeout_s: float,
    after: Mapping[TopicPartition, OffsetAndEpoch] | None = None,
) -> list[Buffer]:
    """Returns an encoded Produce request with one batch for each partition; `after` as in `ClusterClient.produce`."""
    ends = None if after is None else by_topic(after)
    return write_produce_request(by_topic(batches), acks, round(timeout_s * 1000), schema.root.__version__, ends)


def produced_partitions(message: Any) -> dict[TopicPartition, Any]:
    """Returns the partitions of a Produce response."""
    return {TopicPartition(topic.name, p.index): p for topic in message.responses for p in topic.partition_responses}


def produce_results(message: Any) -> dict[TopicPartition, tuple[ErrorCode, ProducedBatch, str | None]]:
    """Returns the results of a Produce response by partition: (error, position of the batch, the broker's message)."""
    return {
        tp: (
            p.error_code,
            ProducedBatch(
                p.base_offset,
                -1 if p.log_append_time is None else round(p.log_append_time.timestamp() * 1000),
                getattr(p, "log_start_offset", -1),
            ),
            getattr(p, "error_message", None),
        )
        for tp, p in produced_partitions(message).items()
    }


def learn_leaders(cluster: ClusterMetadata, answers: Mapping[TopicPartition, Any], message: Any) -> None:
    """Updates the metadata with the leaders that a Produce or Fetch response names for partitions that its broker
    does not lead (KIP-951)."""
    leaders = [
        NewLeader(tp, p.current_leader.leader_id, p.current_leader.leader_epoch)
        for tp, p in answers.items()
        if p.error_code in _ELSEWHERE and hasattr(p, "current_leader") and p.current_leader.leader_id >= 0
    ]
    if leaders:
        nodes = [Node(node.node_id, node.host, node.port, node.rack) for node in getattr(message, "node_endpoints", ())]
        cluster.elected(leaders, nodes)


def _fetched(p: Any) -> FetchedPartition:
    diverging = getattr(p, "diverging_epoch", None)
    return FetchedPartition(
        p.error_code,
        p.high_watermark,
        getattr(p, "log_start_offset", -1),
        _committed(bytes(p.records or b""), p.aborted_transactions),
        p.last_stable_offset,
        getattr(p, "preferred_read_replica", -1),
        None if diverging is None or diverging.epoch < 0 else EpochEnd(diverging.epoch, diverging.end_offset),
    )


def _committed(records: bytes, aborted: Any) -> bytes:
    """Hides the batches of aborted transactions; a broker lists them for `READ_COMMITTED` only."""
    if not aborted:
        return records
    return hide_aborted(records, [AbortedTransaction(each.producer_id, each.first_offset) for each in aborted])


def nested(rows: Mapping[TopicPartition, dict[str, Any]], *, name: str = "name") -> list[dict[str, Any]]:
    """Returns the fields of partitions by topic, as most requests have them; `name`: the field of the topic's name."""
    return [{name: topic, "partitions": list(parts.values())} for topic, parts in by_topic(rows).items()]


def numbers(partitions: Iterable[TopicPartition], field: str, *, name: str = "name") -> list[dict[str, Any]]:
    """Returns the numbers of partitions by topic, in the field of this name."""
    return [{name: topic, field: tuple(parts)} for topic, parts in by_topic(dict.fromkeys(partitions)).items()]


def _entries(result: Any) -> dict[str, ConfigEntry]:
    return {c.name: ConfigEntry(c.name, c.value, c.config_source, c.read_only, c.is_sensitive) for c in result.configs}


def _offset_group(message: Any) -> Any:
    return message.groups[0] if hasattr(message, "groups") else message


def _raise_first(answers: Iterable[tuple[ErrorCode, str | None, str]], fine: Collection[ErrorCode] = ()) -> None:
    for code, words, what in answers:
        if code != ErrorCode.none and code not in fine:
            said = words or what
            raise BrokerError(code, said if what in said else f"{what}: {said}")
