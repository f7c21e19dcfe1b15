"""Produce: each batch is checked, appended and acknowledged unchanged; only some have to be opened (design D2).

Every batch takes one path: `_append_now` appends it to the page cache on the event loop, or `_append_later` on a
worker thread if the append may block (a batch to be opened, an append that flushes, a large one, a disk that blocks
writers). The fast path is a branch in it: a request of one batch that was read and checked in one call
(`protocol.produce.fast_path`) passes the same functions (`produce_fast`), is stored without a header object, and is
answered in one call.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic_ns
from typing import Any
from uuid import UUID

from ...errors import BrokerError, ErrorCode, KlammError, ProtocolError
from ...interfaces.security.authorizer import AclOperation, ResourceType
from ...log.errors import FencedLeaderEpochError, OutOfOrderSequenceError, RecordValidationError, WouldBlockError
from ...log.partition_log import AppendResult
from ...protocol.apis import ApiKey
from ...protocol.current_leader import PRODUCE_FROM as LEADERS_FROM
from ...protocol.headers import response_frame
from ...protocol.messages import Buffer
from ...protocol.produce.fast_path import write_fast_produce_response
from ...protocol.produce.request import FastProduceRequest, ProducePartition, ProduceRequest, as_produce_request
from ...protocol.produce.response import Produced, write_produce_response
from ...records.checked_batch import CheckedBatch
from ...records.header import HEADER_SIZE, BatchHeader
from ...records.offset_and_epoch import OffsetAndEpoch
from ..append_placement import LONG_NS
from ..delayed_reply import DelayedReply
from ..replication.replica import Replica
from ..request import ConnectionContext, Request
from ..services import Services
from .metadata import nodes

log = logging.getLogger(__name__)

MAX_RECORD_ERRORS = 10_000
"""The most records that one response names."""
_NO_BATCH = "a Produce request needs one whole record batch"
_BEHIND = "a batch of this producer that comes before this one was refused, and must be sent again first"
_EARLY = "the batches of this producer that come before this one may be on their way to an earlier leader"
_UNCOMMITTED = {
    ErrorCode.not_leader_or_follower: "this broker stopped leading before the in-sync replicas had the records",
    ErrorCode.not_enough_replicas_after_append: "fewer replicas are in sync than min.insync.replicas says",
    ErrorCode.request_timed_out: "the in-sync replicas did not have the records in the request's time",
}

Response = list[Buffer] | None
"""The encoded body; None with acks=0."""
Appended = tuple[Replica, AppendResult, int]
"""The partition, the position of the batch, and the leader epoch of the append."""


def produce_fast(
    services: Services, connection: ConnectionContext, fast: FastProduceRequest
) -> bytes | Response | DelayedReply | Coroutine[Any, Any, Response]:
    """The fast case of `produce`: returns the response frame as `bytes` if the batch was appended, else what `produce`
    returns. A `Request` is made only if an authorizer, a refusal or a worker thread needs one.
    """
    version, correlation_id, _, acks, _, topic, partition, checked = fast
    outcome: Appended | Produced | None
    if services.access.enforced and (
        refused := _write_refusal(services, Request.of_fast_path(fast, connection), topic)
    ):
        outcome = Produced(topic, partition, refused)
    else:
        outcome = _append_now(services, topic, partition, checked[0], acks, checked)
        if isinstance(outcome, tuple):
            led, result, _ = outcome
            if acks == -1 and not led.commits_alone:
                return _FastCommit(services, fast, connection, outcome)
            return write_fast_produce_response(
                version, topic, correlation_id, partition, result[0], result[2], led.log.log_start_offset,
                connection.throttle_ms,
            )  # fmt: skip
    request, outcomes = Request.of_fast_path(fast, connection), _Outcomes()
    if outcome is None:
        return _produce_rest(services, request, as_produce_request(fast), outcomes, 0)
    outcomes.add(topic, outcome)
    return _respond(services, request, acks, outcomes.all)


def produce(services: Services, request: Request) -> Response | DelayedReply | Coroutine[Any, Any, Response]:
    """The general path: any number of batches, of any kind."""
    message: ProduceRequest = request.message
    refused = _refusal(message)
    if refused is not None:
        all_refused = [Produced(p.topic, p.partition, refused) for p in message.partitions]
        return _respond(services, request, message.acks, all_refused)
    outcomes = _Outcomes()
    for index, part in enumerate(message.partitions):
        outcome = _append_if_allowed(services, request, part, message.acks)
        if outcome is None:
            return _produce_rest(services, request, message, outcomes, index)
        outcomes.add(part.topic, outcome)
    if outcomes.uncommitted and message.acks == -1:
        return _commit(services, request, message, outcomes)
    return _respond(services, request, message.acks, outcomes.all)


class _FastCommit(DelayedReply):
    """A request of one batch that waits for the in-sync replicas: the reply and the waiter in one object, without
    closures, because a cluster makes one for every small request. Its outcome is a whole frame."""

    __slots__ = (
        "_appended_ns",
        "_base_offset",
        "_connection",
        "_correlation_id",
        "_error",
        "_led",
        "_services",
        "_time_ms",
        "_topic",
        "_version",
        "deadline",
    )

    def __init__(
        self, services: Services, fast: FastProduceRequest, connection: ConnectionContext, appended: Appended
    ) -> None:
        """Keeps no reference to the part of `fast` that holds the memory of its batch."""
        led, result, epoch = appended
        self.is_ready, self.frame, self.on_ready, self.begun_ns = False, None, None, 0
        self._services, self._connection, self._led = services, connection, led
        self._version, self._correlation_id, self._topic = fast[0], fast[1], fast[5]
        self._base_offset, self._time_ms = result[0], result[2]
        self._error: ErrorCode = ErrorCode.none
        self._appended_ns = monotonic_ns()
        self.deadline = led.deadline_in(fast[4] / 1000)
        led.commit(epoch, result[1] + 1, self)

    def completed(self, error: ErrorCode) -> None:
        self._error = error
        self._services.metrics.produce_waits.add(monotonic_ns() - self._appended_ns)
        self.is_ready = True
        if self.on_ready is not None:
            self.on_ready()

    def answer(self) -> bytes:
        led, connection = self._led, self._connection
        topic, partition = self._topic, led.name.partition
        if self._error is ErrorCode.none:
            return write_fast_produce_response(
                self._version, topic, self._correlation_id, partition, self._base_offset, self._time_ms,
                led.log.log_start_offset, connection.throttle_ms,
            )  # fmt: skip
        failed = Produced(topic, partition, self._error, message=_UNCOMMITTED[self._error])
        body = _written(self._services, connection, self._version, [failed])
        return b"".join(response_frame(ApiKey.PRODUCE, self._version, self._correlation_id, body))


def _commit(services: Services, request: Request, message: ProduceRequest, outcomes: _Outcomes) -> DelayedReply:
    """Waits until all in-sync replicas have the batches, at most for the time-out of the request. The records stay
    in the log whatever the outcome is."""
    begun, missing, acks = monotonic_ns(), len(outcomes.uncommitted), message.acks

    def completed(at: int, error: ErrorCode) -> None:
        nonlocal missing
        if error is not ErrorCode.none:
            found = outcomes.all[at]
            outcomes.all[at] = Produced(found.topic, found.partition, error, message=_UNCOMMITTED[error])
        missing -= 1
        if not missing:
            services.metrics.produce_waits.add(monotonic_ns() - begun)
            reply.ready()

    reply = DelayedReply(lambda: _respond(services, request, acks, outcomes.all))
    for at, led, epoch, end in outcomes.uncommitted:
        led.when_committed(epoch, end, message.timeout_ms / 1000, partial(completed, at))
    return reply


async def _produce_rest(
    services: Services, request: Request, message: ProduceRequest, outcomes: _Outcomes, first: int
) -> Response:
    """Appends the partitions from `first` on. `_append_now` has accepted the batch of `first` and requires a worker
    thread for it."""
    for index, part in enumerate(message.partitions[first:]):
        outcome: Appended | Produced | None = None
        if index:
            outcome = _append_if_allowed(services, request, part, message.acks)
        outcomes.add(part.topic, outcome or await _append_later(services, part, message.acks))
    if outcomes.uncommitted and message.acks == -1:
        await _commit(services, request, message, outcomes).outcome()
    return _respond(services, request, message.acks, outcomes.all)


def _refusal(message: ProduceRequest) -> ErrorCode | None:
    if message.acks not in (0, 1, -1):
        return ErrorCode.invalid_required_acks
    if message.transactional_id is not None:
        return ErrorCode.transactional_id_authorization_failed
    return None


def _write_refusal(services: Services, request: Request, topic: str | bytes) -> ErrorCode | None:
    """Returns why the client may not write to the topic, if it may not."""
    name = topic if isinstance(topic, str) else services.topic_name(topic)
    if name is None:
        return ErrorCode.unknown_topic_id
    return services.access.refusal(request, AclOperation.WRITE, ResourceType.TOPIC, name)


def _append_if_allowed(
    services: Services, request: Request, part: ProducePartition, acks: int
) -> Appended | Produced | None:
    """Calls `_append_now` if the client may write to the topic."""
    if services.access.enforced and (refused := _write_refusal(services, request, part.topic)):
        return Produced(part.topic, part.partition, refused)
    begun = monotonic_ns()
    outcome = _append_now(services, part.topic, part.partition, part.batch, acks, after=part.after)
    if monotonic_ns() - begun > LONG_NS:
        services.workers.appends.took_long()
    return outcome


def _append_now(
    services: Services,
    topic: str | bytes,
    partition: int,
    batch: memoryview,
    acks: int,
    checked: CheckedBatch | None = None,
    after: OffsetAndEpoch | None = None,
) -> Appended | Produced | None:
    """Appends the batch on the event loop if this broker may accept it. The client's permission was checked before,
    and the log checks the content.

    Returns the partition and the batch's position, a refusal, or None if appending may block; nothing has then
    happened. `checked`: the batch, if it was checked while its request was read. `after`: the offset at which the
    log must end.
    """
    led = services.partitions.find(topic, partition)
    if led is None:
        return _not_led(services, topic, partition, batch)
    size = len(batch)
    if size < HEADER_SIZE:
        wrong = BrokerError(ErrorCode.invalid_record, f"{led.name}: {_NO_BATCH}")
        return _failed(services, led, topic, batch, wrong)
    if acks == -1 and not led.commits_alone and (refused := led.partition.refusal(led.name)) is not None:
        return _failed(services, led, topic, batch, refused)
    before = services.refused_batches
    if before.known and (code := before.behind(topic, partition, batch, led.log.last_sequence)) is not None:
        return Produced(topic, partition, code, message=f"{led.name}: {_BEHIND}")
    if led.is_new_leader and led.still_new_leader() and before.lacks_first(batch, led.log.last_sequence):
        early = BrokerError(ErrorCode.not_leader_or_follower, f"{led.name}: {_EARLY}")
        return _failed(services, led, topic, batch, early)
    appends = services.workers.appends
    if size > appends.on_loop_bytes and appends.needs_worker(size):
        return None
    if led.validated and not services.validation.passes(led.name, batch):
        return None
    try:
        epoch = led.leader_epoch
        result = led.log.append_as_leader(checked or batch, epoch, on_loop=True, commit=led.commits_alone, after=after)
    except WouldBlockError:
        return None
    except KlammError as error:
        return _failed(services, led, topic, batch, error)
    led.appended(size, result)
    if services.append_listeners and not result.duplicate:
        _notify(services, led, batch, result, epoch)
    return led, result, epoch


def _notify(services: Services, led: Replica, batch: memoryview, result: AppendResult, epoch: int) -> None:
    for listener in services.append_listeners:
        try:
            listener(led.name, batch, result[0], epoch, result[2])
        except Exception:  # a service that raises does not fail a Produce
            log.exception("a service failed after an append to %s", led.name)


async def _append_later(services: Services, part: ProducePartition, acks: int) -> Appended | Produced:
    """Appends, on a worker thread, a batch that `_append_now` has accepted. The partition is looked up again, since
    time has passed. The batch is committed on the event loop, since a follower may join while the thread appends;
    this happens even if the client has disconnected."""
    led = services.partitions.find(part.topic, part.partition)
    if led is None:
        return _not_led(services, part.topic, part.partition, part.batch)
    if acks == -1 and (refused := led.partition.refusal(led.name)) is not None:
        return _failed(services, led, part.topic, part.batch, refused)
    epoch, appended = led.leader_epoch, partial(led.appended, len(part.batch))
    workers = services.workers
    run = workers.validation_then if led.validated else workers.disk_then
    try:
        result = await run(appended, _open_and_append, services, led, part, epoch)
    except KlammError as error:
        return _failed(services, led, part.topic, part.batch, error)
    return led, result, epoch


def _open_and_append(services: Services, led: Replica, part: ProducePartition, leader_epoch: int) -> AppendResult:
    """Validates and appends a batch; blocking, for a worker thread."""
    if led.validated:
        services.validation.check(led.name, part.batch)
    return led.log.append_as_leader(part.batch, leader_epoch, after=part.after)


def _not_led(services: Services, topic: str | bytes, partition: int, batch: memoryview) -> Produced:
    code = services.not_led(topic, partition)
    services.refused_batches.note(topic, partition, batch, code)
    return Produced(topic, partition, code)


def _failed(services: Services, led: Replica, topic: str | bytes, batch: memoryview, error: KlammError) -> Produced:
    """Returns the answer for a partition that was refused. `topic`: as the request names it."""
    led.traffic.failed_produces += 1
    log.debug("refused a batch of %d bytes: %s", len(batch), error)
    named = error.record_errors if isinstance(error, RecordValidationError) else ()
    start = led.log.log_start_offset if named else -1
    partition = led.name.partition
    # A Produce names no leader epoch, so no client expects that its own is old: librdkafka would give the batch up.
    deposed = isinstance(error, FencedLeaderEpochError)
    code = ErrorCode.not_leader_or_follower if deposed or _is_early(services, led, topic, batch, error) else error.code
    services.refused_batches.note(topic, partition, batch, code)
    return Produced(topic, partition, code, log_start_offset=start, message=_words(error), record_errors=named)


def _words(error: KlammError) -> str:
    """Returns the error's message without the name of its code, which is a separate field of the response."""
    return error.words if isinstance(error, BrokerError) else str(error)


