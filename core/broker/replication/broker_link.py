"""A connection to another broker: a client's connection (`ClientConnection`) over a transport of the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import klamm

from ...protocol.apis import ApiKey
from ...transport.address import Address
from ...transport.interface import Connect, Transport, TransportHandler
from ...transport.plaintext_transport import connect_plaintext

if TYPE_CHECKING:  # a broker that has no others need not import the clients' code
    from ...client.network.connection import Build, ClientConnection, Decode

__all__ = ["BrokerLink"]

_LARGEST: Final = 1 << 30


class BrokerLink(TransportHandler):
    """Sends one request at a time. Made by `open`; belongs to the event loop.

    One timer for the whole connection ends it when no byte of an answer has come for `timeout_s`, instead of a timer
    for each request.
    """

    def __init__(self, protocol: ClientConnection, timeout_s: float) -> None:
        self._protocol = protocol
        self._get_buffer = protocol.get_buffer
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None
        self._waiting: asyncio.Future[Any] | None = self._loop.create_future()
        """The future of the answer to the present request; at first that of the negotiation."""
        self._heard_at = self._loop.time()
        self._negotiated = False
        self._ended: Exception | None = None
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, address: Address, client_id: str, timeout_s: float, connect: Connect = connect_plaintext
    ) -> BrokerLink:
        """Connects and negotiates the versions. Raises OSError, TimeoutError, EOFError or `ProtocolError`."""
        from ...client.network.connection import ClientConnection

        protocol = ClientConnection(client_id, klamm.__version__, max_in_flight=1, max_response_bytes=_LARGEST)
        link = cls(protocol, timeout_s)
        negotiated = link._waiting
        assert negotiated is not None
        try:
            async with asyncio.timeout(timeout_s):
                await connect(address, lambda: link)
                await negotiated  # which may be over by now
        except BaseException:
            link.close()
            raise
        return link

    def version(self, api: ApiKey, max_version: int | None = None) -> int:
        """Returns the version that `call` uses. Raises `BrokerError` if there is no common version."""
        return self._protocol.version(api, max_version)

    async def call(
        self, api: ApiKey, build: Build, *, max_version: int | None = None, decode: Decode | None = None
    ) -> Any:
        """Sends a request; returns the message of its answer, or the result of `decode`. Raises the error that ended
        the connection: OSError, EOFError, TimeoutError or `ProtocolError`."""
        if self._transport is None:
            raise self._ended or ConnectionError("the connection is closed")
        self._waiting = self._loop.create_future()
        self._heard_at = self._loop.time()
        self._protocol.send(api, build, max_version=max_version, decode=decode)
        self._transport.writelines([b"".join(self._protocol.take_pieces())])  # uvloop writes one buffer faster than two
        return await self._waiting

    def close(self) -> None:
        self._end(ConnectionError("the connection is closed"))

    # -- called by the transport -----------------------------------------------------------------------------------

    def connected(self, transport: Transport) -> None:
        if self._ended is not None:
            transport.abort()
            return
        self._transport = transport
        self._check_silence()
        self._protocol.open()
        transport.writelines(self._protocol.take_pieces())

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None:
            return
        self._heard_at = self._loop.time()
        try:
            responses = self._protocol.received(nbytes)
        except Exception as error:  # the peer's bytes; what they break is this connection
            self._end(error)
            return
        if responses:  # one, since one request waits
            self._answered(responses[0].message)
        elif not self._negotiated:
            pieces = self._protocol.take_pieces()
            if pieces:
                self._transport.writelines(pieces)
            elif self._protocol.can_send:
                self._negotiated = True
                self._answered(None)

    def eof_received(self) -> None:
        self._end(EOFError("the broker has closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or EOFError("the connection is lost"))

    # -- the end -----------------------------------------------------------------------------------------------------

    def _answered(self, message: Any) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _check_silence(self) -> None:
        if self._waiting is not None and self._loop.time() - self._heard_at > self._timeout_s:
            self._end(TimeoutError(f"no answer in {self._timeout_s:g} s"))
        else:
            self._watch = self._loop.call_later(self._timeout_s / 4, self._check_silence)

    def _end(self, why: Exception) -> None:
        if self._ended is None:
            self._ended = why
            self._protocol.close()
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(self._ended)
            waiting.exception()  # asyncio would log an exception that is not retrieved
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
