"""`klamm zookeeper`: runs a real single-node server in the foreground, for development."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.core.cli.foreground import StopRequestedError, raise_on_stop_signals

from .zookeeper_server import ZooKeeperServer


def zookeeper(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on, at 127.0.0.1.")] = 2181,
    data_dir: Annotated[Path, typer.Option(help="The directory of its data and log.")] = Path("zookeeper-data"),
) -> None:
    """Run a real ZooKeeper server for development, until Ctrl-C or SIGTERM."""
    raise_on_stop_signals()
    server = ZooKeeperServer(data_dir, port, ends_with_parent=True)
    try:
        server.start()
        typer.echo(f"klamm zookeeper ready: {server.connect}, data in {data_dir} (pid {server.pid}); Ctrl-C stops it")
        status = server.wait()
    except StopRequestedError:
        server.stop()
        typer.echo("ZooKeeper has stopped")
        return
    typer.echo(f"ZooKeeper ended by itself with status {status}; see {data_dir / 'zookeeper.log'}", err=True)
    raise typer.Exit(1)
