"""Each coordination that a registry group works over: the embedded one and a real ZooKeeper."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from klammtest.members import CoordinationSpec

from klamm.plugins.coordination.zookeeper_server import ZooKeeperServer

SESSION_MS = 2_000


def free_port() -> int:
    """Below the range that clients' sockets are given, so that it stays free."""
    for port in range(21_000, 32_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no free port")


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), free_port()) as server:
        yield server


@pytest.fixture(params=["embedded", "zookeeper"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> CoordinationSpec:
    """An empty tree."""
    if request.param == "embedded":
        return embedded_spec(tmp_path)
    server: ZooKeeperServer = request.getfixturevalue("zookeeper")
    return zookeeper_spec(server)


def embedded_spec(folder: Path) -> CoordinationSpec:
    return {"plugin": "embedded", "config": {"path": str(folder / "tree.db"), "session.timeout.ms": SESSION_MS}}


def zookeeper_spec(server: ZooKeeperServer) -> CoordinationSpec:
    connect = f"{server.connect}/{uuid4().hex[:8]}"
    return {
        "plugin": "zookeeper",
        "config": {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": SESSION_MS},
    }
