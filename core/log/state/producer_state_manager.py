"""The idempotent producers of one partition: their state in memory, and the snapshots on disk that it is restored from.

Invariant: `state` is that of all batches in the log. Not thread-safe: `PartitionLog` holds the lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...records.partition import TopicPartition
from ..segment.segment import Segment
from .leader_epochs import LeaderEpochs
from .producer_snapshots import Snapshots
from .producer_state import ProducerState


class ProducerStateManager:
    """`state` is replaced by `reload`: read it from here for each use, never keep it."""

    def __init__(self, tp: TopicPartition, snapshots: Snapshots) -> None:
        """Empty; `reload` must follow."""
        self.state = ProducerState(tp)
        self._tp = tp
        self._snapshots = snapshots

    def __repr__(self) -> str:
        return f"ProducerStateManager({self._tp}, producers={len(self.state)}, highest_id={self.state.highest_id})"

    def take_snapshot(self, offset: int, *, durable: bool) -> None:
        """Writes the state, which is that at `offset`, the log's end."""
        self._snapshots.write(self.state, offset, durable=durable)

    def write_snapshot(self, content: bytes, offset: int) -> None:
        """Writes `content`, the state as it was when the log ended at `offset`; not flushed."""
        self._snapshots.keep(content, offset, durable=False)

    def reload(
        self, end: int, segments: Iterable[Segment], now_ms: int, lost_epochs: LeaderEpochs | None = None
    ) -> None:
        """Restores the state from the newest snapshot at or before `end` and the batches after it.

        With `lost_epochs`, those of a log whose epoch file was lost, all batches are read and the epochs restored from
        them too. Otherwise the file is the better source: it is written before the first batch of an epoch, and no CRC
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
                self.state.update(header, now_ms)
