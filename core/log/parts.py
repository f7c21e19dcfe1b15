"""What the parts of `PartitionLog` know of it: its fields, and what they ask of one another.

`PartitionLog` is several classes for its length only: `flushing`, `shortening` and `plain_append` are the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from threading import Lock, RLock

from klamm.core.config.topic import TopicConfig
from klamm.core.errors import StorageError
from klamm.core.log.clock import Clock
from klamm.core.log.leader_epochs import LeaderEpochs
from klamm.core.log.producer_state import ProducerState
from klamm.core.log.segment import Segment
from klamm.core.log.snapshots import Snapshots
from klamm.core.log.validation import Validator
from klamm.core.records.partition import TopicPartition


class LogParts(ABC):
    directory: Path
    tp: TopicPartition
    _config: TopicConfig
    _clock: Clock
    _lock: RLock
    _flush_lock: Lock
    _closed: str | None
    _segments: list[Segment]
    _bases: list[int]
    _start: int
    _end: int
    _flushed: int
    _replicated: int
    _last_flush_ms: int
    _kept: tuple[Segment | None, int]
    """The segment that a place was kept of last, and its size then."""
    _directory_dirty: bool
    _epochs: LeaderEpochs
    _validator: Validator
    _takes_plain: bool
    """Whether the topic stores batches as they are sent, and shows them at once."""
    _producers: ProducerState
    _snapshots: Snapshots
    _removed: list[tuple[int, Path]]

    @property
    @abstractmethod
    def high_watermark(self) -> int:
        """Consumers see what lies below."""

    @abstractmethod
    def _check_open(self) -> None:
        """`LogClosedError` once the log is closed or offline."""

    @abstractmethod
    def _fail(self, why: str) -> None:
        """Take the log offline."""

    @abstractmethod
    def _write_failed(self, active: Segment, error: StorageError) -> None:
        """Take the log offline unless the segment is as it was."""

    @abstractmethod
    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """Begin a new segment."""

    @abstractmethod
    def _tell(self, advanced: bool) -> None:
        """Say that consumers see more, if they do."""
