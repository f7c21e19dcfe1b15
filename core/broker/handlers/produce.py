"""Produce: each batch is checked, appended and acknowledged as it came; only some have to be opened (design D2).

A small append goes to the page cache right on the event loop. What may block (a batch to be opened, an append that
flushes, a large one) runs on a worker thread.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from ...errors import BrokerError, ErrorCode, KlammError, ProtocolError
from ...log.errors import RecordValidationError, WouldBlockError
from ...log.partition_log import AppendResult
from ...log.validation import AppendOrigin
from ...protocol.apis import ApiKey
from ...protocol.headers import response_frame
from ...protocol.messages import Buffer
from ...protocol.one_batch import OneBatch
from ...protocol.produce import Produced, ProducePartition, ProduceRequest, write_produce_response
from ...records.header import HEADER_SIZE
from ...records.native import produced
from ...records.plain_produce import PlainProduce
from ..network.context import Request
from ..partitions import LedPartition
from ..services import Services

log = logging.getLogger(__name__)

ON_LOOP_BYTES = 512 * 1024
"""A larger batch is appended on a worker thread."""
MAX_RECORD_ERRORS = 10_000
"""Records that one response names."""


class _Outcomes:
    """What the partitions of one request answer."""

    def __init__(self) -> None:
        self.all: list[Produced] = []
        self._room = MAX_RECORD_ERRORS

    def add(self, outcome: Produced) -> None:
        if len(outcome.record_errors) > self._room:
            outcome = replace(outcome, record_errors=outcome.record_errors[: self._room])
        self._room -= len(outcome.record_errors)
        self.all.append(outcome)


def produce(services: Services, request: Request) -> Any:
    message: ProduceRequest = request.message
    refused = _refusal(message)
    if refused is not None:
        return _respond(services, request, [Produced(p.topic, p.partition, refused) for p in message.partitions])
    outcomes = _Outcomes()
    for index, part in enumerate(message.partitions):
        outcome = _append_now(services, part, message.acks)
        if outcome is None:
            return _produce_rest(services, request, outcomes, message.partitions[index:])
        outcomes.add(outcome)
    return _respond(services, request, outcomes.all)


def produce_plain(services: Services, request: PlainProduce) -> list[Buffer] | None:
    """`produce` for the one batch that most requests are, without the machinery: the response frame, or None where the
    batch cannot be taken at once; nothing has then happened, and `produce` takes it up."""
    version, correlation_id, acks, topic, partition, records, count = request[:7]
    led = services.partitions.find(topic, partition)
    if led is None or services.validation.applies_to(topic):
        return None
    log = led.log
    if acks == -1 and led.in_sync < log.config.min_insync_replicas:
        return None
    try:
        result = log.append(records, leader_epoch=led.leader_epoch, on_loop=True, checked=request, commit=True)
    except WouldBlockError:
        return None
    except KlammError as error:
        return _one_failed(services, led, OneBatch(*request[:6]), error)
    size = len(records)
    if result.high_watermark_advanced:
        led.shown(size)
    traffic = led.traffic
    traffic.produces += 1
    traffic.bytes_in += size
    traffic.messages_in += count
    base_offset, _, append_time_ms, _, _ = result
    return [produced(version, topic, correlation_id, partition, base_offset, append_time_ms, log.log_start_offset, 0)]


def _one_failed(services: Services, led: LedPartition, request: OneBatch, error: KlammError) -> list[Buffer]:
    """Not handed on to `produce`: a failed append may have set the batch's timestamps."""
    outcome = _failed(led, ProducePartition(request.topic, request.partition, request.records), error)
    services.metrics.count_error(ApiKey.PRODUCE, outcome.error)
    body = write_produce_response([outcome], request.version)
    return response_frame(ApiKey.PRODUCE, request.version, request.correlation_id, [body])


async def _produce_rest(services: Services, request: Request, outcomes: _Outcomes, rest: list[ProducePartition]) -> Any:
    for part in rest:
        outcome = _append_now(services, part, request.message.acks)
        outcomes.add(outcome or await _append_later(services, part, request.message.acks))
    return _respond(services, request, outcomes.all)


