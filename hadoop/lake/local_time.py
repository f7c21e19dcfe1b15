"""Timestamps as local times of a time zone, from which a load's `dt` and `hr` are derived.

A record within the widest bounds (the years 1 to 9999, in any zone) may have a local time in the year 0 or 10000.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .contents import Longs

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY_US: Final = 86_400_000_000
_FIRST_US: Final = -719_165 * _DAY_US
_LAST_US: Final = 2_932_899 * _DAY_US
"""Two days before the year 1 and two days after the year 9999, which are outside of all bounds of a lake."""


def micros(instant: datetime) -> int:
    """Returns the microseconds since 1970, exactly."""
    return (instant - _EPOCH) // _MICROSECOND


def local_time(timestamps: Longs, timezone: str) -> Longs:
    """Returns microseconds since 1970 in local time; the repeated hour, when clocks are set back, appears once. `NONE`
    and timestamps that no lake accepts stay as they are.
    """
    if timezone == "UTC":
        return timestamps
    inside = (timestamps >= _FIRST_US) & (timestamps <= _LAST_US)
    instants = pa.array(timestamps[inside]).cast(pa.timestamp("us", tz=timezone))
    shown = timestamps.copy()
    shown[inside] = np.asarray(pc.local_timestamp(instants).cast(pa.int64()), np.int64)
    return shown


def day_start(day: str) -> int | None:
    """Returns the microseconds from 1970-01-01 to the day `YYYY-MM-DD`, whose year may have more than four digits; None
    if there is no such day."""
    try:
        return int(np.datetime64(day, "D").astype(np.int64)) * _DAY_US
    except ValueError:
        return None
