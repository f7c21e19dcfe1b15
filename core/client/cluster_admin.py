"""Administration of a cluster's brokers and replicas: reassignments, elections, log directories."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..errors import BrokerError, ErrorCode
from ..protocol.apis import ApiKey
from ..records.partition import TopicPartition
from .cluster_client import ClusterClient, nested, numbers
from .errors import ConnectionFailedError
from .network.connection import Build, of_fields
from .network.metadata import ClusterView, read_metadata
from .network.request_router import metadata_request

_PREFERRED = 0


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """`replicas` are all that follow the leader now; `adding` are new ones among them, `removing` those that will be
    dropped (KIP-455)."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.removing)


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """One broker's log directory: the bytes of each replica, and the total and free bytes of its file system (-1:
    unknown)."""

    path: str
    sizes: Mapping[TopicPartition, int]
    total_bytes: int = -1
    usable_bytes: int = -1


class ClusterAdmin:
    """Uses a client that the caller owns. Raises `BrokerError` if a whole request is refused; the errors of single
    partitions are in the results."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    def view(self) -> ClusterView:
        """Returns all topics and brokers as the controller knows them, so that changes just made are included; while
        there is no controller, as another broker knows them."""
        known = self._client.metadata(())
        if known.controller_id not in known.nodes:
            return self._client.metadata()

        build = metadata_request(None)
        try:
            return read_metadata(self._client.call(ApiKey.METADATA, known.controller_id, build=build, retry=False))
        except ConnectionFailedError:
            return self._client.metadata()

    def alter_reassignments(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> dict[TopicPartition, BrokerError]:
        """Starts reassignments, or cancels them (None); returns the partitions that were refused, with the reason."""
        topics = nested({tp: {"partition_index": tp.partition, "replicas": new} for tp, new in targets.items()})
        build = of_fields(topics=topics, timeout=self._timeout, allow_replication_factor_change=True)
        message = self._controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, build)
        _check(message, "the reassignment")
        return _refused(
            (TopicPartition(topic.name, p.partition_index), p) for topic in message.responses for p in topic.partitions
        )

    def reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, OngoingReassignment]:
        """Returns the reassignments in progress, of these partitions or of all."""
        topics = None if partitions is None else numbers(partitions, "partition_indexes")
        message = self._controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, of_fields(topics=topics, timeout=self._timeout))
        _check(message, "the list of reassignments")
        return {
            TopicPartition(topic.name, p.partition_index): OngoingReassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in message.topics
            for p in topic.partitions
        }

    def elect_preferred_leaders(self) -> dict[TopicPartition, BrokerError]:
        """Elects the preferred replica of each partition. Returns the partitions that were refused; a partition that
        needs no election is not among them."""
        build = of_fields(election_type=_PREFERRED, topic_partitions=None, timeout=self._timeout)
        message = self._controller(ApiKey.ELECT_LEADERS, build)
        _check(message, "the election")
        refused = _refused(
            (TopicPartition(found.topic, p.partition_id), p)
            for found in message.replica_election_results
            for p in found.partition_result
        )
        return {tp: error for tp, error in refused.items() if error.code is not ErrorCode.election_not_needed}

    def log_directory(self, broker_id: int, topics: Collection[TopicPartition] | None = None) -> LogDirectory:
        """Returns a broker's log directory, with these partitions or with all."""
        named = None if topics is None else numbers(topics, "partitions", name="topic")
        message = self._client.call(ApiKey.DESCRIBE_LOG_DIRS, broker_id, topics=named)
        _check(message, f"the log directory of broker {broker_id}")
        (result,) = message.results
        if result.error_code != ErrorCode.none:
            raise BrokerError(result.error_code, f"the log directory {result.log_dir} of broker {broker_id}")
        sizes = {
            TopicPartition(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions
        }
        total, usable = getattr(result, "total_bytes", -1), getattr(result, "usable_bytes", -1)
        return LogDirectory(result.log_dir, sizes, total, usable)

    def unregister_broker(self, broker_id: int) -> None:
        """Removes what the cluster still stores of a broker that will not return."""
        message = self._controller(ApiKey.UNREGISTER_BROKER, of_fields(broker_id=broker_id))
        _check(message, f"broker {broker_id}")

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._client.request_timeout_s)

    def _controller(self, api: ApiKey, build: Build) -> Any:
        return self._client.call_controller(api, build, lambda answer: [getattr(answer, "error_code", ErrorCode.none)])


def _check(message: Any, what: str) -> None:
    code = getattr(message, "error_code", ErrorCode.none)
    if code != ErrorCode.none:
        raise BrokerError(code, getattr(message, "error_message", None) or what)


def _refused(answers: Iterable[tuple[TopicPartition, Any]]) -> dict[TopicPartition, BrokerError]:
    return {
        tp: BrokerError(answer.error_code, f"{tp}: {answer.error_message or answer.error_code.name}")
        for tp, answer in answers
        if answer.error_code != ErrorCode.none
    }
