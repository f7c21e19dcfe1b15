"""The space on the disk of a log directory: which partitions could not be written because it is full, and whether it
has space again.

A log reports each append that fails with ENOSPC or EDQUOT. The disk then counts as full until `clear`, even if
smaller batches still fit; `has_space` tests whether `clear` is due.
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
    """Thread-safe; only `has_space` blocks. `on_full` is called when the disk starts to count as full, on the thread
    of the failed write, perhaps with its log's lock; it must not block."""

    def __init__(self, directory: Path) -> None:
        self.on_full: Callable[[], None] | None = None
        self._probe = directory / _PROBE
        self._lock = Lock()
        self._full = False
        self._refused: set[TopicPartition] = set()
        self.why = ""
        """The first error since the disk has been full."""

    @property
    def is_full(self) -> bool:
        return self._full

    @property
    def refused(self) -> frozenset[TopicPartition]:
        """The partitions of which a write has failed since the disk has been full."""
        with self._lock:
            return frozenset(self._refused)

    def ran_out(self, tp: TopicPartition | None, error: NoSpaceError) -> None:
        """Records that a write has failed because the disk is full: of a partition, or of a file of the whole
        directory."""
        with self._lock:
            if tp is not None:
                self._refused.add(tp)
            begins, self._full = not self._full, True
            if begins:
                self.why = str(error)
        if begins and self.on_full is not None:
            self.on_full()

    def has_space(self) -> bool:
        """Returns whether a file of 1 MiB, of bytes that no file system can compress, can be written."""
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
        """Ends the state in which the disk counts as full."""
        with self._lock:
            self._full = False
            self._refused.clear()
