"""The assignment of partitions to the streams of a registry group: the Kafka paper's algorithm 1 (section 3.2).

It is a pure function of data that all members read, so every member computes the same result without communication: the
sorted partitions are divided into contiguous ranges, one for each of the sorted streams; the first streams get one more
partition if the division leaves a remainder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...records.partition import TopicPartition


class Stream(NamedTuple):
    """One stream of a member; a member has as many per topic as it subscribed with. Streams sort by member, then
    number."""

    member: str
    number: int


def ranges(partitions: Iterable[int], streams: Iterable[Stream]) -> dict[Stream, list[int]]:
    """Returns each stream's partitions; streams beyond the number of partitions get none."""
    ordered_partitions, ordered_streams = sorted(partitions), sorted(streams)
    if not ordered_streams:
        return {}
    share, remainder = divmod(len(ordered_partitions), len(ordered_streams))
    shares: dict[Stream, list[int]] = {}
    start = 0
    for index, stream in enumerate(ordered_streams):
        end = start + share + (index < remainder)
        shares[stream] = ordered_partitions[start:end]
        start = end
    return shares


def assign(
    member: str, subscriptions: Mapping[str, Mapping[str, int]], partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, int]:
    """Returns the partitions of one member, each with the number of the stream that reads it.

    `subscriptions` gives each member's number of streams by topic, `partitions` each topic's partition numbers.
    """
    mine: dict[TopicPartition, int] = {}
    for topic in sorted(subscriptions.get(member, {})):
        streams = [Stream(name, n) for name, topics in subscriptions.items() for n in range(topics.get(topic, 0))]
        for stream, numbers in ranges(partitions.get(topic, ()), streams).items():
            if stream.member == member:
                mine |= {TopicPartition(topic, number): stream.number for number in numbers}
    return mine
