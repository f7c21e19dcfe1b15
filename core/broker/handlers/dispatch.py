"""The path of every request of an authenticated client: it is read, handled, counted and framed.

Handlers call `services.access` to check whether the client may use the resources that the request names.

An API or version that is not served closes the connection, as in Kafka; only ApiVersions answers an unknown version
(error 35 in a version-0 body, with the served ranges), so that a newer client can use a lower version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from time import monotonic_ns
from typing import Any, Final, cast

from ...errors import ProtocolError
from ...protocol import messages
from ...protocol.apis import ApiKey
from ...protocol.headers import RequestHeader, read_request_header, response_frame, skip_tags
from ...protocol.produce.fast_path import read_fast_produce_request
from ...protocol.produce.request import FastProduceRequest, read_produce_request
from ...protocol.replica_fetch import VERSION as REPLICA_FETCH_VERSION
from ...protocol.replica_fetch import read_replica_fetch_request
from ..append_placement import LONG_NS
from ..delayed_reply import DelayedReply, Outcome, Reply
from ..metrics.counters import errors_in
from ..request import ConnectionContext, Request
from ..services import Services
from .api import Api

__all__ = ["Dispatcher", "FastProduce", "read_request"]

FastProduce = Callable[
    [Services, ConnectionContext, FastProduceRequest], "bytes | Reply | DelayedReply | Coroutine[Any, Any, Reply]"
]
"""A `Handler` for a Produce request that the fast path has read; `bytes` are a whole response frame."""

_PRODUCE: Final = ApiKey.PRODUCE
_FETCH: Final = ApiKey.FETCH


class Dispatcher:
    """Callable as a connection's `Dispatch`."""

    def __init__(self, services: Services, apis: Mapping[ApiKey, Api], produce_fast: FastProduce) -> None:
        self._services = services
        self._apis = apis
        self._leased = frozenset(int(api.key) for api in apis.values() if api.leased)
        self._produce_fast = produce_fast
        self._metrics = services.metrics
        self._produce_times = services.metrics.requests[_PRODUCE]
        self._times = services.metrics.requests
        self._lease = services.lease
        self._delayed_produce = self._produced

    def __call__(
        self, connection: ConnectionContext, frame: bytearray, *, confirmed: bool = False
    ) -> Reply | DelayedReply | Coroutine[Any, Any, Reply]:
        """Handles a frame. `confirmed`: it is certain that this broker is still registered."""
        begun = monotonic_ns()
        if begun > self._lease.deadline_ns and not confirmed and int.from_bytes(frame[:2]) in self._leased:
            return self._confirmed_first(connection, frame)
        fast = read_fast_produce_request(frame)
        if fast is not None:
            produced = self._produce_fast(self._services, connection, fast)
            if isinstance(produced, bytes):  # the rest of this branch is `_produced`
                ended = monotonic_ns()
                self._produce_times.add(ended - begun)
                if ended - begun > LONG_NS:
                    self._services.workers.appends.took_long()
                return [produced] if ended <= self._lease.deadline_ns else self._held_back([produced])
            if isinstance(produced, DelayedReply):  # its outcome is a whole frame, too
                if monotonic_ns() - begun > LONG_NS:
                    self._services.workers.appends.took_long()
                produced.frame, produced.begun_ns = self._delayed_produce, begun
                return produced
            outcome: Outcome | DelayedReply | Coroutine[Any, Any, Outcome] = produced
            request = Request.of_fast_path(fast, connection)
        else:
            api, request = read_request(connection, frame, self._apis)
            outcome = api.handler(self._services, request)
        if isinstance(outcome, DelayedReply):
            request.message = None  # the memory of its batches, which are stored
            outcome.begun_ns = begun
            outcome.frame = lambda ready, begun: self._counted(request, self._framed(request, ready), begun)
            return outcome
        if asyncio.iscoroutine(outcome):
            return self._later(request, outcome, begun)
        return self._counted(request, self._framed(request, outcome), begun)

    def _produced(self, frame: Outcome, begun: int) -> Reply | Coroutine[Any, Any, Reply]:
        """Combines `_framed` and `_counted` for a whole frame that the fast path of Produce has made."""
        assert isinstance(frame, bytes)
        ended = monotonic_ns()
        self._produce_times.add(ended - begun)
        return [frame] if ended <= self._lease.deadline_ns else self._held_back([frame])

    async def _later(self, request: Request, outcome: Coroutine[Any, Any, Outcome], begun: int) -> Reply:
        reply = self._counted(request, self._framed(request, await outcome), begun)
        return await reply if asyncio.iscoroutine(reply) else reply

    def _counted(self, request: Request, reply: Reply, begun: int) -> Reply | Coroutine[Any, Any, Reply]:
        """Counts the request and its time."""
        ended = monotonic_ns()
        api = request.api
        self._times[api].add(ended - begun)
        if ended > self._lease.deadline_ns and api is _PRODUCE:
            return self._held_back(reply)
        return reply

    def _framed(self, request: Request, outcome: Outcome) -> Reply:
        if outcome is None:
            return None
        if isinstance(outcome, bytes):
            return [outcome]
        if isinstance(outcome, list):
            body = outcome
        else:
            assert request.reply is not None
            body = [request.reply.encode(outcome)]
            for error in errors_in(outcome):
                self._metrics.count_error(request.api, error)
        return response_frame(request.api, request.version, request.correlation_id, body)

    async def _confirmed_first(self, connection: ConnectionContext, frame: bytearray) -> Reply:
        """Handles the frame once it is certain that this broker is still registered."""
        if await self._lease.confirmed() is None:
            raise _unconfirmed()
        outcome = self(connection, frame, confirmed=True)
        if isinstance(outcome, DelayedReply):
            await outcome.outcome()
            outcome = outcome.take()
        return await outcome if asyncio.iscoroutine(outcome) else outcome

    async def _held_back(self, reply: Reply) -> Reply:
        """Holds back the acknowledgement of records that were stored while the lease ran out. It is sent if the
        registration under which they were stored has been valid all the time."""
        epoch = self._lease.epoch
        if await self._lease.confirmed() != epoch:
            raise _unconfirmed()
        return reply


