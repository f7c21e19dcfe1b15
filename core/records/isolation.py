"""Which records of transactions a reader sees."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

__all__ = ["AbortedTransaction", "IsolationLevel"]


class IsolationLevel(IntEnum):
    """The `isolation_level` of Fetch and ListOffsets (KIP-98): records up to the high watermark, or to the last stable
    offset, below which no transaction is open."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class AbortedTransaction(NamedTuple):
    """A transaction whose records a `READ_COMMITTED` reader leaves out: those of the producer from `first_offset`
    on, up to its next control batch."""

    producer_id: int
    first_offset: int
