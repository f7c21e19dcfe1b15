"""The context of a connection, and of each request on it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from ..errors import ProtocolError
from ..protocol.apis import ApiKey
from ..protocol.messages import Entity, Schema
from ..protocol.produce.request import FastProduceRequest
from ..protocol.software import declared_codecs
from .delayed_reply import DelayedReply, Reply

__all__ = ["FIRST_ALLOWANCE", "ConnectionContext", "Dispatch", "Request", "not_ready"]

FIRST_ALLOWANCE: Final = 64 * 1024

Dispatch = Callable[["ConnectionContext", bytearray], "Reply | DelayedReply | Coroutine[Any, Any, Reply]"]
"""Handles a request frame of a connection, without its length."""


def not_ready(context: ConnectionContext, _: bytearray) -> None:
    """The dispatch of a connection before the broker serves."""
    raise ProtocolError(f"connection {context.connection_id} came before the broker was ready")


@dataclass(slots=True)
class ConnectionContext:
    """One connection.

    `principal` is the client's, as authenticated. `dispatch` handles its requests; authentication replaces it
    (`handlers.authentication`). `software_*` is what the client reports in ApiVersions. `taken`: bytes reserved for
    the response being built. `allowance`: bytes that its next answer to a Fetch may hold; if it is more than the
    event loop copies, the free memory is the limit. `ended`: the client sends no more, so that no request waits on
    its behalf; waiting requests are notified by `on_end`. `on_close` is called when the connection is closed, for
    any reason. `throttle_ms` is how long the client is asked to wait before its next request; `throttle` stops
    reading from the connection for that many seconds.
    """

    connection_id: int
    listener: str
    peer: str
    principal: str = "User:ANONYMOUS"
    dispatch: Dispatch = not_ready
    software_name: str = ""
    software_version: str = ""
    codecs: frozenset[int] = field(default_factory=frozenset)
    taken: int = 0
    allowance: int = FIRST_ALLOWANCE
    ended: bool = False
    on_end: Callable[[], None] | None = None
    on_close: Callable[[], None] | None = None
    throttle_ms: int = 0
    throttle: Callable[[float], None] | None = None

    @property
    def client_address(self) -> str:
        return self.peer

    def end(self) -> None:
        self.ended = True
        if self.on_end is not None:
            self.on_end()

    def introduce(self, name: str, version: str) -> None:
        """Records the name and version that the client reports, and the codecs that it declares."""
        self.software_name, self.software_version = name, version
        self.codecs = declared_codecs(version)


class Request:
    """One request: its content, its sender, and the fields of its response that are not part of the content.

    `message` is kio's; for Produce it is what `protocol.produce` reads, and it is None if a version of ApiVersions
    is requested that is not served. `reply` is the schema of the response; Produce has none, since its responses are
    encoded by separate code.
    """

    __slots__ = ("api", "client_id", "connection", "correlation_id", "message", "reply", "version")

    def __init__(
        self,
        api: ApiKey,
        version: int,
        message: Any,
        connection: ConnectionContext,
        client_id: str,
        correlation_id: int,
        reply: Schema | None = None,
    ) -> None:
        self.api = api
        self.version = version
        self.message = message
        self.connection = connection
        self.client_id = client_id
        self.correlation_id = correlation_id
        self.reply = reply

    @classmethod
    def of_fast_path(cls, fast: FastProduceRequest, connection: ConnectionContext) -> Request:
        """Makes a request from the fast path of Produce. Called only if needed, since it costs as much as three
        calls."""
        return cls(ApiKey.PRODUCE, fast[0], fast, connection, fast[2], fast[1])

    @property
    def throttle_ms(self) -> int:
        return self.connection.throttle_ms

    @property
    def listener(self) -> str:
        return self.connection.listener

    @property
    def principal(self) -> str:
        return self.connection.principal

    @property
    def client_address(self) -> str:
        return self.connection.peer

    def respond(self, **values: object) -> Entity:
        """Returns the response message; fields that its version lacks are left out."""
        assert self.reply is not None
        return self.reply.build(throttle_time=timedelta(milliseconds=self.throttle_ms), **values)

    def part(self, type_name: str, **values: object) -> Entity:
        """Returns a nested struct of the response, by its class name in Kafka's definition."""
        assert self.reply is not None
        return self.reply.part(type_name, **values)
