"""The topic-validator interface: the broker decompresses a batch and calls it before the append.

A validator that raises refuses the batch with INVALID_RECORD and its one-line message; an `InvalidRecordError` also
names the records at fault. A `BrokerError` with a retriable code is passed on: the producer sends the batch again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..records.record import Record

if TYPE_CHECKING:
    from .service import BrokerContext

__all__ = ["QuickTopicValidator", "StartedTopicValidator", "TopicValidator"]


class TopicValidator(Protocol):
    def applies_to(self, topic: str, config: Mapping[str, str]) -> bool:
        """Returns True if the topic's batches must be opened for this validator. `config`: all configs of the topic,
        as DescribeConfigs shows them. Called when the broker opens the topic and after its configuration has changed;
        on the event loop: must not block."""
        ...

    def validate(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Raises `KlammError` to refuse the batch; `records` have offsets relative to the batch (from 0). Called on
        threads for validation, several at once, so it may wait, but other topics' batches may wait for these threads.
        """
        ...


@runtime_checkable
class StartedTopicValidator(TopicValidator, Protocol):
    """A validator that needs its broker."""

    def start(self, context: BrokerContext) -> None:
        """Called once, before the broker accepts connections. `context` may be used in `validate`."""
        ...


@runtime_checkable
class QuickTopicValidator(TopicValidator, Protocol):
    """A validator that knows of most small batches at once that they pass."""

    def passes(self, topic: str, records: Sequence[Record]) -> bool:
        """Returns True if `validate` would accept the records; False if it has to be called. Called on the event loop
        with small batches: must not block."""
        ...
