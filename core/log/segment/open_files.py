"""How many segment files a broker has open: a bound for all its logs together, the longest unused closed first.

A file that is closed is opened again when it is wanted: some 10 µs. So thousands of partitions need no more descriptors
than this, and connections keep theirs.
"""

from __future__ import annotations

from threading import Lock
from typing import Final, Protocol

DEFAULT_LIMIT: Final = 1_000


class HasFile(Protocol):
    def close_file(self) -> None:
        """Close the file, once its last reader is done; the next use opens it."""


class OpenFiles:
    """Thread-safe. Who holds a file's object goes on reading while it is closed here."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = max(1, limit)
        self._lock = Lock()
        self._order: dict[HasFile, None] = {}

    def __len__(self) -> int:
        return len(self._order)

    def used(self, owner: HasFile) -> None:
        """`owner`'s file was opened, or used: it is closed after all others."""
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
        with self._lock:
            self._order.pop(owner, None)

    def close_some(self) -> bool:
        """The system has no more descriptors: close half of what is open. Whether there was any."""
        with self._lock:
            oldest = list(self._order)[: (len(self._order) + 1) // 2]
            for owner in oldest:
                del self._order[owner]
        for owner in oldest:
            owner.close_file()
        return bool(oldest)
