"""Timestamps as local times of a time zone, from which a load's `dt` and `hr` are derived."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .contents import Longs

_LAST_US: Final = 253_402_300_799_999_999
"""The end of the year 9999 UTC; later timestamps are clipped to this."""


def local_time(timestamps: Longs, timezone: str) -> Longs:
    """Returns microseconds since 1970 in local time; the repeated hour, when clocks are set back, appears once. For
    `NONE` and times before 1970 the result is undefined: check the timestamps for these.
    """
    if timezone == "UTC":
        return timestamps
    instants = pa.array(np.clip(timestamps, 0, _LAST_US)).cast(pa.timestamp("us", tz=timezone))
    return np.asarray(pc.local_timestamp(instants).cast(pa.int64()), np.int64)
