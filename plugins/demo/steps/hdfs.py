"""Step 1, beside the cluster: a real HDFS, a NameNode and a DataNode, for the lake."""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass
from enum import StrEnum

from ..processes import KLAMM, Child, DemoError, Processes
from ..show import Show
from ..workspace import HdfsAddress, Workspace, free_port_run

START_S = 1200.0
"""The time-out of the start, which fetches missing jars."""
NOT_POSSIBLE = 2
"""The exit status of `klamm hdfs` on a machine without the jars and without Maven."""
_OPTIONS = ("--port", "--http-port", "--data-port", "--data-http-port", "--data-ipc-port")


class LakeFileSystem(StrEnum):
    """The file system to which the loads are published."""

    HDFS = "hdfs"
    FILE = "file"


@dataclass(frozen=True)
class StartingHdfs:
    """A starting `klamm hdfs`, and its address."""

    child: Child
    address: HdfsAddress


def start_hdfs(workspace: Workspace, processes: Processes) -> StartingHdfs:
    """Starts HDFS beside ZooKeeper and the broker, and returns at once."""
    first = free_port_run(len(_OPTIONS))
    address = HdfsAddress(*range(first, first + len(_OPTIONS)))
    ports = [word for option, port in zip(_OPTIONS, astuple(address), strict=True) for word in (option, str(port))]
    command = [*KLAMM, "hdfs", "--data-dir", str(workspace.hdfs_data), *ports]
    return StartingHdfs(processes.start("hdfs", command), address)


def await_hdfs(starting: StartingHdfs, workspace: Workspace, show: Show) -> Workspace:
    """Returns the workspace with its lake on HDFS; if HDFS is not available, the unchanged workspace, and a line says
    why. Raises `DemoError` if it should have started."""
    child, deadline = starting.child, time.monotonic() + START_S
    while "klamm hdfs ready" not in child.output():
        if child.process.poll() == NOT_POSSIBLE:
            show.say(f"no HDFS here, so the lake is on file: {child.last_line()}")
            return workspace
        child.check()
        if time.monotonic() > deadline:
            raise DemoError(f"HDFS did not start within {START_S:g} s; see {workspace.logs / 'hdfs.log'}")
        time.sleep(0.05)
    show.say(f"a NameNode and a DataNode run; the lake will be {starting.address.lake}")
    return workspace.with_lake_on(starting.address)


def served_by(workspace: Workspace) -> str | None:
    """Returns the command that starts the lake's HDFS again; None if the lake is a directory."""
    if workspace.hdfs is None:
        return None
    ports = f"--port {workspace.hdfs.name_node} --http-port {workspace.hdfs.name_node_http}"
    return f"klamm hdfs --data-dir {workspace.hdfs_data} {ports}"
