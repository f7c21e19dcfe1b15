"""Builds the indexes of a segment from its batches, after a crash or if an index is missing or damaged."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import CorruptRecordError
from ...records.header import HEADER_SIZE, NO_TIMESTAMP, BatchHeader
from ...records.partition import TopicPartition
from ..recovery.resync import find_whole
from .index_file import SegmentState
from .log_file import LogFile
from .offset_index import MAX_RELATIVE
from .scan import scan
from .segment_indexes import LargestTimestamp, SegmentIndexes

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Checked:
    """Counts the bytes that recovery has read, for reports of its progress."""

    bytes: int = 0


class BuiltIndexes(NamedTuple):
    """The result of a pass over a segment's batches.

    - `end`: the position where the last whole batch ends.
    - `next_offset`, `largest`: the offset after that batch, and the largest timestamp up to it.
    - `first_timestamp`: the max timestamp of the first batch; None if that batch was not read.
    - `first_marker`: the offset of the first marker of a transaction; None if none was read. The transaction index
      lacks the transactions that these markers abort: they may begin in an earlier segment.
    - `damaged`: True if a batch below `keep_below` (see `build`) is damaged.
    - `error`: the reason why the pass ended before the end of the file; None if it did not.
    """

    end: int
    next_offset: int
    largest: LargestTimestamp
    first_timestamp: int | None
    first_marker: int | None
    damaged: bool
    error: CorruptRecordError | None


def check_follows(header: BatchHeader, base_offset: int, next_offset: int) -> None:
    """Raises `CorruptRecordError` unless the batch may follow the last one, which ends before `next_offset`, in the
    segment with this base offset."""
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        raise CorruptRecordError(f"batch at offset {header.base_offset} comes after offset {next_offset - 1}")
    if header.last_offset - base_offset > MAX_RELATIVE:
        raise CorruptRecordError(
            f"batch at offset {header.base_offset} is too far from the segment's base offset {base_offset}"
        )


class IndexBuilder:
    """Builds the indexes in one pass over a segment; `build` is called once."""

    def __init__(
        self,
        tp: TopicPartition,
        log_file: LogFile,
        indexes: SegmentIndexes,
        base_offset: int,
        size: int,
        index_interval_bytes: int,
        checked: Checked,
        *,
        dense: bool,
        verify: bool,
    ) -> None:
        """`dense`: a batch that does not begin exactly at the end of the one before it is damaged. `verify`: CRCs are
        checked."""
        self._tp = tp
        self._log_file = log_file
        self._file = log_file.open()
        self._indexes = indexes
        self._base = base_offset
        self._size = size
        self._interval = index_interval_bytes
        self._checked = checked
        self._dense = dense
        self._verify = verify
        self._next_offset = base_offset
        self._largest = LargestTimestamp(NO_TIMESTAMP, base_offset)
        self._first_timestamp: int | None = None
        self._first_marker: int | None = None
        self._damaged = False

    def build(self, state: SegmentState | None = None, keep_below: int = 0) -> BuiltIndexes:
        """Indexes all batches, or only those after `state`, if the indexes of that state have been loaded.

        Damage at an offset below `keep_below` is skipped if a whole batch follows it.
        """
        end, error = self._index_from(self._begin(state))
        while error and self._next_offset < keep_below:
            behind = self._pass_over(end, error)
            if behind is None:
                break
            end, error = self._index_from(behind)
        self._indexes.close(self._largest)
        return BuiltIndexes(
            end, self._next_offset, self._largest, self._first_timestamp, self._first_marker, self._damaged, error
        )

    def _begin(self, state: SegmentState | None) -> int:
        """Returns the position of the first batch to index."""
        if state is not None:
            try:
                self._indexes.grow()
            except CorruptRecordError as error:
                _log.warning("%s: %s; all indexes of the segment are rebuilt", self._tp, error)
            else:
                self._next_offset = state.next_offset
                self._largest = LargestTimestamp(state.largest_ms, state.largest_offset)
                return state.size
        self._indexes.clear()
        return 0

    def _index_from(self, end: int) -> tuple[int, CorruptRecordError | None]:
        """Indexes the batches from position `end` on. Returns the position where the last whole one ends, and the error
        that follows it, if any."""
        try:
            for position, header in scan(self._file, end, self._size, verify=self._verify):
                check_follows(header, self._base, self._next_offset)
                if self._dense and header.base_offset != self._next_offset:
                    raise CorruptRecordError(
                        f"batch at offset {header.base_offset} should begin at {self._next_offset}"
                    )
                self._index(header, position)
                self._checked.bytes += header.size
                end = position + header.size
        except CorruptRecordError as error:
            return end, error
        return end, None

    def _pass_over(self, damaged: int, error: CorruptRecordError) -> int | None:
        """Indexes the first whole batch after byte `damaged`, so that an index entry leads readers past the damage.
        Returns the position where that batch ends; None if no whole batch follows."""
        self._damaged = True
        behind = find_whole(self._file, damaged + 1, self._size, self._next_offset)
        if behind is None:
            return None
        header = BatchHeader.parse(self._file.read(HEADER_SIZE, behind))
        if header.last_offset - self._base > MAX_RELATIVE:
            return None
        _log.error(
            "%s: bytes %d to %d of %s (offsets %d to %d) are damaged: %s; reads of them fail, later batches are kept",
            self._tp, damaged, behind, self._log_file.path, self._next_offset, header.base_offset - 1, error,
        )  # fmt: skip
        self._indexes.bytes_since_entry = self._interval + 1
        check_follows(header, self._base, self._next_offset)
        self._index(header, behind)
        return behind + header.size

    def _index(self, header: BatchHeader, position: int) -> None:
        indexes = self._indexes
        if position == 0:
            self._first_timestamp = header.max_timestamp
        if header.is_marker and self._first_marker is None:
            self._first_marker = header.base_offset
        self._next_offset = header.next_offset
        if header.max_timestamp > self._largest.timestamp_ms:
            self._largest = LargestTimestamp(header.max_timestamp, header.last_offset)
        if indexes.bytes_since_entry > self._interval:
            indexes.add(header.last_offset, position, self._largest)
        indexes.bytes_since_entry += header.size
