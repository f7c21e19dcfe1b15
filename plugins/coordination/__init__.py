"""Built-in coordination: `zookeeper` (the default), `etcd` and `embedded`; `klamm zookeeper` and `klamm etcd`.

Only the chosen one is imported: a broker loads kazoo, urllib3 or SQLite, not all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.plugin import Command, Provider, hookimpl

if TYPE_CHECKING:
    from klamm.plugin import Coordination

    from .embedded.config import EmbeddedConfig
    from .etcd.config import EtcdConfig
    from .zookeeper.config import ZooKeeperConfig


def _zookeeper(config: ZooKeeperConfig) -> Coordination:
    from .zookeeper.coordination import ZooKeeperCoordination

    return ZooKeeperCoordination(config)


def _etcd(config: EtcdConfig) -> Coordination:
    from .etcd.coordination import EtcdCoordination

    return EtcdCoordination(config)


def _embedded(config: EmbeddedConfig) -> Coordination:
    from .embedded.coordination import EmbeddedCoordination

    return EmbeddedCoordination(config)


@hookimpl
def klamm_coordinations() -> Iterable[Provider[[], Coordination]]:
    """Registers `zookeeper`, `etcd` and `embedded`."""
    here = "klamm.plugins.coordination"
    return [
        Provider(
            "zookeeper", _zookeeper, f"{here}.zookeeper.config:ZooKeeperConfig", "Apache ZooKeeper, real sessions"
        ),
        Provider("etcd", _etcd, f"{here}.etcd.config:EtcdConfig", "an etcd cluster, 3.4 or newer"),
        Provider(
            "embedded",
            _embedded,
            f"{here}.embedded.config:EmbeddedConfig",
            "an SQLite file shared by the processes of one host",
        ),
    ]


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Registers `klamm zookeeper` and `klamm etcd`."""
    return [
        Command(
            "zookeeper",
            "klamm.plugins.coordination.server_command:zookeeper",
            "Run a real single-node ZooKeeper server for development.",
        ),
        Command(
            "etcd",
            "klamm.plugins.coordination.server_command:etcd",
            "Run a real single-member etcd server for development.",
        ),
    ]
