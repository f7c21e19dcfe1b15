"""Logs and counts the damaged places of one log, each place once."""

from __future__ import annotations

import logging
from typing import Final

from ..records.partition import TopicPartition
from .segment.reading import BrokenChainError

_log = logging.getLogger(__name__)
_MAX_PLACES: Final = 1000


class DamagedPlaces:
    """Remembers the damaged places that reads of one log have found. Takes no lock: two readers that find the same
    place at the same moment may both log it."""

    def __init__(self, tp: TopicPartition) -> None:
        self._tp = tp
        self._places: set[tuple[str, int]] = set()

    @property
    def count(self) -> int:
        """Damaged places found since the log was opened, at most 1,000."""
        return len(self._places)

    def report(self, broken: BrokenChainError) -> None:
        """Logs and counts the place. Does nothing if the place is known or 1,000 places are."""
        place = broken.path.name, broken.position
        if place not in self._places and len(self._places) < _MAX_PLACES:
            self._places.add(place)
            _log.error("%s: %s; it is not served", self._tp, broken)
