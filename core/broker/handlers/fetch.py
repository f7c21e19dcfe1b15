"""Fetch: returns whole batches from each partition, or waits until there is enough (KIP-74, KIP-227, KIP-320).

From version 7 on a consumer may have a session (`replication.fetch_sessions`): its requests carry what has changed, and
so do the answers. At least one batch is returned however small the limits are. Nothing polls: a parked fetch is woken
by the event that it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from typing import Any, NamedTuple, TypeAlias

from ...errors import ErrorCode, KlammError
from ...interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ...log.partition_log import LogRead, ReadIsolation
from ...log.segment.file_operations import MOST_CACHED
from ...protocol.apis import ApiKey
from ...protocol.current_leader import FETCH_FROM as LEADERS_FROM
from ...protocol.fetch import Fetched, write_fetch_response
from ...protocol.messages import Buffer
from ...protocol.replica_fetch import ReplicaFetchRequest, as_replica_fetch
from ...records.header import iter_headers
from ...records.partition import TopicPartition
from ...replication.fetch_sessions import FINAL_EPOCH, NO_SESSION, FetchContext, FetchSessionRequest
from ..replication.follower_fetches import write_answers
from ..replication.parked_fetch import ParkedFetch
from ..replication.replica import Replica, monotonic_ms
from ..request import FIRST_ALLOWANCE, ConnectionContext, Request
from ..services import Services
from .metadata import nodes

_EPOCHS_FROM = 12
"""The first version that names the epoch of the record before the offset (KIP-595)."""
_RACKS_FROM = 11
"""The first version that names the consumer's rack: followers answer too (KIP-392)."""
_TOPIC_IDS_FROM = 13
FOLLOWERS_FROM = 15
"""The first version that names the follower's broker epoch (KIP-903)."""
_SESSIONS_FROM = 7
_ZERO_ID = bytes(16)
_LIGHT = 250
"""Longer, in bytes, than the name of any existing topic."""
_LED_ELSEWHERE = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)


_Key: TypeAlias = tuple[str | bytes, int]
"""Topic, as the request names it, and partition."""


def session_weight(partition: _Key) -> int:
    """Returns a partition's weight in the bound of all sessions: a topic name in a request may have 32 KB."""
    return 1 + len(partition[0]) // _LIGHT


