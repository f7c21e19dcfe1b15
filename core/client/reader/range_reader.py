"""Reads all records of an offset range of one partition, as one Spark task does.

Offsets have holes (compaction, transaction markers), so the range is done when a batch ends at or beyond its end, never
when enough records were read. Expected records that do not arrive are an error, not the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from ...records.isolation import IsolationLevel
from ...records.partition import TopicPartition
from ..errors import DataLossError, LogTruncatedError, OffsetsDeletedError
from .batch_decoder import RawBatch, ReadBatch
from .partition_reader import FetchClient, PartitionReader

__all__ = ["OffsetRange", "RangeReader"]

_log = logging.getLogger(__name__)
Batch = TypeVar("Batch")

_HINT = " (on.bad.record: quarantine sets such batches aside)"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) of a partition. They may have holes: `size` is not the number of records. `topic_id`:
    the topic of the offsets, None if it does not matter.
    """

    partition: TopicPartition
    start: int
    end: int
    topic_id: UUID | None = None

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


class RangeReader:
    """Reads one range, once. `poll_timeout_s` bounds the wait for the next batch, retries included. `quarantine`: a
    batch that cannot be opened is passed on and is not an error.

    Deleted offsets of the range are a `DataLossError`; without `fail_on_data_loss` they are a warning, and the rest is
    read. A topic that is replaced meanwhile is always an error, since its offsets are not those of the range.
    """

    def __init__(
        self,
        client: FetchClient,
        range_: OffsetRange,
        *,
        fail_on_data_loss: bool,
        poll_timeout_s: float,
        quarantine: bool = False,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> None:
        self._range = range_
        self._strict = fail_on_data_loss
        self._poll_timeout_s = poll_timeout_s
        self._reader = PartitionReader(
            client,
            range_.partition,
            range_.start,
            topic_id=range_.topic_id,
            quarantine=quarantine,
            hint=_HINT,
            isolation=isolation,
        )

    def batches(self) -> Iterator[ReadBatch]:
        """Yields each batch by itself, as lists, in offset order. Raises `DataLossError`, `CorruptRecordError` or
        the broker's error, which names partition and offset."""
        return self._all(self._reader.batches)

    def arrow_batches(self) -> Iterator[ReadBatch]:
        """Yields the columns of many batches as one `ArrowColumns`, without an object for each record. Needs
        pyarrow.
        """
        return self._all(self._reader.arrow_batches)

    def raw_batches(self) -> Iterator[RawBatch]:
        """Yields the batches that overlap the range, unopened."""
        return self._all(self._reader.raw_batches)

    def _all(self, read: Callable[[bytes, int], Iterator[Batch]]) -> Iterator[Batch]:
        end = self._range.end
        while self._reader.position < end:
            try:
                data = self._reader.fetch(self._poll_timeout_s, until=end)
            except OffsetsDeletedError as error:
                self._go_on(error)
            except LogTruncatedError as error:
                if self._strict:
                    raise
                _log.warning("%s", error)
            else:
                yield from read(data, end)

    def _go_on(self, error: OffsetsDeletedError) -> None:
        """Moves to the remaining part of the range, for callers that continue without the deleted part."""
        lost, start, end = error.position, error.log_start_offset, self._range.end
        following = start if start > lost else end
        what = f"{self._range.partition}: the offsets {lost} to {min(following, end)} were deleted"
        problem = DataLossError(f"{what} (the log starts at {start}); failOnDataLoss=false reads what is left")
        if self._strict:
            raise problem from error
        _log.warning("%s", problem)
        self._reader.seek(following)
