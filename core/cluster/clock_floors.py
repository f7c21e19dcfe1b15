"""Lower bounds of new leader epochs and producer ids that grow with the clock, so that none is reused after a restore.

A restore of coordination and logs from one backup sets every counter back. The next leader epoch and the next producer
id would be those of the lost history, and neither consumers nor logs could tell the two apart. The clock is not set
back, so both continue above a floor that grows with it. With a slow clock only this protection is lost: new epochs and
ids are always above those in the coordination and the logs.
"""

from __future__ import annotations

from typing import Final

_EPOCH_S: Final = 1_767_225_600
"""2026-01-01 00:00 UTC, in seconds since 1970."""
_HIGHEST_S: Final = 2**30
"""34 years: leader epochs are int32, and a clock that is far ahead must leave numbers for further epochs."""
_IDS_PER_SECOND: Final = 2**20


def leader_epoch_floor(now_s: float) -> int:
    """Returns the whole seconds since 2026: more than any leader epoch of an earlier second, elections included."""
    return int(_seconds(now_s))


def time_of_epoch(leader_epoch: int) -> int:
    """Returns the seconds since 1970 at which this epoch was the floor."""
    return _EPOCH_S + leader_epoch


def producer_id_floor(now_s: float) -> int:
    """Returns a number above any producer id that was allocated before `now_s`, at up to a million ids a second."""
    return int(_seconds(now_s) * _IDS_PER_SECOND)


def _seconds(now_s: float) -> float:
    return min(max(now_s - _EPOCH_S, 0), _HIGHEST_S)