class _Asked(NamedTuple):
    """The fetch of one partition, as a request states it; a session stores it."""

    offset: int
    max_bytes: int
    leader_epoch: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One partition of the request. `asked`: the topic as the request names it, by name or by the 16 bytes of its id.
    `refused`: why the client may not read it."""

    asked: str | bytes
    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int
    last_epoch: int
    refused: ErrorCode | None = None


_Context: TypeAlias = FetchContext[_Key, _Asked]


@dataclass(slots=True)
class _Poll:
    """The result of reading all partitions once: their answers, and whether the response must be sent now."""

    answers: list[Fetched]
    size: int = 0
    at_once: bool = False

    def drop(self) -> None:
        """Drops the records, so that a waiting request holds none."""
        self.answers.clear()


def _fetch_of_follower(
    services: Services, request: Request, message: ReplicaFetchRequest
) -> list[Buffer] | Coroutine[Any, Any, list[Buffer]]:
    if services.access.enforced:
        refused = services.access.refusal(request, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        if refused is not None:
            return write_answers(request, refused, 0, {})
    return services.follower_fetches.fetch(request, message)


def fetch(services: Services, request: Request) -> list[Buffer] | Coroutine[Any, Any, list[Buffer]]:
    message = request.message
    if isinstance(message, ReplicaFetchRequest):
        return _fetch_of_follower(services, request, message)
    if request.version >= FOLLOWERS_FROM and message.replica_state.replica_id >= 0:
        return _fetch_of_follower(services, request, as_replica_fetch(message))
    context: _Context = services.fetch_sessions.context(
        _session_request(request), from_follower=False, now_ms=monotonic_ms()
    )
    wanted = _wanted(services, request, context)
    if context.error is not ErrorCode.none or not wanted:  # no record can arrive that is worth a wait
        return _respond(services, request, context, wanted, _Poll([]))
    poll = _read_cached(services, request, wanted)
    max_wait_s = message.max_wait.total_seconds()
    if poll is not None and (poll.at_once or poll.size >= message.min_bytes or max_wait_s <= 0):
        return _respond(services, request, context, wanted, poll)
    return _wait(services, request, context, wanted, poll, max_wait_s)


def _session_request(request: Request) -> FetchSessionRequest[_Key, _Asked]:
    message = request.message
    by_id, has_epochs = request.version >= _TOPIC_IDS_FROM, request.version >= 9
    partitions: dict[_Key, _Asked] = {}
    for topic in message.topics:
        name = _named(topic, by_id)
        for p in topic.partitions:
            epoch = p.current_leader_epoch if has_epochs else -1
            last = p.last_fetched_epoch if request.version >= _EPOCHS_FROM else -1
            partitions[name, p.partition] = _Asked(p.fetch_offset, p.partition_max_bytes, epoch, last)
    if request.version < _SESSIONS_FROM:
        return FetchSessionRequest(NO_SESSION, FINAL_EPOCH, partitions, (), by_id)
    forgotten = tuple(
        (name, number)
        for topic in message.forgotten_topics_data
        for name in (_named(topic, by_id),)
        for number in topic.partitions
    )
    return FetchSessionRequest(message.session_id, message.session_epoch, partitions, forgotten, by_id)


def _named(topic: Any, by_id: bool) -> str | bytes:
    if not by_id:
        name: str = topic.topic
        return name
    return _ZERO_ID if topic.topic_id is None else bytes(topic.topic_id.bytes)


def _wanted(services: Services, request: Request, context: _Context) -> list[_Wanted]:
    """Returns the partitions to read. Topic names and permissions are looked up each time, since a session outlives
    both."""
    topics: dict[str | bytes, tuple[str, ErrorCode | None]] = {}
    wanted = []
    for (asked, number), (offset, max_bytes, leader_epoch, last_epoch) in context:
        found = topics.get(asked)
        if found is None:
            found = topics[asked] = _topic(services, request, asked)
        wanted.append(_Wanted(asked, found[0], number, offset, max_bytes, leader_epoch, last_epoch, found[1]))
    return wanted


def _topic(services: Services, request: Request, asked: str | bytes) -> tuple[str, ErrorCode | None]:
    """Returns the topic's name, and the error if the client may not read it. An unknown id may belong to a topic
    that this broker has not read yet."""
    access = services.access
    name = asked if isinstance(asked, str) else services.topic_name(asked)
    if name is None:
        return "", ErrorCode.unknown_topic_id
    return name, access.refusal(request, AclOperation.READ, ResourceType.TOPIC, name) if access.enforced else None


async def _wait(
    services: Services,
    request: Request,
    context: _Context,
    wanted: list[_Wanted],
    poll: _Poll | None,
    max_wait_s: float,
) -> list[Buffer]:
    """Parks the request, reads again when woken, and answers at the end of the wait with the records that are
    available."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max_wait_s
    poll = poll or await _read_blocking(services, request, wanted)
    connection = request.connection
    while not (poll.at_once or poll.size >= request.message.min_bytes or services.partitions.closing):
        if connection.ended:
            break
        left = deadline - loop.time()
        if left <= 0:
            break
        parked = ParkedFetch(request.message.min_bytes - poll.size)
        poll.drop()
        services.memory.give_back(connection)
        found = [services.partitions.replica(TopicPartition(w.topic, w.partition)) for w in wanted]
        places = [led for led in found if led is not None]
        if len(places) == len(found):  # otherwise one was deleted since it was read: its error is answered at once
            await _park(services, parked, places, connection, left)
        poll = _read_cached(services, request, wanted) or await _read_blocking(services, request, wanted)
    return _respond(services, request, context, wanted, poll)


async def _park(
    services: Services, parked: ParkedFetch, places: list[Replica], connection: ConnectionContext, wait_s: float
) -> None:
    """Waits until something happens to one of the partitions or to the connection, `wait_s` at most."""
    for led in places:
        led.park(parked)
    connection.on_end = parked.wake
    try:
        start = monotonic_ns()
        await parked.wait(wait_s)
        services.metrics.waits[ApiKey.FETCH].add(monotonic_ns() - start)
    finally:
        connection.on_end = None
        for led in places:
            led.unpark(parked)


def _read_cached(services: Services, request: Request, wanted: list[_Wanted]) -> _Poll | None:
    """Reads all partitions on the event loop; returns None if a worker thread must do it."""
    connection = request.connection
    if _reads_much(request):
        return None
    poll = _read_all(
        services,
        request,
        wanted,
        cached_only=True,
        most=min(services.memory.response_limit(), connection.allowance),
    )
    if poll is not None:
        _learn(connection, poll.size)
    return poll


