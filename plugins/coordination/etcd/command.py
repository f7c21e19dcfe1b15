"""`klamm etcd`: runs a real single-member server in the foreground, for development."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.core.cli.foreground import StopRequestedError, raise_on_stop_signals

from .server import EtcdServer


def etcd(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on, at 127.0.0.1.")] = 2379,
    data_dir: Annotated[Path, typer.Option(help="The directory of its data and log.")] = Path("etcd-data"),
) -> None:
    """Run a real etcd server for development, until Ctrl-C or SIGTERM."""
    raise_on_stop_signals()
    server = EtcdServer(data_dir, port, ends_with_parent=True)
    try:
        server.start()
        typer.echo(f"klamm etcd ready: {server.url}, data in {data_dir} (pid {server.pid}); Ctrl-C stops it")
        status = server.wait()
    except StopRequestedError:
        server.stop()
        typer.echo("etcd has stopped")
        return
    typer.echo(f"etcd ended by itself with status {status}; see {data_dir / 'etcd.log'}", err=True)
    raise typer.Exit(1)
