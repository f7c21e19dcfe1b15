"""Owns the producer state of one partition: the state in memory, and the snapshots on disk from which it is restored.

Invariant: `state` covers all batches in the log, and each segment's transaction index all markers in it. Not
thread-safe: `PartitionLog` holds the lock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ...errors import CorruptRecordError
from ...records.control import TransactionMarker, read_marker
from ...records.header import BatchHeader, Buffer
from ...records.partition import TopicPartition
from ..segment.file_operations import storage
from ..segment.segment import Segment
from ..segment.transaction_index import AbortedEntry
from .leader_epochs import LeaderEpochs
from .producer_snapshots import Snapshots
from .producer_state import ProducerState

_log = logging.getLogger(__name__)


class ProducerStateManager:
    """Holds `state`, which `reload` replaces: read it from this object for each use, never keep it."""

    def __init__(self, tp: TopicPartition, snapshots: Snapshots) -> None:
        """Begins with an empty state; `reload` must follow."""
        self.state = ProducerState(tp)
        self._tp = tp
        self._snapshots = snapshots

    def __repr__(self) -> str:
        return f"ProducerStateManager({self._tp}, producers={len(self.state)}, highest_id={self.state.highest_id})"

    def take_snapshot(self, offset: int, *, durable: bool) -> None:
        """Writes a snapshot of the state; `offset` is the log end offset."""
        self._snapshots.write(self.state, offset, durable=durable)

    def write_snapshot(self, content: bytes, offset: int) -> None:
        """Writes `content`, a snapshot taken when the log ended at `offset`, without flushing it."""
        self._snapshots.keep(content, offset, durable=False)

    def clear(self) -> None:
        """Forgets all producers, in memory and on disk, because the log restarts without records."""
        self._snapshots.drop_after(-1)
        self.state = ProducerState(self._tp)

    def reload(self, end: int, segments: Iterable[Segment], lost_epochs: LeaderEpochs | None = None) -> None:
        """Restores the state from the newest snapshot at or before `end` and the batches after it, and the transaction
        indexes that lack markers.

        `lost_epochs`: the empty epochs of a log whose epoch file was lost. They are restored too, from all batches of
        the log. Otherwise the file is the better source: it is written before the first batch of an epoch, and no CRC
        covers the epoch in a batch.
        """
        self._snapshots.drop_after(end)
        segments = list(segments)
        unindexed = [segment for segment in segments if segment.unindexed_from is not None]
        from_offset = min((segment.unindexed_from or 0 for segment in unindexed), default=end)
        state, start = self._snapshots.latest(from_offset) if lost_epochs is None else (ProducerState(self._tp), 0)
        for segment in segments:
            if segment.next_offset <= start:
                continue
            for position, header in segment.batches_from(start):
                if lost_epochs is not None:
                    lost_epochs.assign(header.leader_epoch, header.base_offset)
                ended = state.update(header, self._stored_marker(segment, position, header))
                since = segment.unindexed_from
                if ended is not None and not ended.commit and since is not None and header.base_offset >= since:
                    segment.add_aborted(AbortedEntry._make(ended[:4]))
        for segment in unindexed:
            segment.indexed()
        self.state = state

    def index_again(self, damaged: Segment, segments: Iterable[Segment], error: CorruptRecordError) -> None:
        """Builds the transaction index of `damaged` from the batches of the log up to the segment's end."""
        _log.warning("%s: %s; the transaction index of %s is rebuilt", self._tp, error, damaged.path)
        state, entries = ProducerState(self._tp), []
        for segment in segments:
            for position, header in segment.batches_from(segment.base_offset):
                ended = state.update(header, self._stored_marker(segment, position, header))
                if ended is not None and not ended.commit and segment is damaged:
                    entries.append(AbortedEntry._make(ended[:4]))
            if segment is damaged:
                break
        damaged.set_aborted(entries)

    def marker(self, batches: Buffer, position: int, header: BatchHeader) -> TransactionMarker | None:
        """Returns the marker at `position`; None if the batch is none, or cannot be read: that is logged, and the
        transaction stays open."""
        try:
            return read_marker(batches, position, header)
        except CorruptRecordError as error:
            _log.error("%s: %s; its transaction stays open until the producer's next marker", self._tp, error)
            return None

    def _stored_marker(self, segment: Segment, position: int, header: BatchHeader) -> TransactionMarker | None:
        if not header.is_marker:
            return None
        with storage(f"cannot read {segment.path}"):
            return self.marker(segment.file.read(header.size, position), 0, header)
