"""The replica assignment of partitions: Kafka's round robin (`AdminUtils.assignReplicasToBrokers`), spread over racks
(KIP-36), or one that an administrator gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest

from ..errors import BrokerError, ErrorCode
from ..records.partition import counted

Replicas = Mapping[int, tuple[int, ...]]
"""Broker ids by partition number."""


def assign_replicas(
    brokers: Sequence[int],
    first_partition: int,
    count: int,
    replication_factor: int,
    start: int,
    racks: Mapping[int, str | None] | None = None,
) -> dict[int, tuple[int, ...]]:
    """Returns the replicas by partition number.

    First replicas are assigned to the brokers in turn, from the index `start` (any number). The other replicas follow
    at a distance that grows with every round, so that the followers of one broker's partitions are spread over all
    brokers. With two or more `racks` (by broker id; brokers without one form a rack of their own, as in KRaft) the
    replicas of a partition lie in as many racks as possible. Raises `BrokerError` INVALID_REPLICATION_FACTOR if there
    are too few brokers or the factor is below 1.
    """
    if replication_factor < 1:
        raise BrokerError(
            ErrorCode.invalid_replication_factor, f"the replication factor {replication_factor} is below 1"
        )
    if replication_factor > len(brokers):
        raise BrokerError(
            ErrorCode.invalid_replication_factor,
            f"the replication factor {replication_factor} is larger than the number of live brokers, {len(brokers)}",
        )
    rack_of = {broker: (racks or {}).get(broker) or "" for broker in brokers}
    ordered = _alternating(rack_of)
    return {
        number: _replicas(ordered, rack_of, number, replication_factor, start)
        for number in range(first_partition, first_partition + count)
    }


def _alternating(rack_of: Mapping[int, str]) -> list[int]:
    """Returns the brokers in an order in which neighbours are in different racks, as far as the racks are equally
    large; by id if there is only one.
    """
    members: dict[str, list[int]] = {}
    for broker in sorted(rack_of):
        members.setdefault(rack_of[broker], []).append(broker)
    rounds = zip_longest(*(members[rack] for rack in sorted(members)))
    return [broker for one_round in rounds for broker in one_round if broker is not None]


def _replicas(ordered: list[int], rack_of: Mapping[int, str], number: int, factor: int, start: int) -> tuple[int, ...]:
    """Returns one partition's replicas: the first by turn, then each time the next broker of the racks that have the
    fewest of them so far.
    """
    size = len(ordered)
    first = (number + start) % size
    distance = (start + number // size) * len(set(rack_of.values()))
    waiting = [ordered[(first + 1 + (distance + j) % (size - 1)) % size] for j in range(size - 1)]
    chosen = [ordered[first]]
    used = Counter({rack_of[chosen[0]]: 1})
    while len(chosen) < factor:
        follower = min(waiting, key=lambda broker: used[rack_of[broker]])  # the first of several
        waiting.remove(follower)
        chosen.append(follower)
        used[rack_of[follower]] += 1
    return tuple(chosen)


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
            raise _wrong(
                f"partition {number} has {counted(len(replicas), 'replica')}, others have {replication_factor}"
            )
        replication_factor = len(replicas)
        assigned[number] = tuple(replicas)
    if set(assigned) != set(range(first_partition, first_partition + len(assigned))):
        raise _wrong(f"partitions {sorted(assigned)} are not numbered consecutively from {first_partition}")
    return assigned


def _wrong(why: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_replica_assignment, why)