def _is_early(services: Services, led: Replica, topic: str | bytes, batch: memoryview, error: KlammError) -> bool:
    """Returns True if batches before this one may be in flight to an earlier leader."""
    if not isinstance(error, OutOfOrderSequenceError) or len(led.replicas) == 1:
        return False
    if led.log.has_of_latest_epoch(BatchHeader.parse(batch).producer_id):
        return False
    return services.refused_batches.is_early(topic, led.name.partition, batch, led.leader_epoch, led.log.last_sequence)


class _Outcomes:
    """The answers of the partitions of one request."""

    def __init__(self) -> None:
        self.all: list[Produced] = []
        self.uncommitted: list[tuple[int, Replica, int, int]] = []
        """For each batch that other replicas must store: its index in `all`, its partition, leader epoch and end."""
        self._room = MAX_RECORD_ERRORS

    def add(self, topic: str | bytes, outcome: Appended | Produced) -> None:
        """`topic`: as the request names it."""
        if isinstance(outcome, tuple):
            led, result, epoch = outcome
            if not led.commits_alone:
                self.uncommitted.append((len(self.all), led, epoch, result[1] + 1))
            outcome = Produced(
                topic,
                led.name.partition,
                base_offset=result.base_offset,
                log_append_time_ms=result.log_append_time_ms,
                log_start_offset=led.log.log_start_offset,
            )
        if len(outcome.record_errors) > self._room:
            outcome = replace(outcome, record_errors=outcome.record_errors[: self._room])
        self._room -= len(outcome.record_errors)
        self.all.append(outcome)


