"""The tiers of a comparison as data: what each has counted by window, and the problems of its events."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from klamm.plugin import NO_WINDOW

from ..event import BROKER, MIRROR, PRODUCER, AuditEvent, EventWindow

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
    TWO_LAKES = "two lakes"


class State(StrEnum):
    """The states of a count, from good to bad: a row shows the worst of its cells.

    `NOT_COMPARED`: the tier began inside or after the window; `LATE`: it has not read that far yet.
    """

    COMPLETE = "complete"
    NOT_COMPARED = "not compared"
    SETTLED = "settled"
    DUPLICATED = "duplicated"
    LATE = "late"
    MISSING = "missing"
    UNKNOWN = "unknown"

    @property
    def passes(self) -> bool:
        """True if the count holds neither the watermark nor a gate (docs/audit.md, R20)."""
        return self in (State.COMPLETE, State.NOT_COMPARED, State.SETTLED)


class TierKey(NamedTuple):
    """A column of the comparison. The producers of a topic are one tier, with the owner ""."""

    tier: str
    owner: str = ""

    def __str__(self) -> str:
        return f"{self.tier}/{self.owner}" if self.owner and self.tier not in (BROKER, MIRROR) else self.tier


PRODUCERS: Final = TierKey(PRODUCER)


class Place(NamedTuple):
    """One partition of one topic id (empty where events do not name it)."""

    topic_id: str
    partition: int


class LogEnd(NamedTuple):
    """The beginning and end of a partition's log before the events were read; -1 if no broker could report them.
    `counted`: the offset that the broker tier has committed; -1 if it was not requested. `kept`: where the leader epoch
    of the broker tier's newest range ends in the log, after the events were read; -1 if unknown."""

    start: int
    end: int
    counted: int = -1
    kept: int = -1


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


class Lost(NamedTuple):
    """What a mirror had counted and has lost (rule R25): an event with the counts that are known. `ranges`: those whose
    part in it is not known, as they were counted."""

    event: AuditEvent
    ranges: tuple[AuditEvent, ...]


class Ended(NamedTuple):
    """A group or lake that is not compared any more, or a lake that a newer one replaced (rules R5 and R6). `lake`: its
    id; empty for a group, and where every lake of the sink ended. `who` is empty where it was replaced."""

    tier: TierKey
    lake: str
    time_ms: int
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One tier in one window. `expected`: the count it is compared with. `ratio` to that; None for producers, which are
    the reference, and where it is unknown or not compared. `foreign`: records of clients that do not audit (the
    broker's). `holds`: the tier is expected, so that its count holds watermark, gate and exit status."""

    records: int
    size: int
    attempted: int
    ratio: float | None
    state: State
    expected: int = 0
    foreign: int = 0
    holds: bool = True

    @property
    def counts(self) -> bool:
        """True if the completeness of several cells includes this one."""
        return self.holds and self.state is not State.NOT_COMPARED

    @property
    def short(self) -> int:
        """Records too few; 0 where that is unknown."""
        return 0 if self.ratio is None or self.ratio >= 1 else round((1 - self.ratio) * self.expected)

    @property
    def over(self) -> int:
        """Records too many; 0 where that is unknown."""
        if self.ratio is None or self.ratio <= 1:
            return 0
        return round((self.ratio - 1) * self.expected) if self.expected else self.records


@dataclass(frozen=True, slots=True)
class WindowAudit:
    start_ms: int
    cells: dict[TierKey, Cell]

    @property
    def complete(self) -> bool:
        return all(cell.state.passes for cell in self.cells.values() if cell.holds)


class Horizon(NamedTuple):
    """The bound of a watermark: it may not pass a window that ends after `limit_ms`, nor one of `held`, in which a live
    producer counted so recently that it may count again. -inf where a log was never counted."""

    limit_ms: float
    held: frozenset[int] = frozenset()


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
    """Counts of one window. In a producer's, `attempted` records were sent and `records` of them acknowledged."""

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

    def windows_since(self, since_ms: int, window_ms: int) -> set[int]:
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

    `sources`: the records of each window by producer (for producers the acknowledged ones). `by_place`: those of each
    partition by window. `tiles`: the events that were chosen, sorted by `from`. `begins`: where a reader's demand
    begins, if not with the broker's count; `restarted`: the tier began a new life after an end.
    """

    tier: TierKey
    windows: dict[int, Tally] = field(default_factory=dict)
    by_place: dict[Place, dict[int, int]] = field(default_factory=dict)
    sources: dict[int, dict[str, int]] = field(default_factory=dict)
    tiles: dict[Place, list[AuditEvent]] = field(default_factory=dict)
    told: dict[int, set[str]] = field(default_factory=dict)
    """The producers in each window of the broker tier's events, also of those that are void."""
    begins: dict[Place, int] = field(default_factory=dict)
    restarted: bool = False
    cuts: dict[Place, list[Lost]] = field(default_factory=dict)
    lost: dict[int, dict[str, int]] = field(default_factory=dict)
    """The records of these cuts by window and producer."""
    topic_ids: set[str] = field(default_factory=set)
    """Those of all events of a reader: also where it has counted nothing yet."""
    set_back: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    """Spans of offsets that a group had committed, and that a later owner read again because it began below them."""
    lives: list[ProducerLife] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    ages: dict[int, dict[Age, int]] = field(default_factory=dict)
    """Records of each window by their age when the audit topic got their count."""
    replayed: int = 0
    uncounted_ms: float = math.inf
    """The earliest time of a record that the log may hold and the broker tier has not counted yet."""

    def add(self, event: AuditEvent, window_ms: int) -> None:
        by_window = (
            {} if event.partition is None else self.by_place.setdefault(Place(event.topic_id, event.partition), {})
        )
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

    def lose(self, place: Place, lost_here: Lost, window_ms: int) -> None:
        self.cuts.setdefault(place, []).append(lost_here)
        for window in lost_here.event.windows:
            lost = self.lost.setdefault(wide(window.start_ms, window_ms), {})
            lost[window.source] = lost.get(window.source, 0) + window.records

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
