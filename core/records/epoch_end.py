"""Where a leader epoch begins and ends in a log, and whether an offset is still of the log's history (KIP-320)."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["EpochEnd", "EpochRange"]


class EpochRange(NamedTuple):
    """The records of one leader epoch in a log: from `start` up to `end`, which is not in it."""

    epoch: int
    start: int
    end: int


class EpochEnd(NamedTuple):
    """`end_offset` is one past the last offset written under `leader_epoch`, the largest epoch known up to the
    requested one; both are -1 if the leader knows none.
    """

    leader_epoch: int
    end_offset: int

    def cut(self, position: int) -> int | None:
        """Returns the offset at which the log was cut below `position`, which was reached under the requested epoch;
        None if it was not cut there, or the epoch is not known.
        """
        return self.end_offset if 0 <= self.end_offset < position else None
