"""Snapshots of the producer state (`%020d.snapshot`), named by the log end offset at which they were taken.

A roll, a clean stop and some flushes write one; the last two are kept. If a snapshot fails its CRC, the older one is
used, or else the batches themselves.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from ...errors import CorruptRecordError
from ...records.partition import TopicPartition
from ..segment.file_operations import remove, storage, write_atomically
from ..segment.naming import SNAPSHOT, parse_segment_file, segment_file
from .producer_state import ProducerState

KEPT: Final = 2
_log = logging.getLogger(__name__)


class Snapshots:
    """Writes, reads and removes the snapshots of one partition. Not thread-safe: the log's lock guards it."""

    def __init__(self, tp: TopicPartition, directory: Path) -> None:
        self._tp = tp
        self._directory = directory
        with storage(f"cannot read {directory}"):
            parsed = [parse_segment_file(path.name) for path in directory.iterdir()]
        self._offsets = sorted(found[0] for found in parsed if found and found[1] == SNAPSHOT)

    def latest(self, at_most: int) -> tuple[ProducerState, int]:
        """Returns the newest whole snapshot up to the offset `at_most`, and its offset; an empty state at 0 if there is
        none."""
        for offset in reversed([offset for offset in self._offsets if offset <= at_most]):
            path = segment_file(self._directory, offset, SNAPSHOT)
            try:
                with storage(f"cannot read {path}"):
                    return ProducerState.from_bytes(self._tp, path.read_bytes()), offset
            except CorruptRecordError as error:
                _log.warning("%s: %s cannot be used: %s; the batches are read instead", self._tp, path, error)
        return ProducerState(self._tp), 0

    def write(self, state: ProducerState, offset: int, *, durable: bool) -> None:
        """Writes a snapshot of `state`, the state at the log end offset `offset`."""
        self.keep(state.to_bytes(), offset, durable=durable)

    def keep(self, content: bytes, offset: int, *, durable: bool) -> None:
        """Writes `content`, a snapshot taken when the log ended at `offset`; removes all but the newest two."""
        write_atomically(segment_file(self._directory, offset, SNAPSHOT), content, durable=durable)
        self._offsets = sorted({*self._offsets, offset})
        self._remove(self._offsets[:-KEPT])

    def drop_after(self, offset: int) -> None:
        """Removes the snapshots after `offset`: they contain batches that the log does not have."""
        self._remove([at for at in self._offsets if at > offset])

    def _remove(self, offsets: list[int]) -> None:
        for offset in offsets:
            with storage(f"cannot remove a snapshot in {self._directory}"):
                remove(segment_file(self._directory, offset, SNAPSHOT))
            self._offsets.remove(offset)
