"""Snapshots of the producers' state (`%020d.snapshot`), named by the offset up to which they hold.

One is written when a segment is rolled and at a clean stop, and two are kept. A snapshot that fails its CRC is passed
over for an older one, or for the batches themselves.
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
    """The snapshots of one partition. Not thread-safe: the log's lock guards it."""

    def __init__(self, tp: TopicPartition, directory: Path) -> None:
        self._tp = tp
        self._directory = directory
        with storage(f"cannot read {directory}"):
            parsed = [parse_segment_file(path.name) for path in directory.iterdir()]
        self._offsets = sorted(found[0] for found in parsed if found and found[1] == SNAPSHOT)

    def latest(self) -> tuple[ProducerState, int]:
        """Returns the newest whole snapshot and its offset; an empty state at 0 if there is none."""
        for offset in reversed(self._offsets):
            path = segment_file(self._directory, offset, SNAPSHOT)
            try:
                with storage(f"cannot read {path}"):
                    return ProducerState.from_bytes(self._tp, path.read_bytes()), offset
            except CorruptRecordError as error:
                _log.warning("%s: %s cannot be used: %s; the batches are read instead", self._tp, path, error)
        return ProducerState(self._tp), 0

    def write(self, state: ProducerState, offset: int, *, durable: bool) -> None:
        self.keep(state.to_bytes(), offset, durable=durable)

    def keep(self, content: bytes, offset: int, *, durable: bool) -> None:
        """`content`: a state as it was when the log ended at `offset`."""
        write_atomically(segment_file(self._directory, offset, SNAPSHOT), content, durable=durable)
        self._offsets = sorted({*self._offsets, offset})
        self._remove(self._offsets[:-KEPT])

    def drop_after(self, offset: int) -> None:
        """Removes snapshots of a later offset: they contain batches that the log does not."""
        self._remove([at for at in self._offsets if at > offset])

    def _remove(self, offsets: list[int]) -> None:
        for offset in offsets:
            with storage(f"cannot remove a snapshot in {self._directory}"):
                remove(segment_file(self._directory, offset, SNAPSHOT))
            self._offsets.remove(offset)
