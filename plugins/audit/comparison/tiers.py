"""The tiers of a comparison as data: what each has counted by window, and the problems of its events."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from klamm.plugin import NO_WINDOW

from ..event import PRODUCER, AuditEvent, EventWindow

PATIENCE: Final = 3
"""A producer that was silent for this number of its intervals, without a final event, was killed or cut off."""

DEFAULT_LATENESS_MS: Final = 600_000


class Kind(StrEnum):
    """The kinds of problems of a tier's events; each makes counts of some windows unknown."""

    GAP = "gap"
    OVERLAP = "overlap"
    KILLED = "killed"
    UNTOLD = "untold"
    LOSSY = "lossy"
    ABSENT = "absent"
    BEHIND = "behind"


class TierKey(NamedTuple):
    """A column of the comparison. The producers of a topic are one tier, with the owner ""."""

    tier: str
    owner: str = ""

    def __str__(self) -> str:
        return f"{self.tier}/{self.owner}" if self.owner and self.tier != "broker" else self.tier


PRODUCERS: Final = TierKey(PRODUCER)


class Place(NamedTuple):
    """One partition of one topic id (empty where events do not name it)."""

    topic_id: str
    partition: int


class LogEnd(NamedTuple):
    """The beginning and end of a partition's log before the events were read; -1 if no broker could report them."""

    start: int
    end: int


class Problem(NamedTuple):
    """`windows`: the starts of those in which it may have changed a count; None for every one. From `since_ms` on it
    may also affect windows that are not counted yet."""

    kind: Kind
    topic: str
    tier: TierKey
    text: str
    windows: frozenset[int] | None = None
    since_ms: float = math.inf

    def touches(self, start: int) -> bool:
        return self.windows is None or start in self.windows


class Age(NamedTuple):
    """The age of records when the audit topic got their count, within bounds: an event contains only the window of a
    record's timestamp."""

    least_s: int
    most_s: int

    @classmethod
    def of(cls, event: AuditEvent, window: EventWindow) -> Age:
        """Returns the bounds of the age. A timestamp later than the event, which is a sender's mistake, has age 0."""
        most_ms = event.seen_ms - window.start_ms
        return cls(max(most_ms - event.window_ms, 0) // 1000, math.ceil(max(most_ms, 0) / 1000))


@dataclass(slots=True)
class Tally:
    """Records of one window. For producers `records` are the acknowledged."""

    records: int = 0
    size: int = 0
    attempted: int = 0


@dataclass(frozen=True)
class ProducerLife:
    """The events of one producer, by number. `killed`: it was silent for too long without a final event."""

    owner: str
    events: tuple[AuditEvent, ...]
    killed: bool

    @property
    def last(self) -> AuditEvent:
        return self.events[-1]

    @property
    def ahead_ms(self) -> int:
        """The lead of its clock over the audit topic's in ms (below 0: behind), in the event where they differ least,
        because an event may have waited before it was stored.
        """
        off = (event.time_ms - event.stored_ms for event in self.events if event.stored_ms >= 0)
        return min(off, key=abs, default=0)

    @property
    def live(self) -> bool:
        return not self.killed and not self.last.final

    def told_since(self, since_ms: int, window_ms: int) -> set[int]:
        """Returns the windows of its events from then on."""
        return {
            wide(window.start_ms, window_ms)
            for event in self.events
            if event.seen_ms >= since_ms
            for window in event.windows
        }


@dataclass
class TierCounts:
    """The counts of one tier for one topic.

    `sources`: the records of each window by producer (for producers the acknowledged ones). `tiles`: the events that
    were chosen, sorted by `from`.
    """

    tier: TierKey
    windows: dict[int, Tally] = field(default_factory=dict)
    by_topic_id: dict[str, dict[int, int]] = field(default_factory=dict)
    sources: dict[int, dict[str, int]] = field(default_factory=dict)
    tiles: dict[Place, list[AuditEvent]] = field(default_factory=dict)
    set_back: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """Offsets that a group had committed, and that a later owner read again because it began below them."""
    lives: list[ProducerLife] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    ages: dict[int, dict[Age, int]] = field(default_factory=dict)
    """Records of each window by their age when the audit topic got their count."""
    replayed: int = 0
    uncounted_ms: float = math.inf
    """The earliest time of a record that the log may hold and the broker tier has not counted yet."""

    def add(self, event: AuditEvent, window_ms: int) -> None:
        by_window = self.by_topic_id.setdefault(event.topic_id, {})
        for window in event.windows:
            start = wide(window.start_ms, window_ms)
            tally = self.windows.setdefault(start, Tally())
            tally.records += window.records
            tally.size += window.size
            tally.attempted += window.attempted
            by_window[start] = by_window.get(start, 0) + window.records
            source = event.owner if event.tier == PRODUCER else window.source
            sources = self.sources.setdefault(start, {})
            sources[source] = sources.get(source, 0) + window.records
            ages = self.ages.setdefault(start, {})
            age = Age.of(event, window)
            ages[age] = ages.get(age, 0) + window.records

    @property
    def live(self) -> list[str]:
        """Returns the producers that are alive."""
        return [life.owner for life in self.lives if life.live]

    @property
    def ends(self) -> dict[Place, int]:
        """Returns for each partition one past the last offset covered."""
        return {place: tiles[-1].to_offset for place, tiles in self.tiles.items()}

    def doubts(self, start: int) -> bool:
        """Returns True if the counts of the window are unknown."""
        return any(problem.touches(start) for problem in self.problems)


def wide(start_ms: int, window_ms: int) -> int:
    """Returns the window of the comparison that contains a window of an event."""
    return start_ms - start_ms % window_ms if start_ms >= 0 else NO_WINDOW
