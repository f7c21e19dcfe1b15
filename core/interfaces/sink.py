"""The sink interface: where a running `klamm sink` writes a group's records.

A sink that raises stops its task before the offsets are committed: unflushed records are delivered again.

A sink takes records (`Sink`) or whole record batches (`BatchSink`). It may implement further protocols:

- `TopicIdSink`, for a sink that stores its own positions, so that it does not write redelivered records twice. An
  offset is valid in one topic only: such a sink stores its positions by topic id, or it drops the first records of a
  topic that was deleted and created again.
- `HistorySink`, for such a sink too: an offset is valid in one history of its topic only. A log that was restored from
  an older backup ends below the sink's position, and other records take the place of those that were lost.
- `QuarantineSink`, for a sink that can store records that cannot be read (`on.bad.record: quarantine`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from uuid import UUID

from ..records.partition import TopicPartition
from ..records.record import ConsumerRecord

__all__ = ["BadRecords", "BatchSink", "HistorySink", "LogCut", "QuarantineSink", "RecordBatch", "Sink", "TopicIdSink"]


@dataclass(frozen=True, slots=True)
class BadRecords:
    """Records that cannot be read: the offsets [from_offset, to_offset), one record or a whole batch. `value` is the
    record's value as stored, or the batch's bytes; both it and `key` are None if they have been deleted since.
    """

    partition: TopicPartition
    from_offset: int
    to_offset: int
    reason: str
    key: bytes | None = None
    value: bytes | None = None
    is_batch: bool = False


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One record batch (magic 2) of a partition as the log stores it: `data` begins with the header of 61 bytes, and
    its CRC was checked. The records in [from_offset, to_offset) are wanted; the batch holds `record_count`."""

    partition: TopicPartition
    from_offset: int
    to_offset: int
    record_count: int
    data: bytes


@dataclass(frozen=True, slots=True)
class LogCut:
    """The records of a partition from `offset` on, which were read, are no longer in its log. They had leader epochs
    up to `lost_epoch`, and the records that replace them have larger ones. A cut that is reported again equals the
    first report, unless other commits were made meanwhile."""

    partition: TopicPartition
    offset: int
    lost_epoch: int


class Sink(Protocol):
    """Takes decoded records. Made once per task; called from one thread. A task whose topic is deleted and created
    again closes its sink and makes another one. Making one connects to nothing: `klamm config check` makes one.
    """

    def open(self) -> None: ...

    def write(self, records: Sequence[ConsumerRecord]) -> None:
        """Takes records of any of the task's partitions, in order within each."""
        ...

    def flush(self) -> None:
        """Returns when all written records are durable; only then are the offsets committed. Called only while each
        topic still has the id that was given to the sink, so that the records written before belong to that topic."""
        ...

    def close(self) -> None:
        """Closes the sink. Unflushed records are not kept, or are delivered again. Closing twice is not an error."""
        ...


@runtime_checkable
class BatchSink(Protocol):
    """A sink that takes whole record batches as the log stores them: nothing is decompressed or decoded for it."""

    def open(self) -> None: ...

    def write_batches(self, batches: Sequence[RecordBatch]) -> None:
        """Takes batches of any of the task's partitions, in order within each. A batch may start before its
        `from_offset`, if the group's position lies inside it."""
        ...

    def flush(self) -> None:
        """Flushes as `Sink.flush` does."""
        ...

    def close(self) -> None:
        """Closes as `Sink.close` does."""
        ...


@runtime_checkable
class TopicIdSink(Protocol):
    """A sink that stores its own positions."""

    def topic_ids(self, ids: Mapping[str, UUID]) -> None:
        """Called once, between `open` and the first `write`, with the ids of the sink's topics. Not called if the
        brokers report none.
        """
        ...


@runtime_checkable
class HistorySink(Protocol):
    """A sink that stores its own positions, and is notified if a log lost its end."""

    def log_cut(self, cut: LogCut) -> None:
        """Called after a `flush` and before the first record that was written after the cut. The sink's records of the
        partition from `cut.offset` on are of the lost history, and its position there becomes at most `cut.offset`.
        Durable when it returns. It is called again with the same cut unless its position was committed; that call
        changes nothing."""
        ...


@runtime_checkable
class QuarantineSink(Protocol):
    """A sink that can store records that cannot be read."""

    def quarantine(self, bad: BadRecords) -> None:
        """Sets the records aside; they are durable when the next `flush` returns. Repeating it changes nothing."""
        ...
