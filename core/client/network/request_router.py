"""Sends one request to the right broker, and retries it until its time is up.

Rules:
- A broken connection or a time-out is retried with the reconnect back-off, a retriable error code with the retry
  back-off, both within the request's time-out; then the last error is raised. A caller whose request must not be sent
  twice passes `retry=False`.
- "Any broker" is each known one in turn, and the bootstrap servers (KIP-899). The next one is tried at once; the
  back-off follows when none of them has answered. Those that failed lately are tried last.
- A leader or coordinator that has changed or does not answer is looked up again before the next attempt, with the
  delays of a fail-over.
- A coordinator may answer some requests late on purpose. Until it answers, it is asked whether it still coordinates the
  group; if it does not answer that, other brokers are asked. If another broker coordinates the group by then, the
  request goes to that one.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar
from uuid import UUID

from ...errors import BrokerError, ErrorCode, KlammError, ProtocolError
from ...protocol.apis import ApiKey
from ...protocol.software import declare_codecs
from ...records.codecs import CodecTable
from ...records.partition import TopicPartition, counted
from ...transport.address import Address
from ...transport.interface import Dial
from ...transport.plaintext_stream import dial_plaintext
from ..errors import (
    FAIL_OVER_ERRORS,
    STALE_COORDINATOR_ERRORS,
    STALE_LEADER_ERRORS,
    ClientClosedError,
    ConnectionFailedError,
    RequestTimeoutError,
    UnknownTopicError,
    unknown_topic,
)
from . import backoff
from .backoff import Backoff, Delays, FailOver, Retries
from .blocking_connection import AnswerWatch
from .connection import Build, Decode, of_fields
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

ANY_BROKER_S = 5.0
"""Seconds after which a request that another broker can answer as well is sent to the next one."""
QUICKLY_S = 1.0
"""The same for metadata, until each broker has been asked once: when a leader's host does not answer, records wait
for this request."""
COORDINATOR_S = 2.0
"""Seconds within which a coordinator that does not answer a member must confirm that it still is one; then other
brokers are asked."""
FAILED_S = 10.0
"""Seconds for which a broker that did not answer is tried last with requests that any broker can answer."""
_QUESTIONS = {ApiKey.METADATA, ApiKey.FIND_COORDINATOR}

_GROUP_HINTS = {
    ErrorCode.inconsistent_group_protocol: " has members of the other kind (registry or classic), or with other "
    "partition.assignment.strategy; they must leave first, or use another group id",
}
"""Hints for errors about groups, whose answers contain only a code."""

Work = TypeVar("Work")
Done = TypeVar("Done")
Attempt = Callable[[int, dict[TopicPartition, Work], float], Mapping[TopicPartition, Done | ErrorCode | BrokerError]]


@dataclass(frozen=True, slots=True)
class Network:
    """The means by which a client reaches its brokers; the defaults are the real functions and Kafka's values, except
    for `fail_over`: the delays while a leader or coordinator is moving, for which Kafka uses `retry`.
    """

    reconnect: Backoff = backoff.RECONNECT
    retry: Backoff = backoff.RETRY
    fail_over: FailOver = backoff.FAIL_OVER
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
        self._failed_s: dict[Address, float] = {}
        self._coordinators: dict[str, int] = {}
        self._closed = threading.Event()

    def close(self) -> None:
        """Closes all connections; running calls in other threads end with `ClientClosedError`."""
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
        feature: str | None = None,
        watch: AnswerWatch | None = None,
        decode: Decode | None = None,
        **fields: Any,
    ) -> Any:
        """Sends a request and returns the response's message.

        The request is made by `build(schema)`, or from `fields`, of which those that the negotiated version lacks are
        left out. `node_id` None: any broker. The caller handles error codes within the message. `timeout_s` covers all
        attempts together; for a broker that waits on purpose (a long poll) it must be longer than that wait. `feature`,
        which the broker must support, `watch`, and `decode`, which reads the response in place of kio, are for requests
        to one node.
        """
        make = build or of_fields(**fields)
        retries = self._retries(timeout_s, self.network.reconnect)
        if node_id is None:
            return self._call_any(api, make, retries, max_version)
        while True:
            try:
                address = self._node(node_id, retries).address
                return self._once(address, api, make, retries.left_s, max_version, feature, watch, decode)
            except ConnectionFailedError as error:
                self.cluster.forget_node(node_id)
                if not retry:
                    raise
                retries.wait(error)

    def _call_any(self, api: ApiKey, build: Build, retries: Retries, max_version: int | None) -> Any:
        """Sends a request to the known brokers in turn until one answers."""
        patience_s = QUICKLY_S if api is ApiKey.METADATA else ANY_BROKER_S
        while True:
            candidates = self._candidates()
            quick = api in _QUESTIONS and len(candidates) > 1
            for address in candidates:
                left_s = min(retries.left_s, patience_s) if quick else retries.left_s
                try:
                    answer = self._once(address, api, build, left_s, max_version)
                except ConnectionFailedError as error:
                    self._failed_s[address] = self.network.clock()
                    problem = error
                    if retries.left_s <= 0:
                        break
                else:
                    self._failed_s.pop(address, None)
                    return answer
            problem = self._unreachable(problem)
            retries.wait(problem)
            patience_s = ANY_BROKER_S

    def _once(
        self,
        address: Address,
        api: ApiKey,
        build: Build,
        left_s: float,
        max_version: int | None,
        feature: str | None = None,
        watch: AnswerWatch | None = None,
        decode: Decode | None = None,
    ) -> Any:
        if left_s <= 0:
            raise RequestTimeoutError(f"no time left to send {api.name} to {address}")
        try:
            with self._pool.lend(address, left_s) as connection:
                return connection.call(
                    api, build, left_s, max_version=max_version, feature=feature, watch=watch, decode=decode
                )
        except (ConnectionFailedError, ProtocolError) as error:
            if self._closed.is_set():
                raise ClientClosedError("the client is closed") from error
            raise

    def _candidates(self) -> list[Address]:
        """Returns the brokers in the order in which requests that any of them can answer are sent to them."""
        known = [node.address for node in self.cluster.view.nodes.values()]
        found = list(dict.fromkeys([*known, *self.bootstrap]))
        first = next(self._turn) % len(found)
        since = self.network.clock() - FAILED_S
        return sorted(found[first:] + found[:first], key=lambda address: self._failed_s.get(address, -math.inf) > since)

    def avoid(self, node_id: int) -> None:
        """Tries this broker last for a while with requests that any broker can answer, since it does not answer
        another request."""
        node = self.cluster.view.nodes.get(node_id)
        if node is not None:
            self._failed_s[node.address] = self.network.clock()

    def _node(self, node_id: int, retries: Retries) -> Node:
        node = self.cluster.view.nodes.get(node_id)
        if node is None:
            self._refresh((), retries)
            node = self.cluster.view.nodes.get(node_id)
        if node is None:
            raise ConnectionFailedError(f"broker {node_id} is not in the cluster now")
        return node

    def _unreachable(self, error: ConnectionFailedError) -> ConnectionFailedError:
        if self.cluster.view.nodes:
            return error
        servers = ",".join(map(str, self.bootstrap))
        return type(error)(f"no broker answers at {servers} ({error}); is it running, and is the address right?")

    def _retries(self, timeout_s: float | None, policy: Delays | None = None) -> Retries:
        clock = self.network.clock
        deadline = clock() + (self.request_timeout_s if timeout_s is None else timeout_s)
        return Retries(min(deadline, self._deadline_s), policy or self.network.retry, clock, self._sleep)

    def _sleep(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise ClientClosedError("the client is closed")

    # -- metadata

    def metadata(
        self,
        topics: Iterable[str] | None = None,
        *,
        auto_create: bool = False,
        node_id: int | None = None,
        timeout_s: float | None = None,
    ) -> ClusterView:
        """Returns one broker's answer about these topics, or about all; `node_id` None: any broker. A topic that does
        not exist has its `error` set; nothing is raised for it.
        """
        return self._refresh(topics, self._retries(timeout_s), auto_create, node_id)

    def _refresh(
        self,
        topics: Iterable[str] | None,
        retries: Retries,
        auto_create: bool = False,
        node_id: int | None = None,
    ) -> ClusterView:
        build = metadata_request(topics, auto_create)
        view = read_metadata(self.call(ApiKey.METADATA, node_id, build=build, timeout_s=retries.left_s))
        self.cluster.update(view, all_topics=topics is None)
        return view

    def topic(
        self, name: str, *, auto_create: bool = False, all_led: bool = True, timeout_s: float | None = None
    ) -> TopicView:
        """Returns the topic as the cluster has it now; with `all_led` it waits until each partition has a leader.
        Raises `UnknownTopicError`, which names the nearest topic, and `BrokerError` for other errors of the topic.
        """
        retries = self._retries(timeout_s)
        failing_over = self._retries(timeout_s, self.network.fail_over)
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
            elif found is not None and found.partitions and (_led(found) or not all_led):
                return found
            else:
                problem = BrokerError(ErrorCode.leader_not_available, f"topic {name!r}: a partition has no leader")
                failing_over.wait(problem)

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
        """Returns the partitions by the node id of their leader; requests leaders that are not known. Raises
        `UnknownTopicError` for a topic or partition that does not exist."""
        wanted = list(partitions)
        retries = self._retries(timeout_s, self.network.fail_over)
        while missing := [tp for tp in wanted if self.cluster.leader(tp) is None]:
            for name in sorted({tp.topic for tp in missing}):
                found = self.topic(name, all_led=False, timeout_s=retries.left_s)
                absent = [tp for tp in missing if tp.topic == name and tp.partition not in found.partitions]
                if absent:
                    raise UnknownTopicError(
                        f"topic {name!r} has {counted(len(found.partitions), 'partition')}; "
                        f"there is no partition {absent[0].partition}"
                    )
            unled = [tp for tp in missing if self.cluster.leader(tp) is None]
            if unled:
                retries.wait(BrokerError(ErrorCode.leader_not_available, f"partition {unled[0]} has no leader"))
        grouped: dict[int, list[TopicPartition]] = {}
        for tp in wanted:
            leader = self.cluster.leader(tp)
            if leader is not None:  # otherwise another thread has just found it to be wrong
                grouped.setdefault(leader, []).append(tp)
        return grouped

    def to_leaders(
        self, work: Mapping[TopicPartition, Work], attempt: Attempt[Work, Done], timeout_s: float | None = None
    ) -> dict[TopicPartition, Done]:
        """Carries out `work` at the leaders: `attempt(node, its part of the work, seconds left)` returns a result or
        an error code for each partition; retriable codes are retried against the current leader, others raise
        `BrokerError`."""
        retries = self._retries(timeout_s)
        failing_over = self._retries(timeout_s, self.network.fail_over)
        done: dict[TopicPartition, Done] = {}
        while left := {tp: item for tp, item in work.items() if tp not in done}:
            self.by_leader(left, timeout_s=retries.left_s)
            problems = self._ask_leaders(left, done, attempt, lambda: retries.left_s)
            for problem in problems.values():
                if not (problem.code.retriable or problem.code in STALE_LEADER_ERRORS):
                    raise problem
            if len(done) < len(work):
                moving = BrokerError(ErrorCode.leader_not_available, "a leader is moving")
                problem = next(reversed(problems.values()), moving)
                (failing_over if problem.code in FAIL_OVER_ERRORS else retries).wait(problem)
        return done

    def try_leaders(
        self,
        work: Mapping[TopicPartition, Work],
        attempt: Attempt[Work, Done],
        timeout_s: float | None = None,
        *,
        grace_s: float = 0.0,
    ) -> tuple[dict[TopicPartition, Done], dict[TopicPartition, KlammError]]:
        """Carries out `work` as `to_leaders` does, but a partition that no broker serves does not prevent the work on
        the others. Returns the results, and the error of each remaining partition.

        Any error is retried for `grace_s` seconds, by new metadata each time; 0 asks the leaders that are known now,
        once, and each broker may take `timeout_s`.
        """
        retries = self._retries(timeout_s, self.network.fail_over)
        until = self.network.clock() + grace_s
        done: dict[TopicPartition, Done] = {}
        if not grace_s:
            limit_s = self.request_timeout_s if timeout_s is None else timeout_s
            return done, self._ask_leaders(work, done, attempt, lambda: limit_s)
        while True:
            left = {tp: item for tp, item in work.items() if tp not in done}
            self._refresh({tp.topic for tp in left}, retries)
            problems = self._ask_leaders(left, done, attempt, lambda: retries.left_s)
            if not problems:
                return done, problems
            try:
                retries.wait(next(iter(problems.values())), until=until)
            except ClientClosedError:
                raise
            except KlammError:
                return done, problems

    def _ask_leaders(
        self,
        work: Mapping[TopicPartition, Work],
        done: dict[TopicPartition, Done],
        attempt: Attempt[Work, Done],
        left_s: Callable[[], float],
    ) -> dict[TopicPartition, KlammError]:
        """Makes one attempt of `work` at the leaders that are known; results come into `done`. Returns the errors of
        the others. The leaders that were found to be wrong are forgotten.
        """
        view = self.cluster.view
        shares: dict[int, dict[TopicPartition, Work]] = {}
        problems: dict[TopicPartition, KlammError] = {}
        for tp, item in work.items():
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
                results = attempt(node_id, share, left_s())
            except ConnectionFailedError as error:
                problems.update(dict.fromkeys(share, error))
                continue
            for tp, result in results.items():
                if isinstance(result, ErrorCode):
                    result = BrokerError(result, f"partition {tp} at broker {node_id}")
                if isinstance(result, BrokerError):
                    problems[tp] = result
                    if result.code in STALE_LEADER_ERRORS:
                        self.cluster.forget_leaders([tp], node_id)
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
            message = self.call(api, self._controller(retries), build=build, timeout_s=retries.left_s)
            if ErrorCode.not_controller not in codes(message):
                return message
            retries.wait(BrokerError(ErrorCode.not_controller, "the controller is moving"))

    def controller(self, *, timeout_s: float | None = None) -> int | None:
        """Returns the controller's node id; None if the broker that was asked knows none. The controller is the
        first to know the topics and configs that it has changed; other brokers learn them a moment later."""
        return self._controller(self._retries(timeout_s))

    def _controller(self, retries: Retries) -> int | None:
        known = self._refresh((), retries)
        return known.controller_id if known.controller_id in known.nodes else None

    # -- the coordinators of groups

    def coordinator(self, group: str, *, timeout_s: float | None = None) -> int:
        """Returns the node id of the group's coordinator, cached until `forget_coordinator`."""
        known = self._coordinators.get(group)
        if known is not None:
            return known
        retries = self._retries(timeout_s, self.network.fail_over)
        while True:
            found = self._find_coordinator(group, retries.left_s)
            if found.error_code == ErrorCode.none:
                self.cluster.add_node(Node(found.node_id, found.host, found.port))
                self._coordinators[group] = found.node_id
                return int(found.node_id)
            problem = BrokerError(found.error_code, f"the coordinator of group {group!r}")
            if not found.error_code.retriable:
                raise problem
            retries.wait(problem)

    def _find_coordinator(self, group: str, timeout_s: float, node_id: int | None = None) -> Any:
        """Returns the answer of this broker, or of any broker if `node_id` is None."""
        message = self.call(
            ApiKey.FIND_COORDINATOR,
            node_id,
            timeout_s=timeout_s,
            retry=False,
            key=group,
            key_type=0,
            coordinator_keys=(group,),
        )
        return message.coordinators[0] if hasattr(message, "coordinators") else message

    def forget_coordinator(self, group: str) -> None:
        self._coordinators.pop(group, None)

    def _check_coordinator(self, group: str, node_id: int) -> None:
        """Raises `ConnectionFailedError` if the broker no longer coordinates the group. The broker itself is asked,
        and others only if it does not answer: a broker that is cut off from the cluster may name an earlier
        coordinator, which has an earlier generation and earlier offsets."""
        node = self.cluster.view.nodes.get(node_id)
        named = self._named_coordinator(group, COORDINATOR_S, node_id)
        if named is None:
            if node is not None:  # it may be forgotten by now
                self._failed_s[node.address] = self.network.clock()
            named = self._named_coordinator(group, ANY_BROKER_S)
        if named not in (None, node_id):
            raise ConnectionFailedError(f"no answer from broker {node_id}, which coordinates group {group!r} no longer")

    def _named_coordinator(self, group: str, timeout_s: float, node_id: int | None = None) -> int | None:
        """Returns the coordinator that this broker, or any broker, names; None if it does not answer, or does not
        know."""
        try:
            found = self._find_coordinator(group, timeout_s, node_id)
        except ClientClosedError:
            raise
        except KlammError:
            return None
        return int(found.node_id) if found.error_code == ErrorCode.none else None

    def call_coordinator(
        self,
        group: str,
        api: ApiKey,
        build: Build,
        errors: Callable[[Any], Iterable[ErrorCode]],
        *,
        timeout_s: float | None = None,
        max_version: int | None = None,
        check_s: float | None = None,
    ) -> Any:
        """Returns the coordinator's answer in which no code of `errors(message)` is set. Codes that mean "another
        coordinator" or "not yet" are retried, with the delays of a fail-over; any other raises `BrokerError`.
        `check_s`, for an answer that may be late on purpose: the interval in seconds at which the broker is asked
        whether it still coordinates the group; if it does not answer, others are asked."""
        retries = self._retries(timeout_s)
        failing_over = self._retries(timeout_s, self.network.fail_over)
        while True:
            try:
                node_id = self.coordinator(group, timeout_s=retries.left_s)
                check = partial(self._check_coordinator, group, node_id)
                watch = None if check_s is None else AnswerWatch(check_s, check)
                message = self.call(
                    api,
                    node_id,
                    build=build,
                    timeout_s=retries.left_s,
                    retry=False,
                    max_version=max_version,
                    watch=watch,
                )
            except ConnectionFailedError as error:
                self.forget_coordinator(group)
                failing_over.wait(error)
                continue
            code = next((code for code in errors(message) if code != ErrorCode.none), None)
            if code is None:
                return message
            problem = BrokerError(code, f"group {group!r}{_GROUP_HINTS.get(code, '')}")
            if not code.retriable:
                raise problem
            if code in STALE_COORDINATOR_ERRORS:
                self.forget_coordinator(group)
            moving = code in STALE_COORDINATOR_ERRORS or code == ErrorCode.coordinator_load_in_progress
            (failing_over if moving else retries).wait(problem)


def metadata_request(topics: Iterable[str] | None, auto_create: bool = False) -> Build:
    """Returns a request for the metadata of these topics, or of all."""
    return of_fields(
        topics=None if topics is None else [{"name": name, "topic_id": None} for name in sorted(set(topics))],
        allow_auto_topic_creation=auto_create,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def _led(topic: TopicView) -> bool:
    return bool(topic.partitions) and all(p.leader >= 0 for p in topic.partitions.values())
