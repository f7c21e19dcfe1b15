"""The replica assignment of partitions: Kafka's rack-unaware round robin (`AdminUtils.assignReplicasToBrokers`), or one
that an administrator gives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ..errors import BrokerError, ErrorCode

Replicas = Mapping[int, tuple[int, ...]]
"""Broker ids by partition number."""


def assign_replicas(
    brokers: Sequence[int], first_partition: int, count: int, replication_factor: int, start: int
) -> dict[int, tuple[int, ...]]:
    """Returns the replicas by partition number.

    First replicas are assigned to the brokers in turn, from the index `start` (any number). The other replicas follow
    at a distance that grows with every round, so that the followers of one broker's partitions are spread over all
    brokers. Raises `BrokerError` INVALID_REPLICATION_FACTOR if there are too few brokers or the factor is below 1.
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


def checked_assignment(
    brokers: Collection[int],
    given: Iterable[tuple[int, Sequence[int]]],
    first_partition: int = 0,
    replication_factor: int | None = None,
) -> dict[int, tuple[int, ...]]:
    """Returns the replicas by partition number that an administrator gave, after Kafka's checks.

    Raises `BrokerError` INVALID_REPLICA_ASSIGNMENT unless the partitions are numbered consecutively from
    `first_partition`, each is given once and has as many replicas as the others (`replication_factor`, if the topic has
    one already), and no partition names a broker that is not live, or one broker twice.
    """
    assigned: dict[int, tuple[int, ...]] = {}
    for number, replicas in given:
        if number in assigned:
            raise _wrong(f"partition {number} is assigned more than once")
        if not replicas:
            raise _wrong(f"partition {number} has no replicas")
        for broker in replicas:
            if broker not in brokers:
                raise _wrong(f"partition {number} names broker {broker}, which is not registered")
        if len(set(replicas)) < len(replicas):
            raise _wrong(f"partition {number} names a broker more than once")
        if replication_factor not in (None, len(replicas)):
            raise _wrong(f"partition {number} has {len(replicas)} replicas, others have {replication_factor}")
        replication_factor = len(replicas)
        assigned[number] = tuple(replicas)
    if set(assigned) != set(range(first_partition, first_partition + len(assigned))):
        raise _wrong(f"partitions {sorted(assigned)} are not numbered consecutively from {first_partition}")
    return assigned


def _wrong(why: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_replica_assignment, why)
