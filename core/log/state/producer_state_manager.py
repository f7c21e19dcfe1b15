"""Owns the producer state of one partition: the state in memory, and the snapshots on disk from which it is restored.

Invariant: `state` covers all batches in the log. Not thread-safe: `PartitionLog` holds the lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...records.partition import TopicPartition
from ..segment.segment import Segment
from .leader_epochs import LeaderEpochs
from .producer_snapshots import Snapshots
from .producer_state import ProducerState


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
        """Restores the state from the newest snapshot at or before `end` and the batches after it.

        `lost_epochs`: the empty epochs of a log whose epoch file was lost. They are restored too, from all batches of
        the log. Otherwise the file is the better source: it is written before the first batch of an epoch, and no CRC
        covers the epoch in a batch.
        """
        self._snapshots.drop_after(end)
        self.state, start = self._snapshots.latest() if lost_epochs is None else (ProducerState(self._tp), 0)
        for segment in segments:
            if segment.next_offset <= start:
                continue
            for _, header in segment.batches_from(start):
                if lost_epochs is not None:
                    lost_epochs.assign(header.leader_epoch, header.base_offset)
                self.state.update(header)
