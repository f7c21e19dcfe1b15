"""Streams: the paper's iterators over a member's share of a topic (section 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from klamm.core.client.errors import ClientClosedError
from klamm.core.records.record import ConsumerRecord


class RecordStream:
    """An iterator that never ends: it blocks while there is nothing to read, and stops only when the consumer is
    closed. Each stream has partitions of its own; use each in one thread. Asking for the next record says that the one
    before is done with. An error (an unreadable record, say) is raised once, and the iterator may be used on."""

    def __init__(
        self, topic: str, number: int, take: Callable[[], list[ConsumerRecord]], come_back: Callable[[], None]
    ) -> None:
        self.topic = topic
        self.number = number
        self._take = take
        self._come_back = come_back

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        self._come_back()
        while True:
            try:
                records = self._take()
            except ClientClosedError:
                raise StopIteration from None
            if records:  # an interceptor may have dropped it
                return records[0]
            self._come_back()
