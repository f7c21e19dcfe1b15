"""The topic-validator interface: the broker decompresses a batch and calls it before the append.

A validator that raises refuses the batch with INVALID_RECORD and its one-line message. It runs off the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..records.record import Record

__all__ = ["TopicValidator"]


class TopicValidator(Protocol):
    def applies_to(self, topic: str) -> bool:
        """Returns True if the topic's batches must be opened for this validator. Called once per topic."""
        ...

    def validate(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Raises `KlammError` to refuse the batch; `records` have offsets relative to the batch (from 0)."""
        ...
