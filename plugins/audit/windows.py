"""Windows of record time: equal spans of UTC, counted from the epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum

from klamm.core.seams.audit import NO_WINDOW


def clock_ms() -> int:
    """Now, in ms since the epoch."""
    return time.time_ns() // 1_000_000


def window_start(timestamp_ms: int, window_ms: int) -> int:
    """The start of the window that a record falls in; `NO_WINDOW` for one without a timestamp."""
    return timestamp_ms - timestamp_ms % window_ms if timestamp_ms >= 0 else NO_WINDOW


def tally(timestamps_ms: Sequence[int], sizes: Sequence[int], window_ms: int) -> dict[int, list[int]]:
    """[count, bytes] by window start. It runs for every record that is counted; mostly all are of one window."""
    if not timestamps_ms:
        return {}
    one = window_start(min(timestamps_ms), window_ms)
    if one == window_start(max(timestamps_ms), window_ms):
        return {one: [len(timestamps_ms), sum(sizes)]}
    found: dict[int, list[int]] = {}
    for timestamp, size in zip(timestamps_ms, sizes, strict=True):
        start = timestamp - timestamp % window_ms if timestamp >= 0 else NO_WINDOW
        if start in found:
            cell = found[start]
            cell[0] += 1
            cell[1] += size
        else:
            found[start] = [1, size]
    return found


def tally_by_source(
    timestamps_ms: Sequence[int], sizes: Sequence[int], sources: Sequence[int], window_ms: int
) -> dict[tuple[int, int], list[int]]:
    """[count, bytes] by (window start, number of the source)."""
    if not timestamps_ms:
        return {}
    if min(sources) == max(sources):
        return {(start, sources[0]): cell for start, cell in tally(timestamps_ms, sizes, window_ms).items()}
    found: dict[tuple[int, int], list[int]] = {}
    for timestamp, size, source in zip(timestamps_ms, sizes, sources, strict=True):
        key = (timestamp - timestamp % window_ms if timestamp >= 0 else NO_WINDOW, source)
        if key in found:
            cell = found[key]
            cell[0] += 1
            cell[1] += size
        else:
            found[key] = [1, size]
    return found


class Span(StrEnum):
    """How a report groups windows."""

    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    WINDOW = "window"

    def label(self, start_ms: int) -> str:
        """The row that a window belongs to; labels of one span sort as their times do."""
        if start_ms == NO_WINDOW:
            return "no timestamp"
        return utc(start_ms).strftime(_FORMATS[self])


_FORMATS = {
    Span.MONTH: "%Y-%m",
    Span.DAY: "%Y-%m-%d",
    Span.HOUR: "%Y-%m-%d %H:00",
    Span.WINDOW: "%Y-%m-%d %H:%M",
}


_LAST = datetime.max.replace(tzinfo=UTC)


def utc(timestamp_ms: int) -> datetime:
    """The instant; what lies beyond the calendar (a sender's clock can say anything) is shown as its last instant."""
    seconds = timestamp_ms / 1000
    return _LAST if seconds >= _LAST.timestamp() else datetime.fromtimestamp(seconds, UTC)


def iso(timestamp_ms: int) -> str:
    """`2013-01-31T23:50Z`."""
    return utc(timestamp_ms).strftime("%Y-%m-%dT%H:%MZ")


def parse_instant(text: str) -> int:
    """ms since the epoch of a date or time in ISO 8601, UTC where it names no zone; `ValueError` if it is neither."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
