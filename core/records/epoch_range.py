"""The records of one leader epoch in a log."""

from __future__ import annotations

from typing import NamedTuple


class EpochRange(NamedTuple):
    """The epoch's records lie from `start` up to `end`, which is not in it."""

    epoch: int
    start: int
    end: int
