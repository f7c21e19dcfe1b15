"""The same warm-up for every broker, so that no JVM is measured while it compiles.

It takes about 12 s for each start of a system, less where its `warm_s` is less: large batches, one-message requests, a
producing and a consuming client.
"""

from __future__ import annotations

from klammbench.drivers import confluent
from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.topics import topic_on
from klammbench.systems.base import System

PARTITIONS = 12
_WARM: dict[str, list[int]] = {}
"""Ids of warm processes, by system name."""


def warm(system: System) -> None:
    if _WARM.get(system.name) == (pids := system.pids()):
        return
    with topic_on(system, "warm-small", PARTITIONS) as topic:
        drive(system.bootstrap, topic, PARTITIONS, Batch(1), Load(8, depth=2, warm_s=0, measure_s=system.warm_s))
    with topic_on(system, "warm-large", PARTITIONS) as topic:
        drive(
            system.bootstrap, topic, PARTITIONS, Batch.of_size(65_536),
            Load(4, depth=5, warm_s=0, measure_s=system.warm_s, max_bytes=4e9),
        )  # fmt: skip
    with topic_on(system, "warm-client", PARTITIONS) as topic:
        confluent.run(
            confluent.Task("produce", system.bootstrap, topic, PARTITIONS, messages=int(60_000 * system.warm_s))
        )
        confluent.run(confluent.Task("consume", system.bootstrap, topic, PARTITIONS))
    _WARM[system.name] = pids
