"""`klamm zookeeper`: runs a real single-node server in the foreground, for development."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.core.cli.output import say
from klamm.core.java import find_java

from ..server_command import run_in_foreground
from .jars import announcement
from .server import ZooKeeperServer


def zookeeper(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on, at 127.0.0.1.")] = 2181,
    data_dir: Annotated[Path, typer.Option(help="The directory of its data and log.")] = Path("zookeeper-data"),
) -> None:
    """Run a real ZooKeeper server for development, until Ctrl-C or SIGTERM."""
    find_java()  # before anything is fetched for it
    if (line := announcement()) is not None:
        say(line, err=True)
    run_in_foreground("zookeeper", ZooKeeperServer(data_dir, port, ends_with_parent=True))
