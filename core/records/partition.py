"""A topic's partition, as everything names it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

__all__ = ["TopicPartition", "by_topic", "counted", "some_of"]

_NAMED: Final = 3
T = TypeVar("T")


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(items: Mapping[TopicPartition, T]) -> dict[str, dict[int, T]]:
    """Returns the items by topic and partition number, in their order."""
    topics: dict[str, dict[int, T]] = {}
    for name, item in items.items():
        topics.setdefault(name.topic, {})[name.partition] = item
    return topics


def counted(number: int, noun: str) -> str:
    """Returns the number and the noun in singular or plural, for a message: `1 replica`, `2 replicas`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def some_of(partitions: Iterable[TopicPartition]) -> str:
    """Returns the first of the items in order, and how many more there are, for a message."""
    ordered = sorted(partitions)
    more = len(ordered) - _NAMED
    return ", ".join(map(str, ordered[:_NAMED])) + (f" and {more} more" if more > 0 else "")
