"""Built-in coordination: `zookeeper` (the default) and `embedded`, and the command `klamm zookeeper`."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.hookspecs import hookimpl
from klamm.core.seams.coordination import Coordination
from klamm.core.seams.provider import Provider
from klamm.plugins.coordination.embedded import EmbeddedConfig, EmbeddedCoordination


@hookimpl
def klamm_coordinations() -> Iterable[Provider[Coordination]]:
    return [
        Provider(
            "embedded", EmbeddedCoordination, EmbeddedConfig, "an SQLite file shared by the processes of one host"
        ),
    ]