def _respond(services: Services, request: Request, acks: int, outcomes: Sequence[Produced]) -> Response:
    """Returns the response. With acks=0 there is none; an error then closes the connection, by which the client
    learns of it."""
    written = _written(services, request.connection, request.version, outcomes)
    if acks != 0:
        return written
    failed = next((o for o in outcomes if o.error is not ErrorCode.none), None)
    if failed is not None:
        what = failed.message or failed.error.name.upper()
        topic = failed.topic if isinstance(failed.topic, str) else f"topic id {UUID(bytes=failed.topic)}"
        raise ProtocolError(f"Produce with acks=0 failed for {topic}-{failed.partition}: {what}")
    return None


def _written(
    services: Services, connection: ConnectionContext, version: int, outcomes: Sequence[Produced]
) -> list[Buffer]:
    """Returns the encoded body, with the leaders of partitions that this broker does not lead; counts the errors."""
    leaders: set[int] = set()
    for outcome in outcomes:
        if outcome.error is not ErrorCode.none:
            services.metrics.count_error(ApiKey.PRODUCE, outcome.error)
        if outcome.error is ErrorCode.not_leader_or_follower and version >= LEADERS_FROM:
            outcome.leader = services.current_leader(outcome.topic, outcome.partition)
            if outcome.leader is not None:
                leaders.add(outcome.leader.leader_id)
    known = [node for node in nodes(services, connection.listener) if node[0] in leaders] if leaders else ()
    return [write_produce_response(outcomes, version, connection.throttle_ms, known)]
