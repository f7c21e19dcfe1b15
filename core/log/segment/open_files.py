"""Bounds the number of open segment files of all logs of a broker; closes the least recently used file first.

The next use of a closed file opens it again, which takes about 10 µs. So thousands of partitions need no more
descriptors than this bound, and enough remain for connections.
"""

from __future__ import annotations

from threading import Lock
from typing import Final, Protocol

DEFAULT_LIMIT: Final = 1_000


class HasFile(Protocol):
    def close_file(self) -> None:
        """Closes the file once its last reader is done; the next use opens it again."""


class OpenFiles:
    """Thread-safe. A reader that holds the `OpenFile` can still read after the file is closed here."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = max(1, limit)
        self._lock = Lock()
        self._order: dict[HasFile, None] = {}

    def __len__(self) -> int:
        return len(self._order)

    def used(self, owner: HasFile) -> None:
        """Marks the file of `owner` as the most recently used; closes the least recently used one above the limit."""
        oldest: HasFile | None = None
        with self._lock:
            self._order.pop(owner, None)
            self._order[owner] = None
            if len(self._order) > self.limit:
                oldest = next(iter(self._order))
                del self._order[oldest]
        if oldest is not None:
            oldest.close_file()

    def closed(self, owner: HasFile) -> None:
        """Forgets the file of `owner`, which was closed."""
        with self._lock:
            self._order.pop(owner, None)

    def close_some(self) -> bool:
        """Closes half of the open files, because the system has no more descriptors. Returns True if any was open."""
        with self._lock:
            oldest = list(self._order)[: (len(self._order) + 1) // 2]
            for owner in oldest:
                del self._order[owner]
        for owner in oldest:
            owner.close_file()
        return bool(oldest)
