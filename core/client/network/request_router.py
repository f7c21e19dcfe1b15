"""Sends one request to the right broker, and retries it until its time is up.

Rules:
- A broken connection or a time-out is retried with the reconnect back-off, a retriable error code with the retry
  back-off, both within the request's time-out; then the last error is raised. A caller whose request must not be sent
  twice passes `retry=False`.
- "Any broker" is each known one in turn; when none of them answers, the bootstrap servers are used (KIP-899).
- A leader or coordinator that has changed is looked up again before the next attempt.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar
from uuid import UUID

from ...errors import BrokerError, ErrorCode, KlammError, ProtocolError
from ...protocol.apis import ApiKey
from ...protocol.messages import Schema
from ...protocol.software import declare_codecs
from ...records.codecs import CodecTable
from ...records.partition import TopicPartition
from ...transport.interface import Address, Dial
from ...transport.plaintext_stream import dial_plaintext
from ..errors import (
    STALE_LEADER_ERRORS,
    ClientClosedError,
    ConnectionFailedError,
    RequestTimeoutError,
    UnknownTopicError,
    unknown_topic,
)
from . import backoff
from .backoff import Backoff, Retries
from .connection import Build
from .metadata import (
    ClusterMetadata,
    ClusterView,
    Node,
    TopicView,
    parse_bootstrap,
    read_metadata,
)
from .pool import ConnectionPool

UNKNOWN_TOPIC_GRACE_S = 2.0
"""Seconds for which a topic may be unknown before it is an error: other brokers learn of a new one a little later."""
UNSERVED_GRACE_S = 2.0
"""Seconds for which no broker may serve a partition before it counts as offline: its leader may be moving."""

_GROUP_HINTS = {
    ErrorCode.inconsistent_group_protocol: " has members of the other kind (registry or classic), or with other "
    "partition.assignment.strategy; they must leave first, or use another group id",
}
"""Hints for errors about groups, whose answers contain only a code."""

Work = TypeVar("Work")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Network:
    """The means by which a client reaches its brokers; the defaults are Kafka's values and the real functions."""

    reconnect: Backoff = backoff.RECONNECT
    retry: Backoff = backoff.RETRY
    dial: Dial = dial_plaintext
    clock: Callable[[], float] = time.monotonic


