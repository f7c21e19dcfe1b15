"""Who asks: what is known of a connection, and of one request on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from ...protocol.apis import ApiKey
from ...protocol.messages import Schema
from ...protocol.software import declared_codecs

FIRST_ALLOWANCE: Final = 64 * 1024


@dataclass(slots=True)
class ConnectionContext:
    """One connection. `principal` is `User:ANONYMOUS` until there is authentication; `software_*` as the client said in
    ApiVersions. `taken`: bytes that its response may have which is being made. `allowance`: bytes that
    its next answer to a Fetch may hold; more than the event loop copies: what there is room for. `ended`: the client
    sends no more, so nothing is waited for on its behalf; whoever waits is told by `on_end`."""

    connection_id: int
    listener: str
    peer: str
    principal: str = "User:ANONYMOUS"
    software_name: str = ""
    software_version: str = ""
    codecs: frozenset[int] = field(default_factory=frozenset)
    taken: int = 0
    allowance: int = FIRST_ALLOWANCE
    ended: bool = False
    on_end: Callable[[], None] | None = None

    def end(self) -> None:
        self.ended = True
        if self.on_end is not None:
            self.on_end()

    def introduce(self, name: str, version: str) -> None:
        """What the client says of itself; takes up the codecs that it declares."""
        self.software_name, self.software_version = name, version
        self.codecs = declared_codecs(version)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request. `throttle_ms` is how long the client is asked to wait before its next;
    `unsupported`: it asked for a version of ApiVersions that is not served."""

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


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request, and the schema that its response is built with."""

    api: ApiKey
    version: int
    message: Any
    context: RequestContext
    reply: Schema

    def respond(self, **values: Any) -> Any:
        """The response message; fields that its version lacks are left out."""
        return self.reply.build(throttle_time=timedelta(milliseconds=self.context.throttle_ms), **values)

    def part(self, type_name: str, **values: Any) -> Any:
        """A nested struct of the response, by its class name in Kafka's definition."""
        return self.reply.part(type_name, **values)