def _refusal(message: ProduceRequest) -> ErrorCode | None:
    if message.acks not in (0, 1, -1):
        return ErrorCode.invalid_required_acks
    if message.transactional_id is not None:
        return ErrorCode.transactional_id_authorization_failed
    return None


def _may_block(services: Services, led: LedPartition, records: memoryview) -> bool:
    """As far as the log does not say so itself."""
    return len(records) > ON_LOOP_BYTES or services.validation.applies_to(led.name.topic)


def _append_now(services: Services, part: ProducePartition, acks: int) -> Produced | None:
    """None where it belongs on a worker thread; nothing has then happened."""
    led = services.led(part.topic, part.partition)
    if not isinstance(led, LedPartition):
        return Produced(part.topic, part.partition, led)
    if part.records is not None and _may_block(services, led, part.records):
        return None
    try:
        records = _checked(led, part, acks)
        result = led.log.append(records, origin=AppendOrigin.CLIENT, leader_epoch=led.leader_epoch, on_loop=True)
    except WouldBlockError:
        return None
    except KlammError as error:
        return _failed(led, part, error)
    return _appended(led, records, result)


async def _append_later(services: Services, part: ProducePartition, acks: int) -> Produced:
    led = services.led(part.topic, part.partition)
    if not isinstance(led, LedPartition):
        return Produced(part.topic, part.partition, led)
    try:
        records = _checked(led, part, acks)
        result = await services.workers.disk(_open_and_append, services, led, records)
    except KlammError as error:
        return _failed(led, part, error)
    return _appended(led, records, result)


def _open_and_append(services: Services, led: LedPartition, records: memoryview) -> AppendResult:
    """Blocking: what a worker thread does with a batch."""
    if services.validation.applies_to(led.name.topic):
        services.validation.check(led.name, records)
    return led.log.append(records, origin=AppendOrigin.CLIENT, leader_epoch=led.leader_epoch)


def _checked(led: LedPartition, part: ProducePartition, acks: int) -> memoryview:
    """The batch, if this broker may take it at all; the log checks what is in it."""
    if part.records is None or len(part.records) < HEADER_SIZE:
        raise BrokerError(ErrorCode.invalid_record, f"{led.name}: a Produce request needs one whole record batch")
    least = led.log.config.min_insync_replicas
    if acks == -1 and led.in_sync < least:
        raise BrokerError(
            ErrorCode.not_enough_replicas,
            f"{led.name}: {led.in_sync} replicas are in sync, min.insync.replicas is {least}",
        )
    return part.records


def _failed(led: LedPartition, part: ProducePartition, error: KlammError) -> Produced:
    led.traffic.failed_produces += 1
    log.debug("refused a batch of %d bytes: %s", len(part.records or b""), error)
    named = error.record_errors if isinstance(error, RecordValidationError) else ()
    start = led.log.log_start_offset if named else -1
    return Produced(
        part.topic, part.partition, error.code, log_start_offset=start, message=str(error), record_errors=named
    )


def _appended(led: LedPartition, records: memoryview, result: AppendResult) -> Produced:
    led.published(len(records))
    traffic = led.traffic
    traffic.produces += 1
    traffic.bytes_in += len(records)
    traffic.messages_in += result.last_offset - result.base_offset + 1
    return Produced(
        led.name.topic,
        led.name.partition,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=led.log.log_start_offset,
    )


def _respond(services: Services, request: Request, outcomes: list[Produced]) -> Any:
    """With acks=0 there is no response; an error then closes the connection, which is how the client learns of it."""
    for outcome in outcomes:
        if outcome.error is not ErrorCode.none:
            services.metrics.count_error(ApiKey.PRODUCE, outcome.error)
    if request.message.acks != 0:
        return [write_produce_response(outcomes, request.version, request.context.throttle_ms)]
    failed = next((o for o in outcomes if o.error is not ErrorCode.none), None)
    if failed is not None:
        what = failed.message or failed.error.name.upper()
        raise ProtocolError(f"Produce with acks=0 failed for {failed.topic}-{failed.partition}: {what}")
    return None
