"""A real etcd for tests, one for the whole run. `tests/conftest.py` registers the fixture. Each test gets its own
prefix.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from klamm.core.interfaces.coordination import Coordination
from klamm.plugins.coordination.etcd.config import EtcdConfig
from klamm.plugins.coordination.etcd.coordination import EtcdCoordination
from klamm.plugins.coordination.etcd.gateway import EtcdGateway
from klamm.plugins.coordination.etcd.server import EtcdServer
from klammtest.made_coordinations import MadeCoordinations
from klammtest.ports import free_port
from klammtest.waiting import eventually

MISSING = "etcd is not installed (system package etcd-server)"
needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason=MISSING)


class EtcdCase(MadeCoordinations[EtcdCoordination]):
    """A `klammtest.zookeeper.CoordinationCase`. `endpoints`: where its clients connect, if not at the server;
    `more`: further keys."""

    name = "etcd"

    def __init__(
        self, server: EtcdServer, endpoints: str | None = None, more: Mapping[str, object] | None = None
    ) -> None:
        self.server = server
        self._keys = {
            "etcd.endpoints": endpoints or server.url,
            "etcd.prefix": f"/klamm-test/{uuid4().hex}",
            **(more or {}),
        }
        super().__init__()

    def make(self, session_timeout_ms: int = 10_000) -> EtcdCoordination:
        config = EtcdConfig.model_validate({**self._keys, "etcd.session.timeout.ms": session_timeout_ms})
        self.made.append(EtcdCoordination(config))
        return self.made[-1]

    def section(self) -> dict[str, str]:
        return {"plugin": "etcd", **{key: str(value) for key, value in self._keys.items()}}

    def expire(self, coordination: Coordination) -> None:
        """Revokes the lease, which etcd does itself when it is not kept alive."""
        before = coordination.session_id
        gateway = EtcdGateway(EtcdConfig.model_validate({"etcd.endpoints": self.server.url}))
        gateway.call("lease/revoke", {"ID": str(before)}, "test", repeatable=True)
        gateway.close()
        # Another id, if a listener has opened the next session already.
        eventually(lambda: coordination.session_id != before, "expiry of an etcd session")


@contextmanager
def etcd_cluster(folder: Path) -> Iterator[list[EtcdServer]]:
    """Yields three members of one cluster; each may be killed and started again."""
    peers = {f"m{number}": f"http://127.0.0.1:{free_port()}" for number in range(3)}
    initial = ",".join(f"{name}={url}" for name, url in peers.items())
    servers = [
        EtcdServer(
            folder / name,
            free_port(),
            flags=(
                f"--name={name}",
                f"--listen-peer-urls={url}",
                f"--initial-advertise-peer-urls={url}",
                f"--initial-cluster={initial}",
            ),
        )
        for name, url in peers.items()
    ]
    try:
        with ThreadPoolExecutor(len(servers)) as starting:  # none of them answers alone
            for started in [starting.submit(server.start) for server in servers]:
                started.result()
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A server shared by all tests that do not stop it."""
    if shutil.which("etcd") is None:
        pytest.skip(MISSING)
    with EtcdServer(tmp_path_factory.mktemp("etcd"), free_port()) as server:
        yield server
