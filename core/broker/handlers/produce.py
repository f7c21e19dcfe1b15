"""Produce: each batch is checked, appended and acknowledged unchanged; only some have to be opened (design D2).

Every batch takes one path: `_append_now` appends it to the page cache on the event loop, or `_append_later` on a worker
thread if the append may block (a batch to be opened, an append that flushes, a large one). The fast path is a branch in
it: a request of one batch that was read and checked in one call (`protocol.produce.fast_path`) passes the same
functions (`produce_fast`), is stored without a header object, and is answered in one call.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from ...errors import BrokerError, ErrorCode, KlammError, ProtocolError
from ...interfaces.security.authorizer import AclOperation, ResourceType
from ...log.errors import RecordValidationError, WouldBlockError
from ...log.partition_log import AppendResult
from ...protocol.apis import ApiKey
from ...protocol.messages import Buffer
from ...protocol.produce.fast_path import write_fast_produce_response
from ...protocol.produce.request import FastProduceRequest, ProducePartition, ProduceRequest, as_produce_request
from ...protocol.produce.response import Produced, write_produce_response
from ...records.checked_batch import CheckedBatch
from ...records.header import HEADER_SIZE
from ..network.context import ConnectionContext, Request
from ..partitions import LedPartition
from ..services import Services

log = logging.getLogger(__name__)

ON_LOOP_BYTES = 512 * 1024
"""A larger batch is appended on a worker thread."""
MAX_RECORD_ERRORS = 10_000
"""The most records that one response names."""
_NO_BATCH = "a Produce request needs one whole record batch"

Response = list[Buffer] | None
"""The encoded body; None with acks=0."""
Appended = tuple[LedPartition, AppendResult]


def produce_fast(
    services: Services, connection: ConnectionContext, fast: FastProduceRequest
) -> bytes | Response | Coroutine[Any, Any, Response]:
    """The fast case of `produce`: returns the response frame as `bytes` if the batch was appended, else what `produce`
    returns. A `Request` is made only if an authorizer, a refusal or a worker thread needs one.
    """
    version, correlation_id, _, acks, _, topic, partition, checked = fast
    outcome: Appended | Produced | None
    if services.access.enforced and not _may_write(services, Request.of_fast_path(fast, connection), topic):
        outcome = Produced(topic, partition, ErrorCode.topic_authorization_failed)
    else:
        outcome = _append_now(services, topic, partition, checked[0], acks, checked)
        if isinstance(outcome, tuple):
            led, result = outcome
            return write_fast_produce_response(
                version, topic, correlation_id, partition, result[0], result[2], led.log.log_start_offset,
                connection.throttle_ms,
            )  # fmt: skip
    request, outcomes = Request.of_fast_path(fast, connection), _Outcomes()
    if outcome is None:
        return _produce_rest(services, request, as_produce_request(fast), outcomes, 0)
    outcomes.add(outcome)
    return _respond(services, request, acks, outcomes.all)


def produce(services: Services, request: Request) -> Response | Coroutine[Any, Any, Response]:
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
        outcomes.add(outcome)
    return _respond(services, request, message.acks, outcomes.all)


async def _produce_rest(
    services: Services, request: Request, message: ProduceRequest, outcomes: _Outcomes, first: int
) -> Response:
    """Appends the partitions from `first` on, whose batch `_append_now` has accepted and left to a worker thread."""
    for index, part in enumerate(message.partitions[first:]):
        outcome: Appended | Produced | None = None
        if index:
            outcome = _append_if_allowed(services, request, part, message.acks)
        outcomes.add(outcome or await _append_later(services, part))
    return _respond(services, request, message.acks, outcomes.all)


def _refusal(message: ProduceRequest) -> ErrorCode | None:
    if message.acks not in (0, 1, -1):
        return ErrorCode.invalid_required_acks
    if message.transactional_id is not None:
        return ErrorCode.transactional_id_authorization_failed
    return None


def _may_write(services: Services, request: Request, topic: str) -> bool:
    return services.access.allows(request, AclOperation.WRITE, ResourceType.TOPIC, topic)


def _append_if_allowed(
    services: Services, request: Request, part: ProducePartition, acks: int
) -> Appended | Produced | None:
    """Calls `_append_now` if the client may write to the topic."""
    if services.access.enforced and not _may_write(services, request, part.topic):
        return Produced(part.topic, part.partition, ErrorCode.topic_authorization_failed)
    return _append_now(services, part.topic, part.partition, part.batch, acks)


def _append_now(
    services: Services, topic: str, partition: int, batch: memoryview, acks: int, checked: CheckedBatch | None = None
) -> Appended | Produced | None:
    """Appends the batch on the event loop if this broker may accept it; the client's permission was checked before, and
    the log checks the content.

    Returns the partition and the batch's position, a refusal, or None if appending may block; nothing has then
    happened. `checked`: the batch, if it was checked while its request was read.
    """
    led = services.partitions.find(topic, partition)
    if led is None:
        return Produced(topic, partition, services.not_led(topic, partition))
    size = len(batch)
    if size < HEADER_SIZE:
        return _failed(led, batch, BrokerError(ErrorCode.invalid_record, f"{led.name}: {_NO_BATCH}"))
    if acks == -1 and led.in_sync < led.log.config.min_insync_replicas:
        said = f"{led.in_sync} replicas are in sync, min.insync.replicas is {led.log.config.min_insync_replicas}"
        return _failed(led, batch, BrokerError(ErrorCode.not_enough_replicas, f"{led.name}: {said}"))
    validation = services.validation
    if size > ON_LOOP_BYTES or (validation.enforced and validation.applies_to(topic)):
        return None
    try:
        result = led.log.append_as_leader(checked or batch, led.leader_epoch, on_loop=True, commit=True)
    except WouldBlockError:
        return None
    except KlammError as error:
        return _failed(led, batch, error)
    led.appended(size, result)
    return led, result


async def _append_later(services: Services, part: ProducePartition) -> Appended | Produced:
    """Appends a batch that `_append_now` has accepted, on a worker thread. Time has passed, so the partition is looked
    up again.
    """
    led = services.partitions.find(part.topic, part.partition)
    if led is None:
        return Produced(part.topic, part.partition, services.not_led(part.topic, part.partition))
    try:
        result = await services.workers.disk(_open_and_append, services, led, part.batch)
    except KlammError as error:
        return _failed(led, part.batch, error)
    led.appended(len(part.batch), result)
    return led, result


def _open_and_append(services: Services, led: LedPartition, batch: memoryview) -> AppendResult:
    """Validates and appends a batch; blocking, for a worker thread."""
    if services.validation.applies_to(led.name.topic):
        services.validation.check(led.name, batch)
    return led.log.append_as_leader(batch, led.leader_epoch, commit=True)


def _failed(led: LedPartition, batch: memoryview, error: KlammError) -> Produced:
    led.traffic.failed_produces += 1
    log.debug("refused a batch of %d bytes: %s", len(batch), error)
    named = error.record_errors if isinstance(error, RecordValidationError) else ()
    start = led.log.log_start_offset if named else -1
    topic, partition = led.name
    return Produced(topic, partition, error.code, log_start_offset=start, message=str(error), record_errors=named)


class _Outcomes:
    """The answers of the partitions of one request."""

    def __init__(self) -> None:
        self.all: list[Produced] = []
        self._room = MAX_RECORD_ERRORS

    def add(self, outcome: Appended | Produced) -> None:
        if isinstance(outcome, tuple):
            led, result = outcome
            outcome = Produced(
                led.name.topic,
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
    """Returns the response. With acks=0 there is none; an error then closes the connection, which tells the client."""
    for outcome in outcomes:
        if outcome.error is not ErrorCode.none:
            services.metrics.count_error(ApiKey.PRODUCE, outcome.error)
    if acks != 0:
        return [write_produce_response(outcomes, request.version, request.throttle_ms)]
    failed = next((o for o in outcomes if o.error is not ErrorCode.none), None)
    if failed is not None:
        what = failed.message or failed.error.name.upper()
        raise ProtocolError(f"Produce with acks=0 failed for {failed.topic}-{failed.partition}: {what}")
    return None
