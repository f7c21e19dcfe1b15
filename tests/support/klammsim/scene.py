"""The constants of every schedule: one partition on three brokers."""

from __future__ import annotations

from typing import Final

from klamm.core.cluster.tree import paths
from klamm.core.records.partition import TopicPartition

TP: Final = TopicPartition("t", 0)
STATE_PATH: Final = paths.partition_state(TP.topic, TP.partition)
REPLICAS: Final = (0, 1, 2)
BROKERS: Final = len(REPLICAS)
RECOVERED: Final = "/brokers/recovered"
SESSION_TIMEOUT: Final = 120.0
"""Of a session whose process has ended: within it the tree ends the session."""
