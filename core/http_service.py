"""An HTTP server beside a broker, or alone: metrics and health, the audit's pages, and other HTTP services.

Each has its own address, thread and life cycle: a slow request delays neither the broker's event loop nor another
server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final, Protocol

from .errors import ConfigError
from .transport.address import Address, listen, why_not

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["PAGE_HEADERS", "AsgiServer", "CountedApp", "HttpServer", "HttpService", "page_style"]

log = logging.getLogger(__name__)

_MARGIN_S: Final = 2.0


class HttpServer(Protocol):
    """An HTTP implementation: `bind`, then `run` on a thread of its own, which `stop` ends."""

    grace_s: float
    """Seconds that requests may take to end after `stop`."""

    def bind(self, listening: socket.socket) -> None:
        """Sets the listening socket, which its owner closes."""
        ...

    def run(self) -> None:
        """Serves until `stop`."""
        ...

    def stop(self) -> None:
        """Lets `run` end; called from another thread, and does not wait for requests longer than `grace_s`."""
        ...


class HttpService:
    """The life cycle of a server: `address` and `url` are real once started (port 0 becomes a free port)."""

    def __init__(self, what: str, address: Address, option: str, server: HttpServer, advice: str = "") -> None:
        """`what` names the service in log lines and its thread. `option`: the key of the address, for the error if
        it cannot be used; `advice` ends that error."""
        self.address = address
        self._what = what
        self._option = option
        self._advice = advice
        self._server = server
        self._running = False
        self._ended = threading.Event()
        self._problem: str | None = None

    @property
    def url(self) -> str:
        return f"http://{self.address}/"

    def start(self) -> None:
        """Binds and serves. Raises `ConfigError` if the address cannot be used."""
        try:
            listening = listen(self.address)
        except OSError as error:
            line = f"{self._option}: cannot listen on {self.address}: {why_not(error)}{self._advice}"
            raise ConfigError(line) from error
        self.address = replace(self.address, port=listening.getsockname()[1])
        self._server.bind(listening)
        self._running = True
        name = "klamm-" + self._what.replace(" ", "-")
        threading.Thread(target=self._run, args=(listening,), name=name, daemon=True).start()

    def stop(self) -> None:
        """Ends the server; blocks while requests end."""
        if self._running:
            self._running = False
            self._server.stop()
            self._ended.wait(self._server.grace_s + _MARGIN_S)

    def wait(self) -> None:
        """Returns once the server has ended."""
        self._ended.wait()

    def health(self) -> str | None:
        """Returns None while the server runs, else its problem."""
        return self._problem

    def _run(self, listening: socket.socket) -> None:
        try:
            with listening:
                self._server.run()
            if self._running:
                self._problem = f"the server of {self._what} has ended"
        except Exception as error:  # this service is unavailable; the process continues
            self._problem = f"the server of {self._what} has ended: {error!r}"
            log.exception("the server of %s has ended", self._what)
        finally:
            self._ended.set()


HEAD_S: Final = 30.0
"""How long a connection may take to send a request's head. Between two requests uvicorn waits for 5 s."""


def _protocol(head_s: float) -> type[asyncio.Protocol]:
    """Returns uvicorn's protocol that closes a connection on which no request begins, or whose head does not end."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[valid-type,misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._waits_since = self.loop.time()
            self._watch = self.loop.call_later(head_s, self._close_late)

        def connection_lost(self, exc: Exception | None) -> None:
            self._watch.cancel()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            self._waits_since = self.loop.time()
            super().on_response_complete()

        def _close_late(self) -> None:
            late = self._waits_since + head_s - self.loop.time()
            if self.cycle is not None and not self.cycle.response_complete:
                late = head_s
            if late <= 0:
                self.transport.close()
            else:
                self._watch = self.loop.call_later(late, self._close_late)

    return BoundedProtocol


class AsgiServer:
    """uvicorn, which the extra `web` installs; `ImportError` without it."""

    def __init__(self, app: ASGIApp, grace_s: int, head_s: float = HEAD_S) -> None:
        import uvicorn

        self.grace_s: float = grace_s
        self._sockets: list[socket.socket] = []
        self._server: uvicorn.Server = uvicorn.Server(
            uvicorn.Config(
                app, lifespan="off", log_config=None, access_log=False, server_header=False,
                timeout_graceful_shutdown=grace_s,
                http=_protocol(head_s),
            )
        )  # fmt: skip

    def bind(self, listening: socket.socket) -> None:
        self._sockets = [listening]

    def run(self) -> None:
        self._server.run(sockets=self._sockets)

    def stop(self) -> None:
        self._server.should_exit = True


PAGE_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Of each page that a service shows: it loads nothing from elsewhere, and is in no frame."""


@cache
def page_style() -> str:
    """Returns the CSS of the pages that services show."""
    return resources.files(__package__).joinpath("page.css").read_text()


class CountedApp:
    """An ASGI application that counts the answers of another one by their status."""

    def __init__(self, app: ASGIApp, requests: Counter[int]) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests[message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)
