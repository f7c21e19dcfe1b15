"""The connection phase: what a connection may send until its client is authenticated.

`Authentication` is the dispatch of a new connection. Its first step may be enough, for instance if the listener or
the peer's certificate decides; otherwise the connection has an `Unauthenticated` dispatch, which serves the few APIs
that need no client. With the last step the connection gets the dispatch of all APIs, which therefore tests nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any, cast

from ...errors import KlammError, ProtocolError
from ...interfaces.security.authenticator import Authenticated, Authenticator, Challenge, Exchange
from ...protocol.apis import ApiKey
from ..delayed_reply import DelayedReply, Reply
from ..request import ConnectionContext, Dispatch
from .api import Api

Replied = Reply | DelayedReply | Coroutine[Any, Any, Reply]


class Authentication:
    """The dispatch of every new connection of a broker that has an authenticator. `served` serves the few APIs that
    need no client; `authenticated` is the connection's dispatch once the client is authenticated."""

    def __init__(
        self, authenticator: Authenticator, apis: Mapping[ApiKey, Api], served: Dispatch, authenticated: Dispatch
    ) -> None:
        self._authenticator = authenticator
        self._apis = apis
        self._served = served
        self._authenticated = authenticated

    def __call__(self, connection: ConnectionContext, frame: bytearray) -> Replied:
        exchange = _begun(self._authenticator, connection)
        phase = Unauthenticated(exchange, self._apis, self._served, self._authenticated)
        connection.dispatch = phase
        outcome = phase.step(connection, b"")
        if isinstance(outcome, Awaitable):
            return _handled_later(outcome, connection, frame)
        return connection.dispatch(connection, frame)


class Unauthenticated:
    """The dispatch of one connection while its exchange lasts."""

    def __init__(
        self, exchange: Exchange, apis: Mapping[ApiKey, Api], served: Dispatch, authenticated: Dispatch
    ) -> None:
        self._exchange = exchange
        self._apis = apis
        self._served = served
        self._authenticated = authenticated

    def __call__(self, connection: ConnectionContext, frame: bytearray) -> Replied:
        key = int.from_bytes(frame[:2])
        api = self._apis.get(cast(ApiKey, key))  # an ApiKey is equal to its number
        if api is None or not api.before_authentication:
            raise ProtocolError(f"a request with API key {key} before the client is authenticated")
        return self._served(connection, frame)

    def step(
        self, connection: ConnectionContext, data: bytes
    ) -> Authenticated | Challenge | Awaitable[Authenticated | Challenge]:
        """Passes a message of the client to the exchange. Raises `ProtocolError` if the client is refused."""
        try:
            outcome = self._exchange.step(data)
        except Exception as error:
            raise _refused(error) from error
        if isinstance(outcome, Awaitable):
            return self._taken_later(outcome, connection)
        return self._taken(outcome, connection)

    async def _taken_later(
        self, outcome: Awaitable[Authenticated | Challenge], connection: ConnectionContext
    ) -> Authenticated | Challenge:
        try:
            found = await outcome
        except Exception as error:
            raise _refused(error) from error
        return self._taken(found, connection)

    def _taken(self, outcome: Authenticated | Challenge, connection: ConnectionContext) -> Authenticated | Challenge:
        if isinstance(outcome, Authenticated):
            connection.principal = outcome.principal
            connection.dispatch = self._authenticated
        return outcome


async def _handled_later(outcome: Awaitable[object], connection: ConnectionContext, frame: bytearray) -> Reply:
    await outcome
    reply = connection.dispatch(connection, frame)
    if isinstance(reply, DelayedReply):
        await reply.outcome()
        reply = reply.take()
    return reply if reply is None or isinstance(reply, list) else await reply


def _begun(authenticator: Authenticator, connection: ConnectionContext) -> Exchange:
    try:
        return authenticator.begin(connection)
    except Exception as error:
        raise _refused(error) from error


def _refused(error: Exception) -> ProtocolError:
    """Returns the refusal for any error that an authenticator, perhaps a third party's, has raised."""
    if isinstance(error, KlammError):
        return ProtocolError(f"the client is not authenticated: {error}")
    return ProtocolError(f"the authenticator failed: {error!r}")
