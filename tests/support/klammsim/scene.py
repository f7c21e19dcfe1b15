"""The constants of every schedule: one partition on three brokers; a fourth is there if it is reassigned."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from klamm.core.cluster.reassignment import ReplicaAssignment
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import TopicNode
from klamm.core.records.partition import TopicPartition

TP: Final = TopicPartition("t", 0)
STATE_PATH: Final = paths.partition_state(TP.topic, TP.partition)
TOPIC_PATH: Final = paths.topic(TP.topic)
REPLICAS: Final = (0, 1, 2)
ASSIGNMENT: Final = ReplicaAssignment(REPLICAS)
TICKS_PER_S: Final = 1_000.0
"""For the pauses of a broker."""
SESSION_TIMEOUT: Final = 120.0
"""Of a session whose process has ended: within it the tree ends the session."""


def encode_assignment(assignment: ReplicaAssignment) -> bytes:
    """Returns the topic's definition."""
    number = TP.partition
    return TopicNode(
        topic_id=UUID(int=1),
        partitions={number: assignment.replicas},
        adding_replicas={number: assignment.adding},
        removing_replicas={number: assignment.removing},
    ).encode()


def decode_assignment(data: bytes) -> ReplicaAssignment:
    node, number = TopicNode.decode(TOPIC_PATH, data), TP.partition
    return ReplicaAssignment(
        node.partitions[number], node.adding_replicas.get(number, ()), node.removing_replicas.get(number, ())
    )
