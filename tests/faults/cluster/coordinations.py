"""The coordination of a campaign's cluster: a real ZooKeeper, three of them, a real etcd, or the file of one host.

Where each broker has a proxy of its own, its session with ZooKeeper can be ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from klamm.plugins.coordination.etcd.server import EtcdServer
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammtest.ports import free_port
from klammtest.proxies.tcp import TcpProxy
from klammtest.replicated import network
from klammtest.replicated.cluster import SESSION_MS
from klammtest.replicated.sessions import SessionProxy
from klammtest.zookeeper_ensemble import ZooKeeperEnsemble

ETCD_TOOLS = ("etcd=etcd-server",)
_ZOOKEEPER_PORT = 2181
_PATIENT_MS = 20_000
"""A broker that starts on a busy machine waits for the coordination."""
_SEEN_MS = 30_000
"""The session of this process, which only reads."""


class Server(Protocol):
    """The one server of a coordination."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Ends it with SIGTERM."""
        ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class CoordinationSite:
    """`section` is for the brokers, `sections` for a broker that has another one, `seen` for this process."""

    section: Mapping[str, Any]
    seen: Mapping[str, Any]
    server: Server | None = None
    ensemble: ZooKeeperEnsemble | None = None
    sections: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    sessions: Mapping[int, SessionProxy] = field(default_factory=dict)
    etcd: str = ""
    """The URL of etcd, if it is one."""


@contextmanager
def coordination_for(kind: str, folder: Path, net: network.Network | None, proxies: int) -> Iterator[CoordinationSite]:
    """Runs the coordination `kind`: zookeeper, ensemble, etcd or embedded. In a network, brokers reach ZooKeeper at
    `network.COORDINATION`. `proxies`: how many brokers have a proxy of their own to it.
    """
    with ExitStack() as stack:
        if kind == "embedded":
            section = {"plugin": kind, "path": str(folder / "coordination.db"), "session.timeout.ms": SESSION_MS}
            yield CoordinationSite(section, {**section, "session.timeout.ms": _SEEN_MS})
        elif kind == "etcd":
            etcd = stack.enter_context(EtcdServer(folder / "etcd", free_port()))
            yield CoordinationSite(_etcd(etcd.url, SESSION_MS), _etcd(etcd.url, _SEEN_MS), server=etcd, etcd=etcd.url)
        elif kind == "ensemble":
            ensemble = stack.enter_context(ZooKeeperEnsemble(folder / "zookeeper"))
            yield CoordinationSite(
                _zookeeper(ensemble.connect, SESSION_MS), _zookeeper(ensemble.connect, _SEEN_MS), ensemble=ensemble
            )
        else:
            server = stack.enter_context(ZooKeeperServer(folder / "zookeeper", free_port()))
            connect = server.connect
            if net is not None and not proxies:
                stack.enter_context(TcpProxy(_ZOOKEEPER_PORT, server.port, host=network.COORDINATION))
                connect = f"{network.COORDINATION}:{_ZOOKEEPER_PORT}"
            sessions = {i: stack.enter_context(_proxy(i, server.port, net)) for i in range(proxies)}
            yield CoordinationSite(
                _zookeeper(connect, SESSION_MS),
                _zookeeper(server.connect, _SEEN_MS),
                server=server,
                sections={i: _zookeeper(proxy.bootstrap, SESSION_MS) for i, proxy in sessions.items()},
                sessions=sessions,
            )


def _proxy(i: int, port: int, net: network.Network | None) -> SessionProxy:
    if net is None:
        return SessionProxy(free_port(), port)
    return SessionProxy(_ZOOKEEPER_PORT + i, port, network.COORDINATION)


def _zookeeper(connect: str, session_ms: int) -> dict[str, Any]:
    return {
        "plugin": "zookeeper",
        "zookeeper.connect": f"{connect}/klamm",
        "zookeeper.session.timeout.ms": session_ms,
        "zookeeper.connection.timeout.ms": _PATIENT_MS,
    }


def _etcd(url: str, session_ms: int) -> dict[str, Any]:
    return {
        "plugin": "etcd",
        "etcd.endpoints": url,
        "etcd.session.timeout.ms": session_ms,
        "etcd.request.timeout.ms": _PATIENT_MS,
    }
