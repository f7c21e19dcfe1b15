"""From a frame to a response frame: header, schema, handler, encoding.

An API or version that is not served closes the connection, as Kafka does; only ApiVersions answers an unknown version
(error 35 in a version-0 body, with what is offered), so that a newer client can come down to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from time import monotonic_ns
from typing import Any

from klamm.core.broker.connection import Reply
from klamm.core.broker.context import ConnectionContext, Request, RequestContext
from klamm.core.broker.metrics import errors_in
from klamm.core.broker.services import Services
from klamm.core.errors import ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import SERVED, ApiKey
from klamm.core.protocol.headers import RequestHeader, read_request_header, response_frame, skip_tags
from klamm.core.protocol.messages import Buffer
from klamm.core.protocol.produce import read_produce_request
from klamm.core.records.native import plain_produce
from klamm.core.records.plain_produce import PlainProduce

Handler = Callable[[Services, Request], Any]
"""Takes a decoded request; returns the response message, its encoded pieces (a list), None for no response, or a
coroutine of one of these where it has to wait. Errors that belong to the protocol go into the response; a
`ProtocolError` closes the connection."""

ProducePlain = Callable[[Services, PlainProduce], "list[Buffer] | None"]
"""The short way of a Produce of one batch; None sends it the long way."""

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

    def __call__(self, connection: ConnectionContext, frame: bytearray) -> Reply | Coroutine[Any, Any, Reply]:
        begun = monotonic_ns()
        if self._produce_plain is not None:
            plain = plain_produce(frame)
            if plain is not None:
                reply = self._produce_plain(self._services, plain)
                if reply is not None:
                    self._produce_times.add(monotonic_ns() - begun)
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
        return self._frame(request, outcome, begun)

    async def _later(self, request: Request, outcome: Coroutine[Any, Any, Any], begun: int) -> Reply:
        return self._frame(request, await outcome, begun)

    def _frame(self, request: Request, outcome: Any, begun: int) -> Reply:
        reply = _frame(request, outcome)
        self._metrics.requests[request.api].add(monotonic_ns() - begun)
        if outcome is not None and not isinstance(outcome, list):
            for error in errors_in(outcome):
                self._metrics.count_error(request.api, error)
        return reply


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
