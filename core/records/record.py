"""Records as clients see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

__all__ = ["LAST_TIMESTAMP_MS", "ConsumerRecord", "Headers", "ProducerRecord", "Record", "RecordMetadata"]

Headers = tuple[tuple[str, bytes | None], ...]

LAST_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The end of the year 9999: a producer accepts no later timestamp, since no date of Python can represent it."""


@dataclass(slots=True)
class ProducerRecord:
    """A record to send. `timestamp_ms` since the epoch, now when None; `partition` None lets the partitioner choose."""

    topic: str
    value: Any
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The position of an acknowledged record. `offset` is -1 with acks=0. `timestamp_ms` is the stored one."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Record(NamedTuple):
    """One record of a batch, its bytes as stored. (A tuple: a frozen dataclass takes three times as long to make.)"""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(slots=True)
class ConsumerRecord:
    """A record received; `key` and `value` deserialized. `serialized_size` is key plus value in bytes."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: Headers = field(default=())
    serialized_size: int = 0
