"""Each coordination that a registry group works over: the embedded one and a real ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammtest.clients.members import CoordinationSpec

SESSION_MS = 5_000
"""Tests wait for its end after a kill; a live member must not lose it by waiting for a processor."""


@pytest.fixture(params=["embedded", "zookeeper"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> CoordinationSpec:
    """An empty tree."""
    if request.param == "embedded":
        return {"plugin": "embedded", "config": {"path": str(tmp_path / "tree.db"), "session.timeout.ms": SESSION_MS}}
    server: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
    return zookeeper_spec(server)


def zookeeper_spec(server: ZooKeeperServer) -> CoordinationSpec:
    connect = f"{server.connect}/{uuid4().hex[:8]}"
    return {
        "plugin": "zookeeper",
        "config": {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": SESSION_MS},
    }
