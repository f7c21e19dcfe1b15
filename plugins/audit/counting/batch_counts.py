"""The counts of one record batch, by window of record time and producer.

Rules:

- Records are counted by producer, which the first record of each batch names (see `origins`); those of clients that do
  not audit are counted separately. So no client's record compensates for a lost one of another.
- An uncompressed batch is counted by its header if its producer's mark says that all its records lie in one window. The
  records of other batches are iterated: a header does not show it, because the base timestamp is the first record's and
  not the earliest. Those of compressed batches too: by default the broker does not read them on Produce
  (`verify.payload`), so that there the header may state records that the batch does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from klamm.core.records import native
from klamm.core.records.decode import RecordArea
from klamm.plugin import CorruptRecordError, TopicPartition

from ..event import FOREIGN
from .origins import Mark, batch_name, mark_of

if TYPE_CHECKING:  # the twin of the compiled module, which need not be loaded
    from klamm.core.records.fallback import WindowCounts

MAX_MARKS: Final = 1000
"""Headers whose parsed form is cached: those of a producer's batches differ only by their number of records."""

MAX_CACHED_HEADERS: Final = 2048
"""Bytes of such headers; longer ones are parsed each time. So the cache has at most 2 MB of them."""

MAX_CELLS: Final = 20_000
"""Counts of one range, by window and producer: some 600 kB in its event, and 11 MB with the longest ids; the audit
topic takes 16 MiB."""

Cells = dict[tuple[int, str], tuple[int, int]]
"""(records, their bytes) by (start of a window, source)."""
_Counts = Iterable[tuple[int, int, int, str]]
"""(start of a window, records, their bytes, source)."""


class BatchCounter:
    """Counts batches by windows of `window_ms`. Called from one thread."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._marks: dict[bytes, Mark] = {}

    def count(
        self, partition: TopicPartition, area: RecordArea, max_timestamp: int, position: int, *, stored: bool
    ) -> Cells | None:
        """Returns the counts of a batch's records from offset `position` on; None if they have more than `MAX_CELLS`.
        Its CRC is checked. `stored`: the records lie in the log as they are in `area`, not compressed. Raises
        `CorruptRecordError` for records or headers that are not whole.
        """
        if stored and position <= area.base_offset and area.records == area.last_delta + 1:
            stated = self._stated(partition, area, max_timestamp)
            if stated is not None:
                return stated
        return add_up(self._iterated(partition, area, position))

    def _iterated(self, partition: TopicPartition, area: RecordArea, position: int) -> _Counts:
        found = native.window_counts(*area, position, area.base_offset + area.last_delta + 1, self.window_ms)
        whose = self._sender(partition, area, found, position)
        return ((start, records, size, whose) for start, records, size, _ in found)

    def _stated(self, partition: TopicPartition, area: RecordArea, max_timestamp: int) -> Cells | None:
        """Returns the content that the mark of the batch states, if it belongs to this batch, agrees with the header
        and is possible for records of these bytes.

        The number of records comes from the header; so does the window, if the broker sets the timestamps.
        """
        window_ms = self.window_ms
        headers = native.first_headers(area.data)
        try:
            mark = Mark(FOREIGN) if not headers else self._mark(headers)
        except CorruptRecordError:  # the error is reported when the records are read
            return None
        holds = mark.holds
        if holds is None or holds.window_ms != window_ms or mark.batch != batch_name(partition, area.records):
            return None
        if holds.start_ms < 0 or holds.start_ms % window_ms or not 0 <= holds.size <= len(area.data):
            return None
        if area.fixed:
            window = area.base_timestamp - area.base_timestamp % window_ms
        elif holds.start_ms <= area.base_timestamp <= max_timestamp < holds.start_ms + window_ms:
            window = holds.start_ms
        else:
            return None
        return {(window, mark.source): (area.records, holds.size)}

    def _sender(self, partition: TopicPartition, area: RecordArea, found: Sequence[WindowCounts], position: int) -> str:
        """Returns the producer of the batch, by the mark of its first record."""
        if position > area.base_offset:  # the first one was counted before
            end = area.base_offset + area.last_delta + 1
            found = native.window_counts(*area, area.base_offset, end, self.window_ms)
        if not found:
            return FOREIGN
        first = self._mark(found[0][3])
        return first.source if first.batch == batch_name(partition, area.last_delta + 1) else FOREIGN

    def _mark(self, headers: bytes) -> Mark:
        """Returns the result of `mark_of`, cached for the same bytes unless they are long."""
        if len(headers) > MAX_CACHED_HEADERS:
            return mark_of(headers)
        mark = self._marks.get(headers)
        if mark is None:
            if len(self._marks) >= MAX_MARKS:
                self._marks.clear()
            mark = self._marks[headers] = mark_of(headers)
        return mark


def add_cells(found: Cells, more: Cells) -> None:
    """Adds the counts of `more` to `found`."""
    for cell, (records, size) in more.items():
        before, bytes_before = found.get(cell, (0, 0))
        found[cell] = before + records, bytes_before + size


def add_up(counts: _Counts) -> Cells | None:
    """Returns the sums by window and source; None if there are more than `MAX_CELLS`."""
    cells: Cells = {}
    for start, records, size, source in counts:
        before, bytes_before = cells.get((start, source), (0, 0))
        cells[start, source] = (before + records, bytes_before + size)
        if len(cells) > MAX_CELLS:
            return None
    return cells
