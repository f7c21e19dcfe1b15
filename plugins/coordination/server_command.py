"""`klamm zookeeper` and `klamm etcd`: a real server in the foreground, for development."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.core.cli.foreground import StopRequestedError, raise_on_stop_signals
from klamm.core.cli.output import say
from klamm.core.java import find_java

from .local_server import LocalServer

Port = Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on, at 127.0.0.1.")]
DataDir = Annotated[Path, typer.Option(help="The directory of its data and log.")]


def zookeeper(port: Port = 2181, data_dir: DataDir = Path("zookeeper-data")) -> None:
    """Run a real ZooKeeper server for development, until Ctrl-C or SIGTERM."""
    from .zookeeper.jars import announcement
    from .zookeeper.server import ZooKeeperServer

    find_java()  # before anything is fetched for it
    if (line := announcement()) is not None:
        say(line, err=True)
    run_in_foreground("zookeeper", ZooKeeperServer(data_dir, port, ends_with_parent=True))


def etcd(port: Port = 2379, data_dir: DataDir = Path("etcd-data")) -> None:
    """Run a real etcd server for development, until Ctrl-C or SIGTERM."""
    from .etcd.server import EtcdServer

    run_in_foreground("etcd", EtcdServer(data_dir, port, ends_with_parent=True))


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
