"""Which brokers hold which partition: Kafka's rack-unaware round robin (`AdminUtils.assignReplicasToBrokers`)."""

from __future__ import annotations

from collections.abc import Sequence

from klamm.core.errors import BrokerError, ErrorCode


def assign_replicas(
    brokers: Sequence[int], first_partition: int, count: int, replication_factor: int, start: int
) -> dict[int, tuple[int, ...]]:
    """Replicas by partition number. First replicas go round from `start` (an index, any number); the others follow at
    a distance that grows with every round, so that one broker's followers are spread over all.

    `BrokerError` INVALID_REPLICATION_FACTOR when there are too few brokers or the factor is below 1.
    """
    if replication_factor < 1:
        raise BrokerError(ErrorCode.invalid_replication_factor, f"{replication_factor} is below 1")
    if replication_factor > len(brokers):
        raise BrokerError(
            ErrorCode.invalid_replication_factor,
            f"{replication_factor} is more than the {len(brokers)} live broker(s)",
        )
    ordered = sorted(brokers)
    size = len(ordered)
    assigned = {}
    for number in range(first_partition, first_partition + count):
        first = (number + start) % size
        distance = start + number // size
        others = ((first + 1 + (distance + j) % (size - 1)) % size for j in range(replication_factor - 1))
        assigned[number] = (ordered[first], *(ordered[i] for i in others))
    return assigned
