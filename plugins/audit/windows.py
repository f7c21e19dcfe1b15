"""Windows of record time: equal spans of UTC, counted from the epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum

from klamm.core.records import native
from klamm.plugin import NO_WINDOW, Buffer, ConfigError


def clock_ms() -> int:
    """Returns the present time in ms since the epoch."""
    return time.time_ns() // 1_000_000


def tally(timestamps_ms: Buffer, sizes: Buffer, window_ms: int, found: dict[int, list[int]]) -> None:
    """Adds columns of int64 to `found`, which has [count, bytes] by window start."""
    for start, count, size in native.tally(timestamps_ms, sizes, window_ms):
        cell = found.setdefault(start, [0, 0])
        cell[0] += count
        cell[1] += size


def int64_column(numbers: Sequence[int]) -> memoryview[int]:
    """Returns a buffer for `tally`: `numbers` themselves if they are an immutable buffer, else a copy."""
    if isinstance(numbers, memoryview) and numbers.readonly and numbers.format == "q":
        return numbers
    return memoryview(native.int64s(list(numbers))).cast("q")


class Span(StrEnum):
    """The spans by which a report groups windows."""

    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    WINDOW = "window"

    def label(self, start_ms: int) -> str:
        """Returns the label of the row that contains a window; labels of one span sort as their times do."""
        if start_ms == NO_WINDOW:
            return "no timestamp"
        return utc(start_ms).strftime(_FORMATS[self])


_FORMATS = {
    Span.MONTH: "%Y-%m",
    Span.DAY: "%Y-%m-%d",
    Span.HOUR: "%Y-%m-%d %H:00",
    Span.WINDOW: "%Y-%m-%d %H:%M",
}


_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


def utc(timestamp_ms: int) -> datetime:
    """Returns the instant as a datetime; a time beyond the calendar (a sender's clock can have any value) becomes its
    first or last instant.
    """
    seconds = timestamp_ms / 1000
    if seconds <= _FIRST.timestamp():
        return _FIRST
    return _LAST if seconds >= _LAST.timestamp() else datetime.fromtimestamp(seconds, UTC)


def iso(timestamp_ms: int) -> str:
    """Returns a text such as `2013-01-31T23:50Z`."""
    return utc(timestamp_ms).replace(tzinfo=None).isoformat(timespec="minutes") + "Z"


def parse_instant(text: str) -> int:
    """Returns the ms since the epoch of a date or time in ISO 8601, in UTC if it names no zone; raises `ValueError` if
    it is neither.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_span(since: str, until: str, prefix: str = "") -> tuple[int | None, int | None]:
    """Parses two instants in ms since the epoch, each None if its text is empty. Raises `ConfigError` in one line,
    in which their names have the `prefix`."""
    since_ms, until_ms = _instant(f"{prefix}since", since), _instant(f"{prefix}until", until)
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise ConfigError(f"{prefix}since: expected an instant before {prefix}until, got {since!r}")
    return since_ms, until_ms


def _instant(name: str, text: str) -> int | None:
    try:
        return parse_instant(text) if text else None
    except ValueError as error:
        raise ConfigError(f"{name}: expected a date or time in ISO 8601, got {text!r}") from error
