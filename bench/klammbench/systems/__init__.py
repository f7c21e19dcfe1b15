"""The systems by name: each value takes a data folder and returns the system, not started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from klammbench.systems.activemq import activemq
from klammbench.systems.base import System
from klammbench.systems.clusters import kafka_cluster, klamm_cluster
from klammbench.systems.kafka import kafka_default, kafka_tuned
from klammbench.systems.klamm import klamm_audited, klamm_embedded, klamm_zookeeper
from klammbench.systems.rabbitmq import rabbitmq_classic, rabbitmq_streams

SYSTEMS: dict[str, Callable[[Path], System]] = {
    "klamm": klamm_zookeeper,
    "klamm-embedded": klamm_embedded,
    "klamm-audited": klamm_audited,
    "kafka": kafka_default,
    "kafka-tuned": kafka_tuned,
    "klamm-cluster": klamm_cluster,
    "kafka-cluster": kafka_cluster,
    "rabbitmq": rabbitmq_classic,
    "rabbitmq-streams": rabbitmq_streams,
    "activemq": activemq,
}
