"""From a frame to a response frame: header, schema, handler, encoding.

An API or version that is not served closes the connection, as Kafka does; only ApiVersions answers an unknown version
(error 35 in a version-0 body, with what is offered), so that a newer client can come down to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from time import monotonic_ns
from typing import Any, Final

from ...errors import ProtocolError
from ...protocol import messages
from ...protocol.apis import SERVED, ApiKey
from ...protocol.headers import RequestHeader, read_request_header, response_frame, skip_tags
from ...protocol.messages import Buffer
from ...protocol.produce import read_produce_request
from ...records.native import plain_produce
from ...records.plain_produce import PlainProduce
from ..metrics.counters import errors_in
from ..services import Services
from .connection import Reply
from .context import ConnectionContext, Request, RequestContext

Handler = Callable[[Services, Request], Any]
"""Takes a decoded request; returns the response message, its encoded pieces (a list), None for no response, or a
coroutine of one of these where it has to wait. Errors that belong to the protocol go into the response; a
`ProtocolError` closes the connection."""

ProducePlain = Callable[[Services, PlainProduce], "list[Buffer] | None"]
"""The short way of a Produce of one batch; None sends it the long way."""

_LEASED: Final = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_DELETE,
        ApiKey.DELETE_GROUPS,
    }
)
"""What speaks of this broker's partitions and groups: not handled while it is unknown whether they are still its own
(`lease`). All others either change the coordination, which refuses a session that is over, or only tell."""

_BY_NUMBER = {int(api): api for api in ApiKey}


class Dispatcher:
    """Callable as a connection's `Dispatch`."""

    def __init__(
        self, services: Services, handlers: Mapping[ApiKey, Handler], produce_plain: ProducePlain | None = None
    ) -> None:
        self._services = services
        self._handlers = handlers
        self._produce_plain = produce_plain
        self._metrics = services.metrics
        self._produce_times = services.metrics.requests[ApiKey.PRODUCE]
        self._lease = services.lease

    def __call__(self, connection: ConnectionContext, frame: bytearray) -> Reply | Coroutine[Any, Any, Reply]:
        begun = monotonic_ns()
        if begun > self._lease.deadline_ns and int.from_bytes(frame[:2]) in _LEASED:
            return self._confirmed_first(connection, frame)
        if self._produce_plain is not None:
            plain = plain_produce(frame)
            if plain is not None:
                reply = self._produce_plain(self._services, plain)
                if reply is not None:
                    ended = monotonic_ns()
                    self._produce_times.add(ended - begun)
                    if ended > self._lease.deadline_ns:
                        return self._held_back(reply)
                    return reply
        return self._any(connection, frame, begun)

    def _any(self, connection: ConnectionContext, frame: bytearray, begun: int) -> Reply | Coroutine[Any, Any, Reply]:
        header = read_request_header(frame)
        api, version = _served(header)
        if version is None:
            body = messages.request(api, 0).build()
            version = 0
            context = RequestContext(connection, header.client_id or "", header.correlation_id, unsupported=True)
        else:
            schema = messages.request(api, version)
            offset = skip_tags(frame, header.end) if schema.header_flexible else header.end
            if api is ApiKey.PRODUCE:
                body = read_produce_request(frame, offset, version)
            else:
                # Kafka's brokers read what they know and pass over the rest; librdkafka relies on it: its request for
                # all topics (Metadata v9) ends in one byte too many.
                body = schema.decode(frame, offset, whole=False)
            context = RequestContext(connection, header.client_id or "", header.correlation_id)
        request = Request(api, version, body, context, messages.response(api, version))
        outcome = self._handlers[api](self._services, request)
        if asyncio.iscoroutine(outcome):
            return self._later(request, outcome, begun)
        reply = self._frame(request, outcome, begun)
        return self._held_back(reply) if self._lapsed(api) else reply

    async def _later(self, request: Request, outcome: Coroutine[Any, Any, Any], begun: int) -> Reply:
        reply = self._frame(request, await outcome, begun)
        return await self._held_back(reply) if self._lapsed(request.api) else reply

    def _lapsed(self, api: ApiKey) -> bool:
        """Whether the lease ran out while a Produce was handled."""
        return api is ApiKey.PRODUCE and monotonic_ns() > self._lease.deadline_ns

    async def _confirmed_first(self, connection: ConnectionContext, frame: bytearray) -> Reply:
        """Handled once it is certain that this broker is still registered."""
        if await self._lease.confirmed() is None:
            raise _unconfirmed()
        outcome = self._any(connection, frame, monotonic_ns())
        return await outcome if asyncio.iscoroutine(outcome) else outcome

    async def _held_back(self, reply: Reply) -> Reply:
        """An acknowledgement of what was stored while the lease ran out: it goes out if the registration under which it
        was stored has held all the time."""
        epoch = self._lease.epoch
        if await self._lease.confirmed() != epoch:
            raise _unconfirmed()
        return reply

    def _frame(self, request: Request, outcome: Any, begun: int) -> Reply:
        reply = _frame(request, outcome)
        self._metrics.requests[request.api].add(monotonic_ns() - begun)
        if outcome is not None and not isinstance(outcome, list):
            for error in errors_in(outcome):
                self._metrics.count_error(request.api, error)
        return reply


def _unconfirmed() -> ProtocolError:
    return ProtocolError(
        "this broker does not know whether it is still registered, after a standstill or its session's end"
    )


def _served(header: RequestHeader) -> tuple[ApiKey, int | None]:
    """The API and version of a request; version None for an ApiVersions that is not served."""
    api = _BY_NUMBER.get(header.api_key)
    if api is None:
        raise ProtocolError(f"unknown API key {header.api_key}")
    low, high = SERVED[api]
    if low <= header.api_version <= high:
        return api, header.api_version
    if api is ApiKey.API_VERSIONS:
        return api, None
    raise ProtocolError(f"{api.name} version {header.api_version} is not served ({low} to {high} are)")


def _frame(request: Request, outcome: Any) -> Reply:
    if outcome is None:
        return None
    body = outcome if isinstance(outcome, list) else [request.reply.encode(outcome)]
    return response_frame(request.api, request.version, request.context.correlation_id, body)
