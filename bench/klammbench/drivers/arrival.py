"""Waits until a broker of Kafka's protocol has stored the records that clients sent."""

from __future__ import annotations

import time
from typing import Self

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.core.records.partition import TopicPartition
from klammbench.systems.base import System

_LATEST = -1
_TIMEOUT_S = 30.0


class Arrival:
    """A context manager that is connected from the start, so that each check is one request."""

    def __init__(self, system: System, topic: str, partitions: int) -> None:
        self._topic = topic
        self._ends = {TopicPartition(topic, number): _LATEST for number in range(partitions)}
        self._client = ClusterClient(system.bootstrap, codecs=load_settings({}).codec_table())
        self._look()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def wait(self, records: int) -> float:
        """Returns the CLOCK_MONOTONIC time, in seconds, at which the partitions' end offsets added up to `records`.
        Raises `RuntimeError` if they never do."""
        deadline = time.monotonic() + _TIMEOUT_S
        while (there := self._look()) != records:
            if there > records or time.monotonic() > deadline:
                raise RuntimeError(f"{self._topic} has {there} records, expected {records}")
            time.sleep(0.002)
        return time.monotonic()

    def _look(self) -> int:
        return sum(offset for offset, _ in self._client.list_offsets(self._ends).values())