class Caller:
    """The base of `ClusterClient`; thread-safe. No call waits beyond `deadline_s`, on the network's clock, whatever its
    own time-out.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        codecs: CodecTable,
        client_id: str = "klamm",
        request_timeout_s: float = 30.0,
        deadline_s: float = math.inf,
        network: Network | None = None,
    ) -> None:
        self.network = network or Network()
        self.bootstrap = parse_bootstrap(bootstrap)
        self.request_timeout_s = request_timeout_s
        self._deadline_s = deadline_s
        self.codecs = codecs
        self.client_id = client_id
        self.software_version = declare_codecs(importlib.metadata.version("klamm"), codecs.ids())
        self.cluster = ClusterMetadata(self.network.clock)
        self._pool = ConnectionPool(client_id, self.software_version, dial=self.network.dial, clock=self.network.clock)
        self._turn = itertools.count()
        self._coordinators: dict[str, int] = {}
        self._closed = threading.Event()

    def close(self) -> None:
        """Closes all connections; calls under way in other threads end with `ClientClosedError`."""
        self._closed.set()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one request

    def call(
        self,
        api: ApiKey,
        node_id: int | None = None,
        *,
        build: Build | None = None,
        timeout_s: float | None = None,
        retry: bool = True,
        max_version: int | None = None,
        **fields: Any,
    ) -> Any:
        """Sends a request and returns the response's message.

        The request is made by `build(schema)`, or from `fields`, of which those that the negotiated version lacks are
        left out. `node_id` None: any broker. The caller handles error codes within the message. `timeout_s` covers all
        attempts together; for a broker that waits on purpose (a long poll) it must be longer than that wait.
        """
        make = build or (lambda schema: schema.build(**fields))
        retries = self._retries(timeout_s, self.network.reconnect)
        while True:
            try:
                return self._once(self._address(node_id, retries), api, make, retries, max_version)
            except ConnectionFailedError as error:
                if node_id is not None:
                    self.cluster.forget_node(node_id)
                problem = self._unreachable(node_id, error)
                if not retry:
                    raise problem from error
                retries.wait(problem)

    def _once(self, address: Address, api: ApiKey, build: Build, retries: Retries, max_version: int | None) -> Any:
        if retries.left_s <= 0:
            raise RequestTimeoutError(f"no time left to send {api.name} to {address}")
        try:
            with self._pool.lend(address, retries.left_s) as connection:
                return connection.call(api, build, retries.left_s, max_version=max_version)
        except (ConnectionFailedError, ProtocolError) as error:
            if self._closed.is_set():
                raise ClientClosedError("the client is closed") from error
            raise

    def _address(self, node_id: int | None, retries: Retries) -> Address:
        if node_id is not None:
            return self._node(node_id, retries).address
        known = [node.address for node in self.cluster.view.nodes.values()]
        candidates = list(dict.fromkeys([*known, *self.bootstrap]))
        return candidates[next(self._turn) % len(candidates)]

    def _node(self, node_id: int, retries: Retries) -> Node:
        node = self.cluster.view.nodes.get(node_id)
        if node is None:
            self._refresh((), retries)
            node = self.cluster.view.nodes.get(node_id)
        if node is None:
            raise ConnectionFailedError(f"broker {node_id} is not in the cluster now")
        return node

    def _unreachable(self, node_id: int | None, error: ConnectionFailedError) -> ConnectionFailedError:
        if node_id is not None or self.cluster.view.nodes:
            return error
        servers = ",".join(map(str, self.bootstrap))
        return type(error)(f"no broker answers at {servers} ({error}); is it running, and is bootstrap.servers right?")

    def _retries(self, timeout_s: float | None, policy: Backoff | None = None) -> Retries:
        clock = self.network.clock
        deadline = clock() + (self.request_timeout_s if timeout_s is None else timeout_s)
        return Retries(min(deadline, self._deadline_s), policy or self.network.retry, clock, self._sleep)

    def _sleep(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise ClientClosedError("the client is closed")

    # -- metadata

    def metadata(
        self, topics: Iterable[str] | None = None, *, auto_create: bool = False, timeout_s: float | None = None
    ) -> ClusterView:
        """Returns one broker's answer about these topics, or about all. A topic that does not exist has its `error`
        set; nothing is raised for it.
        """
        return self._refresh(topics, self._retries(timeout_s), auto_create)

    def _refresh(self, topics: Iterable[str] | None, retries: Retries, auto_create: bool = False) -> ClusterView:
        names = None if topics is None else sorted(set(topics))

        def build(schema: Schema) -> Any:
            wanted = (
                None
                if names is None
                else tuple(schema.part("MetadataRequestTopic", name=n, topic_id=None) for n in names)
            )
            return schema.build(
                topics=wanted,
                allow_auto_topic_creation=auto_create,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )

        view = read_metadata(self.call(ApiKey.METADATA, build=build, timeout_s=retries.left_s))
        self.cluster.update(view, all_topics=names is None)
        return view

    def topic(
        self, name: str, *, auto_create: bool = False, all_led: bool = True, timeout_s: float | None = None
    ) -> TopicView:
        """Returns the topic as the cluster has it now; with `all_led` it waits until each partition has a leader.
        Raises `UnknownTopicError`, which names the nearest topic, and `BrokerError` for other errors of the topic.
        """
        retries = self._retries(timeout_s)
        grace = self.network.clock() + UNKNOWN_TOPIC_GRACE_S
        while True:
            found = self._refresh([name], retries, auto_create).topics.get(name)
            error = found.error if found is not None else ErrorCode.unknown_topic_or_partition
            if error == ErrorCode.unknown_topic_or_partition:
                try:
                    retries.wait(UnknownTopicError(name), until=grace)
                except UnknownTopicError:
                    raise unknown_topic(name, self._refresh(None, retries).topics) from None
            elif error != ErrorCode.none and not error.retriable:
                raise BrokerError(error, f"topic {name!r}")
            elif found is not None and (_led(found) or not all_led):
                return found
            else:
                retries.wait(BrokerError(ErrorCode.leader_not_available, f"topic {name!r}: a partition has no leader"))

    def topic_ids(self, topics: Iterable[str], *, timeout_s: float | None = None) -> dict[str, UUID]:
        """Returns the ids of topics as the cluster has them now; topics that do not exist are left out, and all of them
        if the broker returns no topic ids (before Metadata 10).
        """
        found = self.metadata(topics, timeout_s=timeout_s).topics.values()
        return {topic.name: topic.topic_id for topic in found if topic.topic_id is not None}

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Returns all partitions of a topic, in order; raises `UnknownTopicError` if it does not exist."""
        return [TopicPartition(topic, number) for number in sorted(self.topic(topic).partitions)]

    # -- the leaders of partitions

    def by_leader(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[int, list[TopicPartition]]:
        """Returns node id → the partitions that it leads; requests those that are not known. Raises `UnknownTopicError`
        for a topic or partition that does not exist.
        """
        wanted = list(partitions)
        for name in sorted({tp.topic for tp in wanted if self.cluster.leader(tp) is None}):
            self.topic(name, timeout_s=timeout_s)
        grouped: dict[int, list[TopicPartition]] = {}
        for tp in wanted:
            leader = self.cluster.leader(tp)
            if leader is None:
                topic = self.cluster.view.topics.get(tp.topic)
                count = len(topic.partitions) if topic else 0
                raise UnknownTopicError(
                    f"topic {tp.topic!r} has {count} partitions; there is no partition {tp.partition}"
                )
            grouped.setdefault(leader, []).append(tp)
        return grouped

    def to_leaders(
        self,
        work: Mapping[TopicPartition, Work],
        attempt: Callable[[int, dict[TopicPartition, Work], float], Mapping[TopicPartition, Done | ErrorCode]],
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, Done]:
        """Does `work` at the leaders: `attempt(node, its share, seconds left)` returns a result or an error code for
        each partition; retriable codes are retried against the current leader, others raise `BrokerError`.
        """
        retries = self._retries(timeout_s)
        left = dict(work)
        done: dict[TopicPartition, Done] = {}
        while (problem := self._round(left, done, attempt, retries)) is not None:
            retries.wait(problem)
            self.cluster.forget({tp.topic for tp in left})
        return done

    def _round(
        self,
        left: dict[TopicPartition, Work],
        done: dict[TopicPartition, Done],
        attempt: Callable[[int, dict[TopicPartition, Work], float], Mapping[TopicPartition, Done | ErrorCode]],
        retries: Retries,
    ) -> Exception | None:
        """Makes one attempt of everything that is left; completed work moves from `left` to `done`. Returns the last
        retriable error, if any.
        """
        problem: Exception | None = None
        for node_id, partitions in self.by_leader(left, timeout_s=retries.left_s).items():
            try:
                share = {tp: left[tp] for tp in partitions}
                results = attempt(node_id, share, retries.left_s)
            except ConnectionFailedError as error:
                problem = error
                continue
            for tp, result in results.items():
                if not isinstance(result, ErrorCode):
                    done[tp] = result
                    del left[tp]
                    continue
                problem = BrokerError(result, f"partition {tp} at broker {node_id}")
                if not (result.retriable or result in STALE_LEADER_ERRORS):
                    raise problem
        return problem

    def to_live_leaders(
        self,
        work: Mapping[TopicPartition, Work],
        attempt: Callable[[int, dict[TopicPartition, Work], float], Mapping[TopicPartition, Done | ErrorCode]],
        timeout_s: float | None = None,
    ) -> tuple[dict[TopicPartition, Done], dict[TopicPartition, KlammError]]:
        """Does `work` as `to_leaders` does, but a partition that no broker serves does not keep the others from being
        done.

        Returns the results, and the error of each remaining partition. An error is tolerated for `UNSERVED_GRACE_S`.
        """
        retries = self._retries(timeout_s)
        grace = self.network.clock() + UNSERVED_GRACE_S
        done: dict[TopicPartition, Done] = {}
        while True:
            left = {tp: item for tp, item in work.items() if tp not in done}
            problems = self._live_round(left, done, attempt, retries)
            if not problems:
                return done, problems
            try:
                retries.wait(next(iter(problems.values())), until=grace)
            except ClientClosedError:
                raise
            except KlammError:
                return done, problems

    def _live_round(
        self,
        left: Mapping[TopicPartition, Work],
        done: dict[TopicPartition, Done],
        attempt: Callable[[int, dict[TopicPartition, Work], float], Mapping[TopicPartition, Done | ErrorCode]],
        retries: Retries,
    ) -> dict[TopicPartition, KlammError]:
        """Makes one attempt of everything that is `left`, by present metadata; completed work moves to `done`."""
        view = self._refresh({tp.topic for tp in left}, retries)
        shares: dict[int, dict[TopicPartition, Work]] = {}
        problems: dict[TopicPartition, KlammError] = {}
        for tp, item in left.items():
            topic = view.topics.get(tp.topic)
            found = topic.partitions.get(tp.partition) if topic else None
            if found is None:
                problems[tp] = UnknownTopicError(f"there is no partition {tp}")
            elif found.leader not in view.nodes:
                problems[tp] = BrokerError(ErrorCode.leader_not_available, f"partition {tp} has no leader")
            else:
                shares.setdefault(found.leader, {})[tp] = item
        for node_id, share in shares.items():
            try:
                results = attempt(node_id, share, retries.left_s)
            except ConnectionFailedError as error:
                problems.update(dict.fromkeys(share, error))
                continue
            for tp, result in results.items():
                if isinstance(result, ErrorCode):
                    problems[tp] = BrokerError(result, f"partition {tp} at broker {node_id}")
                else:
                    done[tp] = result
        return problems

    # -- the controller

    def call_controller(
        self, api: ApiKey, build: Build, codes: Callable[[Any], Iterable[ErrorCode]], timeout_s: float | None = None
    ) -> Any:
        """Returns the controller's response; retries while one of `codes(message)` is NOT_CONTROLLER. The caller
        handles all other codes.
        """
        retries = self._retries(timeout_s)
        while True:
            known = self._refresh((), retries)
            node_id = known.controller_id if known.controller_id in known.nodes else None
            message = self.call(api, node_id, build=build, timeout_s=retries.left_s)
            if ErrorCode.not_controller not in codes(message):
                return message
            retries.wait(BrokerError(ErrorCode.not_controller, "the controller is moving"))

    # -- the coordinators of groups

    def coordinator(self, group: str, *, timeout_s: float | None = None) -> int:
        """Returns the node id of the group's coordinator, cached until `forget_coordinator`."""
        known = self._coordinators.get(group)
        if known is not None:
            return known
        retries = self._retries(timeout_s)
        while True:
            message = self.call(
                ApiKey.FIND_COORDINATOR, timeout_s=retries.left_s, key=group, key_type=0, coordinator_keys=(group,)
            )
            found = message.coordinators[0] if hasattr(message, "coordinators") else message
            if found.error_code == ErrorCode.none:
                self.cluster.add_node(Node(found.node_id, found.host, found.port))
                self._coordinators[group] = found.node_id
                return int(found.node_id)
            problem = BrokerError(found.error_code, f"the coordinator of group {group!r}")
            if not found.error_code.retriable:
                raise problem
            retries.wait(problem)

    def forget_coordinator(self, group: str) -> None:
        self._coordinators.pop(group, None)

    def call_coordinator(
        self,
        group: str,
        api: ApiKey,
        build: Build,
        errors: Callable[[Any], Iterable[ErrorCode]],
        *,
        timeout_s: float | None = None,
        max_version: int | None = None,
    ) -> Any:
        """Returns the coordinator's answer in which no code of `errors(message)` is set. Codes that mean "another
        coordinator" or "not yet" are retried; any other raises `BrokerError`.
        """
        retries = self._retries(timeout_s)
        while True:
            try:
                node_id = self.coordinator(group, timeout_s=retries.left_s)
                message = self.call(
                    api, node_id, build=build, timeout_s=retries.left_s, retry=False, max_version=max_version
                )
            except ConnectionFailedError as error:
                problem: KlammError = error
            else:
                code = next((code for code in errors(message) if code != ErrorCode.none), None)
                if code is None:
                    return message
                problem = BrokerError(code, f"group {group!r}{_GROUP_HINTS.get(code, '')}")
                if not code.retriable:
                    raise problem
            retries.wait(problem)
            self.forget_coordinator(group)


def _led(topic: TopicView) -> bool:
    return bool(topic.partitions) and all(p.leader >= 0 for p in topic.partitions.values())
