"""Which partitions each stream of a registry group reads: the Kafka paper's algorithm 1 (section 3.2).

A pure function of what all members see alike, so that each computes the same without talking to the others: sorted
partitions are cut into contiguous ranges, one for each of the sorted streams; the first streams get one more where
the division leaves a rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...records.partition import TopicPartition


class Stream(NamedTuple):
    """One share of a member: each member has as many per topic as it asked for. Sorted by member, then number."""

    member: str
    number: int


def ranges(partitions: Iterable[int], streams: Iterable[Stream]) -> dict[Stream, list[int]]:
    """Each stream's partitions; streams beyond the number of partitions get none."""
    ordered_partitions, ordered_streams = sorted(partitions), sorted(streams)
    if not ordered_streams:
        return {}
    share, rest = divmod(len(ordered_partitions), len(ordered_streams))
    shares: dict[Stream, list[int]] = {}
    start = 0
    for index, stream in enumerate(ordered_streams):
        end = start + share + (index < rest)
        shares[stream] = ordered_partitions[start:end]
        start = end
    return shares


def assign(
    member: str, subscriptions: Mapping[str, Mapping[str, int]], partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, int]:
    """The partitions of one member, each with the number of the stream that reads it.

    `subscriptions` gives each member's number of streams by topic, `partitions` each topic's partition numbers.
    """
    mine: dict[TopicPartition, int] = {}
    for topic in sorted(subscriptions.get(member, {})):
        streams = [Stream(name, n) for name, topics in subscriptions.items() for n in range(topics.get(topic, 0))]
        for stream, numbers in ranges(partitions.get(topic, ()), streams).items():
            if stream.member == member:
                mine |= {TopicPartition(topic, number): stream.number for number in numbers}
    return mine
