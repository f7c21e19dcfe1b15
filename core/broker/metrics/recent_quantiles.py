"""Quantiles of the last minutes, computed from cumulative histograms as the difference to a snapshot.

Rules: requests pay nothing; the reader takes the snapshots, at most one in `WINDOW_S`, and computes the difference
to the last but one. So an answer covers the last 2.5 to 5 minutes, or longer if nothing was read for some time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ...protocol.apis import ApiKey
from .counters import RequestTimes

WINDOW_S: Final = 150.0
QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)
_Counts = dict[ApiKey, list[int]]


class RecentTimes:
    """Belongs to the thread that reads. `clock` returns monotonic seconds."""

    def __init__(self, times: Mapping[ApiKey, RequestTimes], clock: Callable[[], float] = time.monotonic) -> None:
        self._times = times
        self._clock = clock
        self._older = self._newer = self._counts()
        self._taken_at = clock()

    def _counts(self) -> _Counts:
        return {api: list(times.buckets) for api, times in self._times.items()}

    def quantiles_ns(self) -> dict[ApiKey, list[float]]:
        """Returns, for each API that was requested, the duration at each of `QUANTILES`. The error is at most the
        width of a bucket."""
        now = self._counts()
        if self._clock() - self._taken_at >= WINDOW_S:
            self._older, self._newer, self._taken_at = self._newer, now, self._clock()
        found = {}
        for api, counts in now.items():
            added = [count - before for count, before in zip(counts, self._older[api], strict=True)]
            if any(added):
                found[api] = [_quantile_ns(added, quantile) for quantile in QUANTILES]
        return found


def _quantile_ns(counts: list[int], quantile: float) -> float:
    """Returns the quantile as Prometheus does: evenly spread within a bucket; the last bucket's lower end if it lies
    there.
    """
    rank = quantile * sum(counts)
    below = 0
    for index, count in enumerate(counts):
        if count and below + count >= rank:
            low = RequestTimes.upper_bound_ns(index - 1) if index else 0.0
            high = RequestTimes.upper_bound_ns(index)
            return low if high == float("inf") else low + (high - low) * (rank - below) / count
        below += count
    raise AssertionError("a rank lies within the counts")
