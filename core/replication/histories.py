"""Compares the epochs of two logs that may have gaps (docs/mirror.md, M13)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ..records.epoch_end import EpochRange


def first_conflict(theirs: Sequence[EpochRange], ours: Sequence[EpochRange]) -> int | None:
    """Returns the offset from which the log of `theirs` has records that cannot be in one history with those of `ours`;
    None if there are none.

    In one history epochs never fall along the offsets. So a record of an earlier epoch lies below the first of a later
    epoch, in whichever of the logs they are. Offsets that one of the logs lacks are no conflict.
    """
    epochs = [epoch for epoch, _, _ in ours]
    for epoch, start, end in theirs:
        at = bisect_left(epochs, epoch)
        if at and start < ours[at - 1].end:
            return start
        later = at + (at < len(ours) and epochs[at] == epoch)
        if later < len(ours) and ours[later].start < end:
            return max(start, ours[later].start)
    return None


def common_end(theirs: Sequence[EpochRange], ours: Sequence[EpochRange], limit: int) -> int:
    """Returns the end of the last record below `limit` that both logs have; 0 if there is none."""
    known = {each.epoch: each for each in ours}
    pairs = ((each, known[each.epoch]) for each in theirs if each.epoch in known)
    ends = ((max(a.start, b.start), min(a.end, b.end, limit)) for a, b in pairs)
    return max((end for start, end in ends if start < end), default=0)


def ranges_from(offset: int, ranges: Sequence[EpochRange]) -> tuple[EpochRange, ...]:
    """Returns what lies at or above `offset`."""
    return tuple(EpochRange(epoch, max(start, offset), end) for epoch, start, end in ranges if end > offset)
