"""A topic's partition, as everything names it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = ["TopicPartition", "counted", "some_of"]

_NAMED: Final = 3


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def counted(number: int, noun: str) -> str:
    """Returns the number and the noun in singular or plural, for a message: `1 replica`, `2 replicas`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def some_of(partitions: Iterable[TopicPartition]) -> str:
    """Returns the first of the items in order, and how many more there are, for a message."""
    ordered = sorted(partitions)
    more = len(ordered) - _NAMED
    return ", ".join(map(str, ordered[:_NAMED])) + (f" and {more} more" if more > 0 else "")
