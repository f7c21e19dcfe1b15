"""Streams: the paper's iterators over a member's share of a topic (section 3.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Self

from ...records.record import ConsumerRecord
from ..errors import ClientClosedError


class RecordStream:
    """An iterator that never ends: it blocks while there is no record, and stops only when the consumer is closed.

    Each stream has its own partitions; use each in one thread. Asking for the next record marks the one before as
    processed. An error (for example an unreadable record) is raised once, after which the iterator can be used
    again.
    """

    def __init__(
        self, topic: str, number: int, take: Callable[[], list[ConsumerRecord]], come_back: Callable[[], None]
    ) -> None:
        self.topic = topic
        self.number = number
        self._take = take
        self._come_back = come_back
        self._left: deque[ConsumerRecord] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        while not self._left:
            self._come_back()
            try:
                self._left.extend(self._take())  # one record, of which an interceptor may have made none or several
            except ClientClosedError:
                raise StopIteration from None
        return self._left.popleft()
