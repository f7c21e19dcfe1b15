"""The room on the disk of a log directory: the partitions that could not be written for lack of it, and its return.

A log reports each append that fails with ENOSPC or EDQUOT. The disk then counts as full until `clear`, even if smaller
batches still fit; `has_room` tells when that is due.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from ..errors import NoSpaceError, StorageError
from ..records.partition import TopicPartition
from .segment.file_operations import remove, write_atomically

_PROBE: Final = "space-probe"
_PROBE_BYTES: Final = 1 << 20
"""As large as a large batch: a disk on which only small ones fit would be full again at once."""


class DiskSpace:
    """Thread-safe; only `has_room` blocks. `on_full` is called when the disk begins to count as full, on the thread of
    the write that failed, perhaps with its log's lock; it must not block."""

    def __init__(self, directory: Path) -> None:
        self.on_full: Callable[[], None] | None = None
        self._probe = directory / _PROBE
        self._lock = Lock()
        self._full = False
        self._refused: set[TopicPartition] = set()
        self.why = ""
        """The first error since the disk is full."""

    @property
    def is_full(self) -> bool:
        return self._full

    @property
    def refused(self) -> frozenset[TopicPartition]:
        """The partitions of which a write has failed since the disk is full."""
        with self._lock:
            return frozenset(self._refused)

    def ran_out(self, tp: TopicPartition | None, error: NoSpaceError) -> None:
        """Takes note that a write has failed for lack of room: of a partition, or of a file of the whole directory."""
        with self._lock:
            if tp is not None:
                self._refused.add(tp)
            begins, self._full = not self._full, True
            if begins:
                self.why = str(error)
        if begins and self.on_full is not None:
            self.on_full()

    def has_room(self) -> bool:
        """Returns whether a file of 1 MiB can be written, of bytes that no file system can compress."""
        try:
            write_atomically(self._probe, os.urandom(_PROBE_BYTES), durable=False)
        except StorageError:
            return False
        finally:
            for path in (self._probe, self._probe.with_name(self._probe.name + ".tmp")):
                with suppress(OSError):  # the next one replaces it
                    remove(path)
        return True

    def clear(self) -> None:
        """Counts the disk as full no more."""
        with self._lock:
            self._full = False
            self._refused.clear()
