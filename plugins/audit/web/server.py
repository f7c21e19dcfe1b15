"""`klamm audit serve`: serves the pages on a separate port, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from klamm.core.cli.foreground import StopRequestedError, raise_on_stop_signals
from klamm.core.errors import ConfigError

from .app import make_app
from .source import Source

GRACE_S: Final = 5
"""How long requests may take to end once the server was told to stop."""


def serve(source: Source, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; port 0 takes a free one. `ConfigError` where the address cannot be taken."""
    listening = _listen(host, port)
    raise_on_stop_signals()
    config = uvicorn.Config(
        make_app(source),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    shown = f"[{host}]" if ":" in host else host
    try:
        with listening:
            say(f"klamm audit serve ready on http://{shown}:{listening.getsockname()[1]}/")
            uvicorn.Server(config).run(sockets=[listening])
    except StopRequestedError:  # uvicorn has stopped cleanly, and raises the signal again
        pass


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise ConfigError(f"--port: cannot listen on {host}:{port}: {error.strerror or error}") from error
