"""Where a log ends: what a conditional append expects."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["ANY_EPOCH", "OffsetAndEpoch"]

ANY_EPOCH: Final = -1


class OffsetAndEpoch(NamedTuple):
    """The end of a log: `offset`, which the next record gets, and the leader epoch of the record before it. Both
    together name one sequence of records, whichever broker leads (KIP-101). `ANY_EPOCH`: the offset alone decides; a
    log without records has no other."""

    offset: int
    leader_epoch: int = ANY_EPOCH

    def is_end(self, end: OffsetAndEpoch) -> bool:
        """Returns True if this names `end`, the end of a log as it is."""
        return self in (end, OffsetAndEpoch(end.offset))

    def __str__(self) -> str:
        epoch = "" if self.leader_epoch == ANY_EPOCH else f" after epoch {self.leader_epoch}"
        return f"offset {self.offset}{epoch}"
