"""A real ZooKeeper for tests, one for the whole run, and the coordinations on which the contract suites run.

`tests/conftest.py` registers the fixtures. Each test gets its own chroot or file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import pytest

from klamm.core.errors import CoordinationError
from klamm.core.interfaces.coordination import Coordination, CoordinationUnavailableError, NodeExistsError
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klamm.plugins.coordination.embedded.tree import Clocks, connect
from klamm.plugins.coordination.zookeeper.config import ZooKeeperConfig
from klamm.plugins.coordination.zookeeper.coordination import ZooKeeperCoordination
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klamm.testing.contracts import CoordinationUnderTest
from klammtest.etcd import EtcdCase
from klammtest.made_coordinations import MadeCoordinations
from klammtest.ports import free_port
from klammtest.replicated.sessions import close_session
from klammtest.waiting import eventually


class CoordinationCase(CoordinationUnderTest, Protocol):
    """One implementation under test, on an empty tree; closes the coordinations that it made."""

    name: str

    def section(self) -> dict[str, str]:
        """Returns the section `coordination` of a configuration, for a broker on the same tree."""
        ...

    def close(self) -> None: ...


class EmbeddedCase(MadeCoordinations[EmbeddedCoordination]):
    name = "embedded"

    def __init__(self, folder: Path) -> None:
        self._file = folder / "coordination.db"
        super().__init__()

    def make(self, session_timeout_ms: int = 10_000, clocks: Clocks | None = None) -> EmbeddedCoordination:
        config = EmbeddedConfig.model_validate({"path": self._file, "session.timeout.ms": session_timeout_ms})
        made = EmbeddedCoordination(config, clocks)
        self.made.append(made)
        return made

    def section(self) -> dict[str, str]:
        return {"plugin": "embedded", "path": str(self._file)}

    def expire(self, coordination: Coordination) -> None:
        assert isinstance(coordination, EmbeddedCoordination)
        before = coordination.session_id
        other = self.open()

        def expired() -> bool:
            self._make_late(before)
            for heartbeat in (coordination._heartbeat, other._heartbeat):
                if heartbeat is not None:
                    heartbeat.run_now()
            return coordination.session_id != before

        eventually(expired, "expiry of an embedded session")
        other.close()

    def _make_late(self, session_id: int) -> None:
        """Makes the last heartbeat of a session an old one, until its process sends the next."""
        with closing(connect(self._file)) as db:
            db.execute("UPDATE sessions SET renewed_ms = renewed_ms - timeout_ms WHERE id = ?", (session_id,))


class ZooKeeperAddress(Protocol):
    """A server or an ensemble."""

    @property
    def connect(self) -> str:
        """The value for `zookeeper.connect`."""
        ...

    @property
    def port(self) -> int:
        """The port of a server of it."""
        ...


class ZooKeeperCase(MadeCoordinations[ZooKeeperCoordination]):
    name = "zookeeper"

    def __init__(self, server: ZooKeeperAddress, request_timeout_ms: int | None = None) -> None:
        self.server = server
        self._connect = f"{server.connect}/klamm-test/{uuid4().hex}"
        self._request_timeout_ms = request_timeout_ms
        super().__init__()

    def make(self, session_timeout_ms: int = 10_000) -> ZooKeeperCoordination:
        config = ZooKeeperConfig.model_validate(
            {
                "zookeeper.connect": self._connect,
                "zookeeper.session.timeout.ms": session_timeout_ms,
                "zookeeper.connection.timeout.ms": self._request_timeout_ms,
            }
        )
        made = ZooKeeperCoordination(config)
        self.made.append(made)
        return made

    def section(self) -> dict[str, str]:
        return {"plugin": "zookeeper", "zookeeper.connect": self._connect}

    def expire(self, coordination: Coordination) -> None:
        assert isinstance(coordination, ZooKeeperCoordination)
        session = coordination._session
        assert session is not None
        client_id = session._client.client_id

        def expired() -> bool:
            # The first client reconnects at once and takes its session back, so the second must be quick or try again.
            # If it reconnects to a follower while the session is being closed, it is not told: the follower answers its
            # pings, reads and syncs, and only a write, which the leader judges, shows that the session is over.
            close_session(self.server.port, *client_id)
            with suppress(CoordinationError):
                session.call("/none", lambda zk: zk.delete_async("/klamm-test-none"), repeatable=True)
            return bool(
                coordination.session_id != client_id[0]
            )  # 0, unless a listener has opened the next session already

        eventually(expired, "expiry of a ZooKeeper session")


def found_or_made(coordination: Coordination, path: str) -> bool:
    """Creates a path; returns False while nobody answers. A write that nobody has answered may be found later."""
    try:
        coordination.create(path)
    except NodeExistsError:
        return True
    except CoordinationUnavailableError:
        return False
    return True


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server shared by all tests that do not stop it."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), free_port()) as server:
        yield server


@pytest.fixture(params=["embedded", "zookeeper", "etcd"])
def coordination_case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CoordinationCase]:
    """Yields each implementation in turn."""
    case: CoordinationCase
    if request.param == "embedded":
        case = EmbeddedCase(tmp_path)
    elif request.param == "etcd":
        case = EtcdCase(request.getfixturevalue("etcd_server"))
    else:
        case = ZooKeeperCase(request.getfixturevalue("zookeeper_server"))
    yield case
    case.close()


@pytest.fixture
def embedded_case(tmp_path: Path) -> Iterator[EmbeddedCase]:
    case = EmbeddedCase(tmp_path)
    yield case
    case.close()


@pytest.fixture
def coordination(coordination_case: CoordinationCase) -> Coordination:
    """Yields a started coordination of each implementation in turn."""
    return coordination_case.open()
