"""The time up to which a mirror has everything that its source had committed (docs/mirror.md, M9)."""

from __future__ import annotations


class CompleteUntil:
    """The completeness of one partition. Times are those of this cluster's clock, in milliseconds since 1970.

    The time advances even if the mirror is always behind: each answer of the source may set a mark (the source's end at
    that time), and once the mirror has reached the mark it is complete up to then.
    """

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        """What the source had committed at this time is here."""
        self._mark = (at_ms, -1)
        """A later time, and where the source ended then; -1 if there is none."""

    def on_answer(self, now_ms: int, position: int, source_end: int) -> None:
        """Applies an answer: the source ends at `source_end`, and the next fetch begins at `position`."""
        marked_ms, end = self._mark
        if end >= 0 and position >= end:
            self.at_ms, self._mark = marked_ms, (marked_ms, -1)
        if position >= source_end:
            self.at_ms, self._mark = now_ms, (now_ms, -1)
        elif self._mark[1] < 0:
            self._mark = (now_ms, source_end)

    def missed_tombstones(self, now_ms: int, delete_retention_ms: int) -> bool:
        """Returns True if the source may have removed tombstones that are not here: it keeps each one for
        `delete_retention_ms`."""
        return now_ms - self.at_ms > delete_retention_ms