def _unconfirmed() -> ProtocolError:
    return ProtocolError(
        "this broker does not know whether it is still registered, after a standstill or its session's end"
    )


def read_request(connection: ConnectionContext, frame: bytearray, apis: Mapping[ApiKey, Api]) -> tuple[Api, Request]:
    """Decodes a frame, without its length. Raises `ProtocolError` if it cannot be read or is not served."""
    header = read_request_header(frame)
    api, version = _served(header, apis)
    key, client_id, correlation_id = api.key, header.client_id or "", header.correlation_id
    if version is None:
        return api, Request(key, 0, None, connection, client_id, correlation_id, messages.response(key, 0))
    schema = messages.request(key, version)
    offset = skip_tags(frame, header.end) if schema.header_flexible else header.end
    if key is _PRODUCE:
        produced = read_produce_request(frame, offset, version)
        return api, Request(key, version, produced, connection, client_id, correlation_id)
    if key is _FETCH and version == REPLICA_FETCH_VERSION:
        replica_fetch = read_replica_fetch_request(frame, offset)
        if replica_fetch is not None:
            return api, Request(key, version, replica_fetch, connection, client_id, correlation_id)
    # Kafka's brokers read the fields they know and ignore the rest; librdkafka relies on it: its request for all topics
    # (Metadata v9) ends in one byte too many.
    message = schema.decode(frame, offset, whole=False)
    return api, Request(key, version, message, connection, client_id, correlation_id, messages.response(key, version))


def _served(header: RequestHeader, apis: Mapping[ApiKey, Api]) -> tuple[Api, int | None]:
    """Returns the API and version of a request; version None for an ApiVersions version that is not served."""
    api = apis.get(cast(ApiKey, header.api_key))  # an ApiKey is equal to its number
    if api is None:
        raise ProtocolError(f"unknown API key {header.api_key}")
    low, high = api.versions
    if low <= header.api_version <= high:
        return api, header.api_version
    if api.key is ApiKey.API_VERSIONS:
        return api, None
    raise ProtocolError(f"{api.key.name} version {header.api_version} is not served ({low} to {high} are)")
