"""The authentication interface: determines the client of a connection."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Authenticated", "AuthenticationContext", "Authenticator", "Challenge", "Exchange"]


class AuthenticationContext(Protocol):
    """A connection, before its first request is handled."""

    @property
    def listener(self) -> str: ...

    @property
    def client_address(self) -> str:
        """`host:port` of the client's end."""
        ...


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The exchange is done: `principal`, such as `User:alice`, is the client of all requests of the connection.
    `data` is the mechanism's last message to it."""

    principal: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The exchange needs another message of the client; `data` is sent to it first."""

    data: bytes = b""


class Exchange(Protocol):
    """The authentication of one connection."""

    def step(self, data: bytes) -> Authenticated | Challenge | Awaitable[Authenticated | Challenge]:
        """Handles a message of the client. In the first call, before the client's first request, `data` is empty.
        Raise `KlammError` to refuse: the connection is closed, with the error's line in the broker's log.

        Called on the event loop, one step at a time: await anything that takes long.
        """
        ...


class Authenticator(Protocol):
    def begin(self, connection: AuthenticationContext) -> Exchange:
        """Returns a new exchange with the client of the connection. Raise `KlammError` to refuse it.

        `Exchange.step(data)` handles each message of the client, and returns `Authenticated(principal)`, a
        `Challenge(data)` if it needs another message, or an awaitable of one of them. If the connection alone
        decides, its first call, without a message, returns `Authenticated`.
        """
        ...
