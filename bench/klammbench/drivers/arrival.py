"""Whether a broker of Kafka's protocol has what clients sent to it."""

from __future__ import annotations

import time

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.core.records.partition import TopicPartition
from klammbench.systems.base import System

_LATEST = -1
_TIMEOUT_S = 30.0


def await_records(system: System, topic: str, partitions: int, records: int) -> float:
    """Seconds until the partitions' ends together are `records`; `RuntimeError` when they never are."""
    ends = {TopicPartition(topic, number): _LATEST for number in range(partitions)}
    with ClusterClient(system.bootstrap, codecs=load_settings({}).codec_table()) as client:
        client.list_offsets(ends)  # connected, and leaders known
        begin = time.perf_counter()
        while (there := sum(offset for offset, _ in client.list_offsets(ends).values())) != records:
            if there > records or time.perf_counter() - begin > _TIMEOUT_S:
                raise RuntimeError(f"{there} records are in {topic}, not {records}")
            time.sleep(0.002)
        return time.perf_counter() - begin
