"""Assignors of classic groups, by Kafka's names. The leader of a group computes the assignment of all members with
one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...records.partition import TopicPartition
from .assignment import Stream, ranges

Subscriptions = Mapping[str, Sequence[str]]
"""Topics by member id."""
Partitions = Mapping[str, Sequence[int]]
"""Partition numbers by topic."""
Assignment = dict[str, list[TopicPartition]]


def range_assignor(subscriptions: Subscriptions, partitions: Partitions) -> Assignment:
    """Kafka's RangeAssignor: divides each topic's partitions into contiguous ranges over the sorted members."""
    shares: Assignment = {member: [] for member in subscriptions}
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        streams = [Stream(member, 0) for member, topics in subscriptions.items() if topic in topics]
        for stream, numbers in ranges(partitions.get(topic, ()), streams).items():
            shares[stream.member] += [TopicPartition(topic, number) for number in numbers]
    return shares


def roundrobin_assignor(subscriptions: Subscriptions, partitions: Partitions) -> Assignment:
    """Kafka's RoundRobinAssignor: assigns all partitions in order, each to the next of the sorted members that
    subscribes to its topic."""
    shares: Assignment = {member: [] for member in subscriptions}
    members = sorted(subscriptions)
    index = 0
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        for number in sorted(partitions.get(topic, ())):
            while topic not in subscriptions[members[index % len(members)]]:
                index += 1
            shares[members[index % len(members)]].append(TopicPartition(topic, number))
            index += 1
    return shares


ASSIGNORS: Mapping[str, Callable[[Subscriptions, Partitions], Assignment]] = {
    "range": range_assignor,
    "roundrobin": roundrobin_assignor,
}
