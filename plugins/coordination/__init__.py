"""Built-in coordination: `zookeeper` (the default) and `embedded`, and the command `klamm zookeeper`."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.hookspecs import hookimpl
from klamm.core.seams.command import Command
from klamm.core.seams.coordination import Coordination
from klamm.core.seams.provider import Provider
from klamm.plugins.coordination.embedded import EmbeddedConfig, EmbeddedCoordination
from klamm.plugins.coordination.zookeeper import ZooKeeperCoordination
from klamm.plugins.coordination.zookeeper_config import ZooKeeperConfig


@hookimpl
def klamm_coordinations() -> Iterable[Provider[Coordination]]:
    return [
        Provider("zookeeper", ZooKeeperCoordination, ZooKeeperConfig, "Apache ZooKeeper, real sessions"),
        Provider(
            "embedded", EmbeddedCoordination, EmbeddedConfig, "an SQLite file shared by the processes of one host"
        ),
    ]


@hookimpl
def klamm_commands() -> Iterable[Command]:
    return [
        Command(
            "zookeeper",
            "klamm.plugins.coordination.zookeeper_command:zookeeper",
            "Run a real single-node ZooKeeper server for development.",
        )
    ]
