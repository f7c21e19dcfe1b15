"""`klamm hdfs`: a NameNode and a DataNode in the foreground, for development."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klamm.core.cli.foreground import StopRequestedError, raise_on_stop_signals
from klamm.core.cli.output import say

from .jars import JARS
from .server import HdfsPorts, HdfsServer

_DEFAULT = HdfsPorts()


def _port(help_: str) -> typer.models.OptionInfo:
    return typer.Option(min=1, max=65535, help=help_)  # type: ignore[no-any-return]


def hdfs(
    port: Annotated[int, _port("The NameNode's port, on 127.0.0.1: the one in hdfs://127.0.0.1:PORT/.")] = (
        _DEFAULT.name_node
    ),
    http_port: Annotated[int, _port("The NameNode's port for WebHDFS.")] = _DEFAULT.name_node_http,
    data_port: Annotated[int, _port("The DataNode's port for blocks.")] = _DEFAULT.data_node,
    data_http_port: Annotated[int, _port("The DataNode's port for WebHDFS.")] = _DEFAULT.data_node_http,
    data_ipc_port: Annotated[int, _port("The DataNode's port for control.")] = _DEFAULT.data_node_ipc,
    data_dir: Annotated[Path, typer.Option(help="The directory of HDFS's data and logs.")] = Path("hdfs-data"),
) -> None:
    """Run a real HDFS for development, one NameNode and one DataNode, until Ctrl-C or SIGTERM."""
    raise_on_stop_signals()
    ports = HdfsPorts(port, http_port, data_port, data_http_port, data_ipc_port)
    server = HdfsServer(data_dir, ports, ends_with_parent=True)
    try:
        if (line := JARS.announcement()) is not None:
            say(line, err=True)
        server.start()
        say(
            f"klamm hdfs ready: {server.uri}, WebHDFS at {server.web_url}, data in {data_dir}, Hadoop's configuration "
            f"in {server.conf_dir}; Ctrl-C stops it"
        )
        ended = server.wait()
    except StopRequestedError:
        server.stop()
        say("HDFS has stopped")
        return
    server.stop()
    say(ended, err=True)
    raise typer.Exit(1)
