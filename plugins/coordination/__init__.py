"""Built-in coordination: `zookeeper` (the default) and `embedded`, and the command `klamm zookeeper`.

Only the chosen one is imported: a broker loads kazoo or SQLite, not both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.plugin import Command, Provider, hookimpl

if TYPE_CHECKING:
    from klamm.plugin import Coordination

    from .embedded_config import EmbeddedConfig
    from .zookeeper_config import ZooKeeperConfig

__all__ = ["klamm_commands", "klamm_coordinations"]


def _zookeeper(config: ZooKeeperConfig) -> Coordination:
    from .zookeeper import ZooKeeperCoordination

    return ZooKeeperCoordination(config)


def _embedded(config: EmbeddedConfig) -> Coordination:
    from .embedded import EmbeddedCoordination

    return EmbeddedCoordination(config)


@hookimpl
def klamm_coordinations() -> Iterable[Provider[[], Coordination]]:
    """Registers `zookeeper` and `embedded`."""
    from .embedded_config import EmbeddedConfig  # here, so that `klamm --help` does not load them
    from .zookeeper_config import ZooKeeperConfig

    return [
        Provider("zookeeper", _zookeeper, ZooKeeperConfig, "Apache ZooKeeper, real sessions"),
        Provider("embedded", _embedded, EmbeddedConfig, "an SQLite file shared by the processes of one host"),
    ]


@hookimpl
def klamm_commands() -> Iterable[Command]:
    """Registers `klamm zookeeper`."""
    return [
        Command(
            "zookeeper",
            "klamm.plugins.coordination.zookeeper_command:zookeeper",
            "Run a real single-node ZooKeeper server for development.",
        )
    ]
