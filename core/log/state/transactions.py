"""The transactions of one partition that a `READ_COMMITTED` reader must not pass yet: open ones, and those whose marker
is not below the high watermark (docs/transactions.md, T11).

Not thread-safe: `PartitionLog` holds its watermark lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

STABLE: Final = 2**63 - 1
"""The first unstable offset of a log without unfinished transactions: above all offsets."""


class EndedTransaction(NamedTuple):
    """A transaction that a marker has ended: its first offset, and the marker's. `last_stable_offset`: the first offset
    of the oldest transaction that is still open, or the offset after the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    commit: bool


class Transactions:
    """Open transactions by producer id, in the order of their first offsets, and ended ones whose marker may not be
    replicated."""

    def __init__(self, first_offsets: Iterable[tuple[int, int]] = (), ended: Iterable[tuple[int, int]] = ()) -> None:
        """`first_offsets`: pairs of producer id and first offset; `ended`: pairs of first offset and the marker's."""
        self.first_offsets = dict(sorted(first_offsets, key=lambda item: item[1]))
        """The first offset of each open transaction by producer id. Set by this class only; no property, because the
        append of each idempotent batch reads it."""
        self._ended = sorted(ended)  # a heap, as every sorted list

    @property
    def ended(self) -> list[tuple[int, int]]:
        """The first offset and the marker's of each transaction whose marker may not be replicated; read only."""
        return self._ended

    def begin(self, producer_id: int, offset: int) -> None:
        """Opens a transaction unless the producer has one open."""
        self.first_offsets.setdefault(producer_id, offset)

    def end(self, producer_id: int, offset: int, *, commit: bool) -> EndedTransaction | None:
        """Ends the producer's transaction by the marker at `offset`; None if none is open."""
        first = self.first_offsets.pop(producer_id, None)
        if first is None:
            return None
        heappush(self._ended, (first, offset))
        return EndedTransaction(producer_id, first, offset, next(iter(self.first_offsets.values()), offset + 1), commit)

    def first_unstable(self, high_watermark: int) -> int:
        """Returns the first offset of any transaction that is open, or whose marker is not below the high watermark;
        `STABLE` if there is none."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        first = next(iter(self.first_offsets.values()), STABLE)
        return min(first, ended[0][0]) if ended else first
