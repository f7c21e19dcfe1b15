"""The connection phase: what a client may send before it is known, and what its dispatch is afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

import pytest

from klamm.core.broker.delayed_reply import Reply
from klamm.core.broker.handlers.authentication import Authentication, Unauthenticated
from klamm.core.broker.handlers.table import APIS
from klamm.core.broker.request import ConnectionContext, not_ready
from klamm.core.errors import KlammError, ProtocolError
from klamm.core.interfaces.security.authenticator import Authenticated, AuthenticationContext, Challenge
from klamm.core.protocol.apis import ApiKey


def frame(api: ApiKey) -> bytearray:
    return bytearray(api.to_bytes(2) + bytes(8))


class Password:
    """Asks for a password. `late`: each step is awaited."""

    def __init__(self, *, late: bool = False) -> None:
        self.late = late

    def begin(self, connection: AuthenticationContext) -> Password:
        if connection.listener == "CLOSED":
            raise KlammError("nobody comes in here")
        return self

    def step(self, data: bytes) -> Authenticated | Challenge | Awaitable[Authenticated | Challenge]:
        return self._checked(data) if self.late else self._check(data)

    async def _checked(self, data: bytes) -> Authenticated | Challenge:
        await asyncio.sleep(0)
        return self._check(data)

    def _check(self, data: bytes) -> Authenticated | Challenge:
        if not data:
            return Challenge(b"password?")
        if data != b"open":
            raise KlammError("wrong password")
        return Authenticated("User:alice", b"welcome")


class Served:
    """The dispatch of all APIs, which notes the frames."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, bytes]] = []

    def __call__(self, connection: ConnectionContext, frame: bytearray) -> Reply:
        self.frames.append((connection.principal, bytes(frame)))
        return [b"answer"]


def phase_of(connection: ConnectionContext) -> Unauthenticated:
    assert isinstance(connection.dispatch, Unauthenticated)
    return connection.dispatch


def test_until_the_last_step_only_what_needs_no_client_is_served() -> None:
    served, authenticated, connection = Served(), Served(), ConnectionContext(1, "L", "?")
    connection.dispatch = Authentication(Password(), APIS, served, authenticated)
    assert connection.dispatch(connection, frame(ApiKey.API_VERSIONS)) == [b"answer"]
    phase = phase_of(connection)
    for api in ApiKey:
        if not APIS[api].before_authentication:
            with pytest.raises(ProtocolError, match=f"API key {int(api)} before the client is authenticated"):
                connection.dispatch(connection, frame(api))
    with pytest.raises(ProtocolError, match="not authenticated: wrong password"):
        phase.step(connection, b"guess")
    assert connection.dispatch is phase
    assert phase.step(connection, b"open") == Authenticated("User:alice", b"welcome")
    assert connection.dispatch is authenticated, "nothing is tested from now on"
    connection.dispatch(connection, frame(ApiKey.METADATA))
    assert served.frames == [("User:ANONYMOUS", bytes(frame(ApiKey.API_VERSIONS)))]
    assert authenticated.frames == [("User:alice", bytes(frame(ApiKey.METADATA)))]


def test_a_step_may_be_awaited() -> None:
    async def test() -> None:
        served, connection = Served(), ConnectionContext(1, "L", "?")
        connection.dispatch = Authentication(Password(late=True), APIS, served, served)
        first = connection.dispatch(connection, frame(ApiKey.API_VERSIONS))
        assert asyncio.iscoroutine(first)
        assert await first == [b"answer"]
        phase = phase_of(connection)
        with pytest.raises(ProtocolError, match="wrong password"):
            await cast("Awaitable[object]", phase.step(connection, b"guess"))
        await cast("Awaitable[object]", phase.step(connection, b"open"))
        assert (connection.principal, connection.dispatch) == ("User:alice", served)

    asyncio.run(test())


def test_a_client_may_be_refused_before_its_first_step() -> None:
    connection = ConnectionContext(1, "CLOSED", "?")
    with pytest.raises(ProtocolError, match="not authenticated: nobody comes in here"):
        Authentication(Password(), APIS, Served(), Served())(connection, frame(ApiKey.API_VERSIONS))
    assert connection.dispatch is not_ready
