"""The leader epochs of one log and their start offsets (KIP-101), in the file `leader-epoch-checkpoint`.

The file is Kafka's, with a checksum (`checksummed`): a line with the version, one with the number of entries, then a
line `epoch start_offset` for each entry. Epochs increase, start offsets never decrease.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from ...errors import NoSpaceError, StorageError
from ..segment.file_operations import read_file, write_atomically
from .checksummed import VERSION, seal, versioned_lines

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1


class LeaderEpochs:
    """Holds the epochs and writes the file at each change: durably, unless the caller of `assign` leaves that to
    `sync`. While the disk is full, epochs are removed, and added by `begin`, in memory only: `unwritten`. The next
    `assign` of a batch writes the file first. Not thread-safe: the log's lock guards it."""

    def __init__(self, path: Path, entries: Sequence[tuple[int, int]] = ()) -> None:
        self._path = path
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        """The latest epoch; -1 if none is known. Set by this class only; no property, because every append reads it."""
        self._durable = True
        self.changes = 0
        """How often the entries have changed. Set by this class only."""
        self.unwritten = False
        """True if the file must be written before the next batch, which calls `assign`. Set by this class only."""

    @property
    def first_start_offset(self) -> int:
        """The offset at which the first epoch begins; 0 if none is known."""
        return self._starts[0] if self._starts else 0

    @property
    def durable(self) -> bool:
        """True if the file with all epochs would survive a power cut."""
        return self._durable

    @classmethod
    def read(cls, path: Path) -> LeaderEpochs:
        """Reads the file; there are no epochs if it does not exist. Raises `StorageError` if it is damaged."""
        if (raw := read_file(path)) is None:
            return cls(path)
        try:
            lines = versioned_lines(raw)
            entries = [(int(a), int(b)) for a, b in (line.split() for line in lines[1:])]
            if len(entries) != int(lines[0]):
                raise ValueError(f"{len(entries)} entries, not {lines[0]}")
            if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(entries)):
                raise ValueError("epochs or offsets are out of order")
        except (ValueError, IndexError) as error:
            raise StorageError(f"{path} is damaged: {error}") from error
        return cls(path, entries)

    def entries(self) -> list[tuple[int, int]]:
        """Returns each epoch with its start offset, the oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def columns(self) -> tuple[list[int], list[int]]:
        """Returns the epochs and their start offsets. Nothing changes these lists, so they may be read without the
        lock."""
        return self._epochs, self._starts

    def assign(self, epoch: int, start_offset: int, *, durable: bool = True) -> None:
        """Adds `epoch`, which starts at `start_offset`, unless it or a later one exists. Without `durable` the
        caller must call `sync` before it writes a batch of the epoch."""
        if epoch > self.latest:
            self._replace([*self._epochs, epoch], [*self._starts, start_offset], durable=durable)
        elif self.unwritten:
            self._replace(self._epochs, self._starts, durable=durable)

    def begin(self, epoch: int, start_offset: int, *, durable: bool = True) -> None:
        """Adds `epoch`, as `assign` does, before there is a batch of it; on a full disk the file is not written yet."""
        try:
            if epoch > self.latest:
                self._replace([*self._epochs, epoch], [*self._starts, start_offset], durable=durable)
        except NoSpaceError:
            self._keep_unwritten([*self._epochs, epoch], [*self._starts, start_offset])

    def sync(self, *, written: int = -1) -> None:
        """Makes the file durable. `written`: the number of `changes` when the caller started to sync the whole file
        system."""
        if written == self.changes and not self.unwritten:
            self._durable = True
        elif not self._durable:
            self.unwritten = True  # until it has succeeded
            self._replace(self._epochs, self._starts)

    def epoch_at(self, offset: int) -> int:
        """Returns the epoch under which the record at `offset` was written; -1 if it is unknown."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Returns the largest known epoch up to `epoch` and its end offset (OffsetsForLeaderEpoch); (-1, -1) if
        unknown."""
        if epoch == NO_EPOCH or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch)
        return (self._epochs[index - 1] if index else epoch), self._starts[index]

    def truncate_end(self, offset: int) -> None:
        """Removes epochs that begin at or after `offset`."""
        keep = sum(start < offset for start in self._starts)
        if keep < len(self._starts):
            self._remove(self._epochs[:keep], self._starts[:keep])

    def clear(self) -> None:
        """Removes all epochs."""
        if self._epochs:
            self._remove([], [])

    def truncate_start(self, offset: int) -> None:
        """Removes epochs that ended before `offset`; the epoch that contains `offset` now begins there."""
        index = bisect_right(self._starts, offset) - 1
        if (index >= 0 and self._starts[index] != offset) or index > 0:
            first = max(self._starts[index], offset)
            self._remove(self._epochs[index:], [first, *self._starts[index + 1 :]])

    def _replace(self, epochs: list[int], starts: list[int], *, durable: bool = True) -> None:
        """Replaces all entries. Writes the file first: if that fails, the entries in memory do not change."""
        rows = "".join(f"{epoch} {start}\n" for epoch, start in zip(epochs, starts, strict=True))
        write_atomically(self._path, seal(f"{VERSION}\n{len(epochs)}\n{rows}"), durable=durable)
        self._epochs, self._starts = epochs, starts
        self.latest = epochs[-1] if epochs else NO_EPOCH
        self._durable, self.unwritten = durable, False
        self.changes += 1

    def _remove(self, epochs: list[int], starts: list[int]) -> None:
        """Replaces the entries by a subset; the file need not be written before the next batch is."""
        try:
            self._replace(epochs, starts)
        except NoSpaceError:
            self._keep_unwritten(epochs, starts)

    def _keep_unwritten(self, epochs: list[int], starts: list[int]) -> None:
        self._epochs, self._starts = epochs, starts
        self.latest = epochs[-1] if epochs else NO_EPOCH
        self._durable, self.unwritten = False, True
        self.changes += 1
