"""The context of a connection, and of each request on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

from ...protocol.apis import ApiKey
from ...protocol.messages import Schema
from ...protocol.produce.request import FastProduceRequest
from ...protocol.software import declared_codecs

FIRST_ALLOWANCE: Final = 64 * 1024


@dataclass(slots=True)
class ConnectionContext:
    """One connection.

    `principal` is who its client is, by the authenticator, which is asked before the first request (`authenticated`).
    `software_*` is what the client said in ApiVersions. `taken`: bytes that its response may have which is being made.
    `allowance`: bytes that its next answer to a Fetch may hold; more than the event loop copies: what there is room
    for. `ended`: the client sends no more, so nothing is waited for on its behalf; whoever waits is told by `on_end`.
    """

    connection_id: int
    listener: str
    peer: str
    principal: str = "User:ANONYMOUS"
    authenticated: bool = False
    software_name: str = ""
    software_version: str = ""
    codecs: frozenset[int] = field(default_factory=frozenset)
    taken: int = 0
    allowance: int = FIRST_ALLOWANCE
    ended: bool = False
    on_end: Callable[[], None] | None = None

    @property
    def client_address(self) -> str:
        return self.peer

    def end(self) -> None:
        self.ended = True
        if self.on_end is not None:
            self.on_end()

    def introduce(self, name: str, version: str) -> None:
        """What the client says of itself; takes up the codecs that it declares."""
        self.software_name, self.software_version = name, version
        self.codecs = declared_codecs(version)


class RequestContext(NamedTuple):
    """One request: where it came from, and what its response says beside its content.

    `throttle_ms` is how long the client is asked to wait before its next request. `unsupported`: it asked for a version
    of ApiVersions that is not served.
    """

    connection: ConnectionContext
    client_id: str
    correlation_id: int
    throttle_ms: int = 0
    unsupported: bool = False

    @property
    def listener(self) -> str:
        return self.connection.listener

    @property
    def principal(self) -> str:
        return self.connection.principal

    @property
    def client_address(self) -> str:
        return self.connection.peer


class Request(NamedTuple):
    """A decoded request. `message` is kio's, and `reply` the schema that its response is built with; of Produce it is
    what `protocol.produce` reads, and there is no schema."""

    api: ApiKey
    version: int
    message: Any
    context: RequestContext
    reply: Schema | None

    def respond(self, **values: Any) -> Any:
        """The response message; fields that its version lacks are left out."""
        assert self.reply is not None
        return self.reply.build(throttle_time=timedelta(milliseconds=self.context.throttle_ms), **values)

    def part(self, type_name: str, **values: Any) -> Any:
        """A nested struct of the response, by its class name in Kafka's definition."""
        assert self.reply is not None
        return self.reply.part(type_name, **values)


_new_context: Final = cast(
    Callable[[type[RequestContext], tuple[ConnectionContext, str, int, int, bool]], RequestContext], tuple.__new__
)
_new_request: Final = cast(
    Callable[[type[Request], tuple[ApiKey, int, Any, RequestContext, None]], Request], tuple.__new__
)
_PRODUCE: Final = ApiKey.PRODUCE


def fast_produce_request(connection: ConnectionContext, message: FastProduceRequest) -> Request:
    """The request of a message that the fast path has read. Makes its objects from all of their fields, at half the
    cost of calling their classes: every small Produce pays for it."""
    version, correlation_id, client_id, _, _, _, _, _ = message
    context = _new_context(RequestContext, (connection, client_id, correlation_id, 0, False))
    return _new_request(Request, (_PRODUCE, version, message, context, None))
