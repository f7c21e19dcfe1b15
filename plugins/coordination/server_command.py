"""The part of `klamm zookeeper` and `klamm etcd` that does not depend on the server."""

from __future__ import annotations

import typer

from klamm.core.cli.foreground import StopRequestedError, raise_on_stop_signals
from klamm.core.cli.output import say

from .local_server import LocalServer


def run_in_foreground(command: str, server: LocalServer) -> None:
    """Runs the server until Ctrl-C or SIGTERM. Exits with 1 if it ends by itself."""
    raise_on_stop_signals()
    try:
        server.start()
        ready = f"klamm {command} ready: {server.address}, data in {server.data_dir} (pid {server.pid})"
        say(f"{ready}; Ctrl-C stops it")
        status = server.wait()
    except StopRequestedError:
        server.stop()
        say(f"{server.product} has stopped")
        return
    say(f"{server.product} ended by itself with status {status}; see {server.log}", err=True)
    raise typer.Exit(1)
