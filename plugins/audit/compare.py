"""The comparison: is what each tier counted, window by window, what the tier before it counted?

Which count is measured against which:

    broker      / producers' acknowledged     (attempted is shown, and measured against nothing: who was not
                                               acknowledged has an error in his hands)
    consumer/g  / broker
    hadoop/job  / broker
    mirror/name / broker

A ratio of exactly 1 is complete; below, records are missing; above, some are counted twice. A count is *unknown*, and
never complete, when its tier or the one it is measured against has told nothing, has ranges that do not tile, lost a
producer without its last counts, or had records it could not count; and where it is above 1 only because the other is
still counting. Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from klamm.core.seams.audit import NO_WINDOW
from klamm.plugins.audit.event import BROKER, PRODUCER, TIERS, AuditEvent
from klamm.plugins.audit.tiling import Kind, Problem, Tally, TierCounts, TierKey, tier_counts

PRODUCERS = TierKey(PRODUCER)


class State(StrEnum):
    """From good to bad: a row shows the worst of its cells."""

    COMPLETE = "complete"
    DUPLICATED = "duplicated"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cell:
    """One tier in one window. `ratio` to the tier before it; None for producers, who are the measure, and where it is
    unknown."""

    records: int
    size: int
    attempted: int
    ratio: float | None
    state: State


@dataclass(frozen=True, slots=True)
class WindowAudit:
    start_ms: int
    cells: dict[TierKey, Cell]

    @property
    def complete(self) -> bool:
        return all(cell.state is State.COMPLETE for cell in self.cells.values())


@dataclass(frozen=True)
class TopicAudit:
    """One topic: its tiers in their order along the pipeline, windows by time, and what is wrong with the events."""

    topic: str
    window_ms: int
    tiers: tuple[TierKey, ...]
    windows: tuple[WindowAudit, ...]
    problems: tuple[Problem, ...]
    live_producers: tuple[str, ...]
    watermark_ms: int | None
    """The completeness watermark: up to here, every window that holds a record is complete at every tier."""

    @property
    def complete(self) -> bool:
        return bool(self.windows) and not self.problems and all(window.complete for window in self.windows)

    def lowest(self) -> float | None:
        """The lowest ratio over all windows and tiers; None when one of them is unknown, or there is none."""
        return lowest(cell for window in self.windows for cell in window.cells.values())


def lowest(cells: Iterable[Cell]) -> float | None:
    """The lowest ratio; None when a cell is unknown or there is nothing to measure."""
    ratios: list[float] = []
    for cell in cells:
        if cell.state is State.UNKNOWN:
            return None
        if cell.ratio is not None:
            ratios.append(cell.ratio)
    return min(ratios, default=None)


def compare(
    events: Iterable[AuditEvent],
    now_ms: int,
    expect: Collection[TierKey] = (),
    topics: Collection[str] = (),
) -> list[TopicAudit]:
    """Topics by name: those that events speak of, and `topics`. `expect` names tiers besides producer and broker that
    must have counted each topic."""
    by_topic: dict[str, list[AuditEvent]] = {topic: [] for topic in topics}
    for event in events:
        by_topic.setdefault(event.topic, []).append(event)
    return [_compare_topic(topic, by_topic[topic], now_ms, expect) for topic in sorted(by_topic)]


def _compare_topic(topic: str, events: list[AuditEvent], now_ms: int, expect: Collection[TierKey]) -> TopicAudit:
    window_ms = math.lcm(*{event.window_ms for event in events})
    found = tier_counts(topic, events, window_ms, now_ms)
    for tier in (PRODUCERS, *expect):
        _require(topic, tier, found)
    if not any(tier.tier == BROKER for tier in found):
        _require(topic, TierKey(BROKER), found)
    order = sorted(found, key=lambda tier: (TIERS.index(tier.tier), tier.owner))
    starts = sorted({start for counts in found.values() for start in counts.windows})
    windows = tuple(WindowAudit(start, _cells(start, order, found)) for start in starts)
    return TopicAudit(
        topic,
        window_ms,
        tuple(order),
        windows,
        tuple(problem for tier in order for problem in found[tier].problems),
        tuple(found[PRODUCERS].live),
        watermark(windows, window_ms),
    )


def _require(topic: str, tier: TierKey, found: dict[TierKey, TierCounts]) -> None:
    if tier not in found:
        counts = found[tier] = TierCounts(tier)
        counts.problems.append(Problem(Kind.ABSENT, topic, tier, f"{tier} has counted nothing"))


def _cells(start: int, order: list[TierKey], found: dict[TierKey, TierCounts]) -> dict[TierKey, Cell]:
    broker = next(tier for tier in order if tier.tier == BROKER)
    cells = {}
    for tier in order:
        before = {PRODUCER: None, BROKER: PRODUCERS}.get(tier.tier, broker)
        cells[tier] = _cell(start, found[tier], found[before] if before else None)
    return cells


def _cell(start: int, mine: TierCounts, before: TierCounts | None) -> Cell:
    tally = mine.windows.get(start, Tally())
    ratio, state = None, State.UNKNOWN
    if before is None:
        state = State.UNKNOWN if mine.problems else State.COMPLETE
    elif not mine.problems and not before.problems:
        expected = before.windows.get(start, Tally()).records
        ratio, state = _measure(tally.records, expected)
        if state is State.DUPLICATED and _still_counting(before, mine):
            ratio, state = None, State.UNKNOWN
    return Cell(tally.records, tally.size, tally.attempted, ratio, state)


def _measure(records: int, expected: int) -> tuple[float, State]:
    if records == expected:
        return 1.0, State.COMPLETE
    if records > expected:
        return (records / expected if expected else math.inf), State.DUPLICATED
    return records / expected, State.MISSING


def _still_counting(before: TierCounts, mine: TierCounts) -> bool:
    """The tier before is behind: a producer lives and will tell more, or offsets that I have counted it has not."""
    return bool(before.live) or any(
        before.ends.get(partition, 0) < end for partition, end in mine.ends.items() if before.tier.tier != PRODUCER
    )


def watermark(windows: Iterable[WindowAudit], window_ms: int) -> int | None:
    """The end of the last window before the first that is not complete, in ms since the epoch; None when there is
    none. A downstream job that needs all of a day waits until the watermark has passed its end."""
    reached: int | None = None
    for window in windows:
        if window.start_ms == NO_WINDOW:
            continue
        if not window.complete:
            break
        reached = window.start_ms + window_ms
    return reached
