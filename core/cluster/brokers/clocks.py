"""Warns of brokers whose clock is far off. Nothing in the cluster rests on clocks (docs/replication.md, "Pauses and
clocks"), but retention and the timestamps of records do."""

from __future__ import annotations

import logging
from typing import Final

from ..image import ClusterImage

_log = logging.getLogger(__name__)
_FAR_S: Final = 60.0
"""Much longer than the time between a registration and its reading."""


def warn_of_clocks(before: ClusterImage, now: ClusterImage, now_s: float) -> None:
    """Logs one line for each broker that has just registered with a clock that is far from `now_s`, this broker's clock
    in seconds since 1970."""
    for number, node in now.brokers.items():
        known = before.brokers.get(number)
        if known is not None and known.registration.incarnation == node.registration.incarnation:
            continue
        ahead_s = node.registered_ms / 1000 - now_s
        if abs(ahead_s) > _FAR_S:
            _log.warning(
                "the clock of broker %d is %.1f minutes %s this broker's: timestamps and retention follow each "
                "broker's own clock; correct it",
                number, abs(ahead_s) / 60, "ahead of" if ahead_s > 0 else "behind",
            )  # fmt: skip