async def _read_blocking(services: Services, request: Request, wanted: list[_Wanted]) -> _Poll:
    """Reads all partitions on a worker thread, since some data is not in the page cache, or there is much of it.
    Small reads do not wait for large ones."""
    connection = request.connection
    most = services.memory.take(connection)
    if _reads_much(request):
        poll = await services.workers.bulk(_read_all, services, request, wanted, most=most)
    else:
        poll = await services.workers.disk(_read_all, services, request, wanted, most=min(most, connection.allowance))
    assert poll is not None
    _learn(connection, poll.size)
    return poll


def _reads_much(request: Request) -> bool:
    allowance = request.connection.allowance
    return allowance > MOST_CACHED or request.message.min_bytes > allowance


def _learn(connection: ConnectionContext, size: int) -> None:
    """Adapts the connection's allowance, which grows while answers use it up, as TCP's window does, so that clients
    that read little are answered at once though hundreds request megabytes."""
    if size > connection.allowance // 2:
        connection.allowance = min(connection.allowance * 2, 2 * MOST_CACHED)
    elif size < connection.allowance // 4:
        connection.allowance = max(connection.allowance // 2, FIRST_ALLOWANCE)


def _read_all(
    services: Services, request: Request, wanted: list[_Wanted], *, cached_only: bool = False, most: int
) -> _Poll | None:
    """Reads all partitions once, at most `most` bytes; with `cached_only`, returns None as soon as one would have to
    wait for the disk."""
    message = request.message
    isolation = ReadIsolation.of(message.isolation_level)
    most = min(message.max_bytes, services.config.fetch_max_bytes, most)
    poll = _Poll([])
    by_rack = request.version >= _RACKS_FROM
    find = services.readable if by_rack else services.led
    rack = message.rack_id if by_rack and _selects_by_rack(services.config.replica_selector_class) else ""
    for want in wanted:
        led = want.refused or find(want.topic, want.partition, want.leader_epoch)
        if isinstance(led, Replica) and isinstance(want.asked, bytes) and want.asked != led.key[0]:
            led = ErrorCode.unknown_topic_id  # created again since the name was looked up
        if not isinstance(led, Replica):
            answer = Fetched(want.asked, want.partition, led)
        elif rack and (nearer := _replica_in(services, led, rack, want.offset)) != -1:
            answer = _bounds(want, led)
            answer.preferred_read_replica = nearer
            poll.at_once = True  # answered at once
        elif want.last_epoch >= 0 and (parted := _diverging(want, led)) is not None:
            answer = parted
            poll.at_once = True
        else:
            limit = min(want.max_bytes, most - poll.size)
            if limit <= 0 and poll.size:
                answer = _bounds(want, led)
            else:
                read = led.log.read_cached if cached_only else led.log.read
                call = partial(read, want.offset, max(limit, 0), isolation=isolation, min_one=poll.size == 0)
                found = _read(services, request, want, led, call)
                if found is None:
                    return None
                answer = found
        poll.answers.append(answer)
        poll.size += len(answer.records)
        if answer.error is not ErrorCode.none and not _is_for_leader(led, answer):
            poll.at_once = True  # other than what a leader decides, who may yet have to learn where this log starts
    return poll


def _diverging(want: _Wanted, led: Replica) -> Fetched | None:
    """Returns the answer if the leader's log is not that of the client up to its offset, as Kafka's
    `Partition.readRecords` does; None if the client may read on. An epoch that the log does not know is
    OFFSET_OUT_OF_RANGE. A follower may be behind, and does not judge."""
    log = led.log
    if led.leader is None or (want.last_epoch == log.leader_epoch and want.offset <= log.log_end_offset):
        return None
    epoch, end = log.end_offset_for_epoch(want.last_epoch)
    if epoch == want.last_epoch and want.offset <= end:
        return None
    answer = _bounds(want, led)
    if epoch < 0 or want.offset < log.log_start_offset:
        answer.error = ErrorCode.offset_out_of_range
    else:
        answer.diverging_epoch = (epoch, end)
    return answer


def _selects_by_rack(selector: str | None) -> bool:
    return selector is not None and selector.endswith("RackAwareReplicaSelector")


def _replica_in(services: Services, led: Replica, rack: str, offset: int) -> int:
    """Returns the in-sync follower in the consumer's rack with the largest log end, among those whose log contains
    `offset` or ends there; -1 if there is none, or the leader itself is in that rack (Kafka's
    `RackAwareReplicaSelector`).

    The log start counts as well as the end: retention runs on each replica by itself, so a follower may have deleted
    what the leader still has.
    """
    brokers, state, leader = services.image.brokers, led.partition.state, led.leader
    if leader is None or state is None or services.config.broker_rack == rack:
        return -1
    near = []
    for member in state.isr:
        if member != services.broker_id and member in brokers and brokers[member].rack == rack:
            start, end = leader.follower_bounds(member)
            if 0 <= start <= offset <= end:
                near.append((end, -member))
    return -max(near)[1] if near else -1


def _bounds(want: _Wanted, led: Replica) -> Fetched:
    return Fetched(
        want.asked,
        want.partition,
        high_watermark=led.log.high_watermark,
        last_stable_offset=led.log.last_stable_offset,
        log_start_offset=led.log.log_start_offset,
    )


def _read(
    services: Services, request: Request, want: _Wanted, led: Replica, read: Callable[[], LogRead | None]
) -> Fetched | None:
    """Reads one partition; returns None if the read would have to wait for the disk."""
    answer = _bounds(want, led)
    try:
        found = read()
        if found is None:
            return None
        answer.records, answer.aborted = found.data, found.aborted
        answer.last_stable_offset = found.last_stable_offset
        if answer.records and services.third_party_codecs:
            _hide_undeclared(answer, services.third_party_codecs - request.connection.codecs)
    except KlammError as error:
        answer.error = error.code
        if _is_for_leader(led, answer):
            answer.high_watermark = answer.last_stable_offset = -1
    return answer


def _is_for_leader(led: Replica | ErrorCode, answer: Fetched) -> bool:
    """Returns True if a follower does not have the offset, so that the leader decides whether it is out of range
    (KIP-392).

    As in Kafka, the answer has no high watermark: librdkafka asks the leader only if the offset is above that, and
    otherwise resets its position. NOT_LEADER_OR_FOLLOWER would not do: librdkafka would then also read the metadata,
    and if these are answered while the leader sends it to this follower again, it would stay here for ever.
    """
    return isinstance(led, Replica) and led.leader is None and answer.error is ErrorCode.offset_out_of_range


def _hide_undeclared(answer: Fetched, undeclared: frozenset[int]) -> None:
    """Removes the first batch that the client has not declared to be able to read, and all batches after it; sets an
    error if no batch remains."""
    for position, header in iter_headers(answer.records):
        if header.codec_id in undeclared:
            if position == 0:
                answer.error = ErrorCode.unsupported_compression_type
            answer.records = answer.records[:position]
            return


def _respond(
    services: Services, request: Request, context: _Context, wanted: list[_Wanted], poll: _Poll
) -> list[Buffer]:
    """Returns the encoded response; in a session only what has changed. `poll` has an answer for each of `wanted`,
    or none at all."""
    _count(services, wanted, poll.answers)
    answers = {(answer.topic, answer.partition): answer for answer in poll.answers}
    error, session_id, sent = context.response(answers)
    if error is not ErrorCode.none:
        services.metrics.count_error(ApiKey.FETCH, error)
    leaders: set[int] = set()
    if request.version >= LEADERS_FROM:
        for answer in sent.values():
            if answer.error in _LED_ELSEWHERE:
                answer.leader = services.current_leader(answer.topic, answer.partition)
                if answer.leader is not None:
                    leaders.add(answer.leader.leader_id)
    return write_fetch_response(
        list(sent.values()),
        request.version,
        isolation=request.message.isolation_level,
        error=error,
        throttle_ms=request.throttle_ms,
        session_id=session_id,
        nodes=[node for node in nodes(services, request.listener) if node[0] in leaders] if leaders else (),
    )


def _count(services: Services, wanted: list[_Wanted], answers: list[Fetched]) -> None:
    """Counts the answers to consumers, including those that a session omits because nothing has changed."""
    metrics = services.metrics
    for want, answer in zip(wanted, answers, strict=False):
        traffic = metrics.topics.get(want.topic)
        if traffic is not None:
            traffic.fetches += 1
            traffic.bytes_out += len(answer.records)
        if answer.error is not ErrorCode.none:
            metrics.count_error(ApiKey.FETCH, answer.error)
            if traffic is not None:
                traffic.failed_fetches += 1
