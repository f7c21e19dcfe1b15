"""The comparison: is what each tier counted, window by window, what the tier before it counted?

Which count is compared with which:

    broker      / producers' acknowledged     (producer by producer; attempted is shown, and compared with nothing: a
    record without acknowledgement has an error on its future) consumer/g  / broker                      (with the
    records of clients that do not audit; by topic id) hadoop/load/job  / broker

A ratio of exactly 1 is complete; below, records are missing; above, some are counted twice. A count is *unknown*, and
never complete, when its tier or the one it is compared with has sent no event, or in the windows that a problem of one
of them affects (see `rules`); and where it is above 1 only because the other is still counting. The ends of
the logs, which are requested before the events are read, show whether the broker tier is counting. A user may settle an
unknown count: it is then treated as complete as long as it does not change, and the report says who settled it. Pure:
no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from klamm.plugin import NO_WINDOW

from ..event import BROKER, FOREIGN, PRODUCER, SETTLEMENT, TIERS, UNATTRIBUTED, AuditEvent
from .rules import is_behind, tier_counts, topic_ids
from .tiers import (
    DEFAULT_LATENESS_MS,
    PATIENCE,
    PRODUCERS,
    Age,
    Kind,
    LogEnd,
    Place,
    Problem,
    ProducerLife,
    Tally,
    TierCounts,
    TierKey,
)

DELIVERY_MS: Final = 180_000
"""The most ms between making an event and storing it: a producer's `delivery.timeout.ms` is two minutes."""


class State(StrEnum):
    """The states of a count, from good to bad: a row shows the worst of its cells."""

    COMPLETE = "complete"
    SETTLED = "settled"
    DUPLICATED = "duplicated"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Settlement:
    """A user's settlement of unknown counts. `counts`: (records, expected) of each, by tier and window."""

    who: str
    why: str
    time_ms: int
    window_ms: int
    counts: Mapping[tuple[str, int], tuple[int, int]]

    def covers(self, tier: TierKey, start_ms: int, cell: Cell) -> bool:
        """Returns True if the counts are the same as when they were settled."""
        return self.counts.get((str(tier), start_ms)) == (cell.records, cell.expected)


@dataclass(frozen=True, slots=True)
class Cell:
    """One tier in one window. `expected`: the count it is compared with. `ratio` to that; None for producers, which are
    the reference, and where it is unknown. `foreign`: records of clients that do not audit (the broker's)."""

    records: int
    size: int
    attempted: int
    ratio: float | None
    state: State
    expected: int = 0
    foreign: int = 0

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
        return all(cell.state in (State.COMPLETE, State.SETTLED) for cell in self.cells.values())


class ClockOff(NamedTuple):
    """A producer whose clock differs from the audit topic's by `ahead_ms` (below 0: behind) in each of its events: the
    records that it stamps itself lie in windows that are later or earlier by this amount than the time at which they
    were sent."""

    producer: str
    application: str
    host: str
    ahead_ms: int

    @property
    def text(self) -> str:
        minutes, side = abs(self.ahead_ms) / 60_000, "ahead of" if self.ahead_ms > 0 else "behind"
        return (
            f"the clock of producer {self.producer} (application {self.application} on {self.host}) is {minutes:.1f} "
            f"min {side} the audit topic's: so are the windows of records that it stamps"
        )


class Horizon(NamedTuple):
    """The bound of a watermark: it may not pass a window that ends after `limit_ms`, nor one of `held`, in which a live
    producer counted so recently that it may count again. -inf where a log was never counted."""

    limit_ms: float
    held: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TopicAudit:
    """One topic: its tiers in their order along the pipeline, windows by time, and what is wrong with the events.
    `settled`: the valid settlements; `closed`: the problems that they close. `topic_ids`: the ids that the name has
    had; more than one when the topic was deleted and created again."""

    topic: str
    window_ms: int
    tiers: tuple[TierKey, ...]
    windows: tuple[WindowAudit, ...]
    problems: tuple[Problem, ...]
    live_producers: tuple[str, ...]
    horizon: Horizon
    settled: tuple[Settlement, ...] = ()
    closed: tuple[Problem, ...] = ()
    topic_ids: tuple[str, ...] = ()
    watermark_ms: int | None = None
    """The completeness watermark: every window up to it that holds a record is complete at every tier."""
    ages: Mapping[TierKey, Mapping[int, Mapping[Age, int]]] = field(default_factory=dict)
    """Records by their age when they were counted, by tier and window."""
    clocks: tuple[ClockOff, ...] = ()
    """Producers with wrong clocks. Their counts are right, so these are not problems."""

    @property
    def complete(self) -> bool:
        return bool(self.windows) and not self.problems and all(window.complete for window in self.windows)

    def lowest(self) -> float | None:
        """Returns the lowest ratio over all windows and tiers; None if one of them is unknown, or there is none."""
        return lowest(cell for window in self.windows for cell in window.cells.values())

    def latency(self, tier: TierKey, quantile: float) -> Age | None:
        """Returns two bounds of this quantile of the latency, from a record's timestamp until the audit topic had the
        tier's count of it; None without a record that has a timestamp.
        """
        by_window = self.ages.get(tier, {})
        found: dict[Age, int] = {}
        for window in self.windows:
            if window.start_ms != NO_WINDOW:
                for age, records in by_window.get(window.start_ms, {}).items():
                    found[age] = found.get(age, 0) + records
        rank = quantile * sum(found.values())
        if rank <= 0:
            return None
        return Age(_at_rank(rank, found, 0), _at_rank(rank, found, 1))

    def of_tiers(self, tiers: Collection[TierKey]) -> TopicAudit:
        """Returns the audit of these tiers only, each compared as before."""
        chosen = tuple(tier for tier in self.tiers if tier in tiers)
        windows = [WindowAudit(w.start_ms, {tier: w.cells[tier] for tier in chosen}) for w in self.windows if chosen]
        return replace(
            self,
            tiers=chosen,
            windows=tuple(windows),
            problems=tuple(problem for problem in self.problems if problem.tier in chosen),
            closed=tuple(problem for problem in self.closed if problem.tier in chosen),
            watermark_ms=watermark(windows, self.window_ms, self.horizon),
        )

    def between(self, since_ms: int | None, until_ms: int | None) -> TopicAudit:
        """Returns the audit of these windows only, with the problems that affect them; the watermark is that of all
        windows.
        """
        low, high = (-math.inf if since_ms is None else since_ms), (math.inf if until_ms is None else until_ms)
        windows = tuple(window for window in self.windows if low <= window.start_ms < high)

        def touching(problems: Iterable[Problem]) -> tuple[Problem, ...]:
            return tuple(
                p for p in problems if not windows or p.since_ms < high or any(p.touches(w.start_ms) for w in windows)
            )

        return replace(self, windows=windows, problems=touching(self.problems), closed=touching(self.closed))


def _at_rank(rank: float, found: Mapping[Age, int], bound: int) -> int:
    """Returns the least value of this bound that at least `count` records do not exceed."""
    below = 0
    for age in sorted(found, key=lambda each: each[bound]):
        below += found[age]
        if below >= rank:
            break
    return age[bound]


def lowest(cells: Iterable[Cell]) -> float | None:
    """Returns the lowest ratio; None if a cell is unknown or there is nothing to compare."""
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
    lateness_ms: int = DEFAULT_LATENESS_MS,
    logs: Mapping[str, Mapping[Place, LogEnd]] | None = None,
) -> list[TopicAudit]:
    """Returns the audits of the topics, by name: those named in events, and `topics`.

    `expect` names tiers besides producer and broker that must have counted each topic. `lateness_ms`: how much later
    than its timestamp a record may be sent. `logs`: where the partitions of each topic ended before the events were
    read; None: not requested, and not compared. A topic that has records and no events is included.
    """
    logs = {} if logs is None else logs
    events = list(events)
    now_ms = told_now(events, now_ms)
    by_topic: dict[str, list[AuditEvent]] = {topic: [] for topic in topics}
    for event in events:
        by_topic.setdefault(event.topic, []).append(event)
    for topic, ends in logs.items():
        if any(is_behind(place, log, {}) for place, log in ends.items()):
            by_topic.setdefault(topic, [])
    return [
        _compare_topic(topic, by_topic[topic], now_ms, expect, lateness_ms, logs.get(topic, {}))
        for topic in sorted(by_topic)
    ]


def told_now(events: Sequence[AuditEvent], now_ms: int) -> int:
    """Returns the present time by the clock that stamps events, as far as it is known: the reader's own clock may be
    ahead, and every producer would seem silent. So the reader's clock counts only beyond the silence that a live
    producer is allowed.
    """
    stamps = [event.stored_ms for event in events if event.stored_ms >= 0]
    if not stamps:
        return now_ms
    last: dict[tuple[str, str], AuditEvent] = {}
    for event in events:
        if event.tier == PRODUCER:
            key = (event.topic, event.owner)
            last[key] = max(last.get(key, event), event, key=lambda each: each.from_offset)
    patience_ms = PATIENCE * max((event.interval_ms for event in last.values() if not event.final), default=0)
    return max(max(stamps), now_ms - patience_ms)


def _compare_topic(
    topic: str,
    events: list[AuditEvent],
    now_ms: int,
    expect: Collection[TierKey],
    lateness_ms: int,
    logs: Mapping[Place, LogEnd],
) -> TopicAudit:
    window_ms = math.lcm(*{event.window_ms for event in events})
    found = tier_counts(topic, events, window_ms, now_ms, lateness_ms, logs)
    for tier in (PRODUCERS, *expect):
        _require(topic, tier, found)
    if not any(tier.tier == BROKER for tier in found):
        _require(topic, TierKey(BROKER), found)
    order = sorted(found, key=lambda tier: (TIERS.index(tier.tier), tier.owner))
    problems = [problem for tier in order for problem in found[tier].problems]
    starts = {start for counts in found.values() for start in counts.windows}
    starts |= {start for problem in problems for start in problem.windows or ()}
    settlements = [_settlement(event) for event in events if event.tier == SETTLEMENT and event.window_ms == window_ms]
    measured = [WindowAudit(start, _cells(start, order, found)) for start in sorted(starts)]
    windows, settled = _settled(measured, settlements)
    closed = [problem for problem in problems if _is_closed(problem, windows)]
    lives = found[PRODUCERS].lives
    uncounted_ms = min(counts.uncounted_ms for counts in found.values())
    horizon = Horizon(
        min(min([now_ms, *(_sends_ms(life) for life in lives if life.live)]) - lateness_ms, uncounted_ms),
        frozenset().union(*(life.told_since(now_ms - lateness_ms, window_ms) for life in lives if life.live)),
    )
    return TopicAudit(
        topic,
        window_ms,
        tuple(order),
        windows,
        tuple(problem for problem in problems if problem not in closed),
        tuple(found[PRODUCERS].live),
        horizon,
        settled,
        tuple(closed),
        topic_ids(events),
        watermark(windows, window_ms, horizon),
        {tier: found[tier].ages for tier in order},
        tuple(_clocks_off(lives, max(lateness_ms, DELIVERY_MS))),
    )


def _sends_ms(life: ProducerLife) -> int:
    """Returns the earliest timestamp, by a live producer's own clock, of records that it may not have reported yet."""
    return life.last.seen_ms + min(life.ahead_ms, 0)


def _clocks_off(lives: Iterable[ProducerLife], allowed_ms: int) -> Iterator[ClockOff]:
    for life in lives:
        if abs(life.ahead_ms) > allowed_ms:
            yield ClockOff(life.owner, life.last.application, life.last.host, life.ahead_ms)


def _require(topic: str, tier: TierKey, found: dict[TierKey, TierCounts]) -> None:
    if tier not in found:
        counts = found[tier] = TierCounts(tier)
        counts.problems.append(Problem(Kind.ABSENT, topic, tier, f"{tier} has counted nothing"))


# -- one window


def _cells(start: int, order: Sequence[TierKey], found: Mapping[TierKey, TierCounts]) -> dict[TierKey, Cell]:
    broker = found[next(tier for tier in order if tier.tier == BROKER)]
    stored = _broker_cell(start, broker, found[PRODUCERS])
    cells = {}
    for tier in order:
        if tier.tier == PRODUCER:
            tally = found[tier].windows.get(start, Tally())
            state = State.UNKNOWN if found[tier].doubts(start) else State.COMPLETE
            cells[tier] = Cell(tally.records, tally.size, tally.attempted, None, state)
        else:
            cells[tier] = stored if found[tier] is broker else _reader_cell(start, found[tier], broker, stored)
    return cells


class _Difference(NamedTuple):
    """Records too few, and too many, of those expected, counted separately: they do not cancel out."""

    expected: int
    short: int
    over: int

    @property
    def state(self) -> State:
        return State.MISSING if self.short else State.DUPLICATED if self.over else State.COMPLETE

    @property
    def ratio(self) -> float:
        if self.short:
            return (self.expected - self.short) / self.expected
        return 1.0 if not self.over else (self.expected + self.over) / self.expected if self.expected else math.inf


def _difference(mine: Mapping[str, int], expected: Mapping[str, int]) -> _Difference:
    pairs = [(mine.get(name, 0), expected.get(name, 0)) for name in mine.keys() | expected.keys()]
    short, over = sum(max(e - m, 0) for m, e in pairs), sum(max(m - e, 0) for m, e in pairs)
    return _Difference(sum(expected.values()), short, over)


def _broker_cell(start: int, broker: TierCounts, producers: TierCounts) -> Cell:
    """Compares producer by producer. Records that a producer has reported and the broker has not stored are missing,
    even if the window is otherwise unknown.
    """
    tally = broker.windows.get(start, Tally())
    stored, told = dict(broker.sources.get(start, {})), producers.sources.get(start, {})
    foreign = stored.pop(FOREIGN, 0)
    if UNATTRIBUTED in stored:  # their producers are unknown: only the sums can be compared
        difference = _difference({"": sum(stored.values())}, {"": sum(told.values())})
    else:
        difference = _difference(stored, told)
    ratio: float | None = difference.ratio
    state = difference.state
    absent = any(problem.kind is Kind.ABSENT for problem in (*broker.problems, *producers.problems))
    if absent or broker.doubts(start) or (state is not State.MISSING and producers.doubts(start)):
        ratio, state = None, State.UNKNOWN
    elif state is State.DUPLICATED and producers.live:
        more = {source for source, records in stored.items() if records > told.get(source, 0)}
        if UNATTRIBUTED in more or more & set(producers.live) or UNATTRIBUTED in stored:
            ratio, state = None, State.UNKNOWN
    return Cell(tally.records, tally.size, 0, ratio, state, difference.expected, foreign)


def _reader_cell(start: int, mine: TierCounts, broker: TierCounts, stored: Cell) -> Cell:
    """Compares with everything that the broker holds, by topic id."""
    tally = mine.windows.get(start, Tally())
    counted, held = ({t: by[start] for t, by in c.by_topic_id.items() if start in by} for c in (mine, broker))
    difference = _difference(counted, held)
    ratio: float | None = difference.ratio
    state = difference.state
    gaps = any(problem.kind is not Kind.ABSENT for problem in broker.problems) and stored.state is State.MISSING
    if mine.doubts(start) or broker.doubts(start) or gaps or (state is State.DUPLICATED and _behind(broker, mine)):
        ratio, state = None, State.UNKNOWN
    return Cell(tally.records, tally.size, 0, ratio, state, difference.expected)


def _behind(broker: TierCounts, mine: TierCounts) -> bool:
    """Returns True if this tier has counted offsets that the broker tier has not counted yet, or never will because
    they were deleted before it began.
    """
    return any(not _covered(broker.tiles.get(place, ()), tiles) for place, tiles in mine.tiles.items())


def _covered(broker: Sequence[AuditEvent], mine: Sequence[AuditEvent]) -> bool:
    return bool(broker) and broker[0].from_offset <= mine[0].from_offset and broker[-1].to_offset >= mine[-1].to_offset


# -- settlements


def settlement_counts(audit: TopicAudit) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns the counts that a settlement covers: every unknown count, with its present values."""
    return {
        (str(tier), window.start_ms): (cell.records, cell.expected)
        for window in audit.windows
        for tier, cell in window.cells.items()
        if cell.state is State.UNKNOWN
    }


def _settlement(event: AuditEvent) -> Settlement:
    counts = {(w.source, w.start_ms): (w.records, w.attempted) for w in event.windows}
    return Settlement(event.owner, event.note, event.time_ms, event.window_ms, counts)


def _settled(
    windows: Iterable[WindowAudit], settlements: Sequence[Settlement]
) -> tuple[tuple[WindowAudit, ...], tuple[Settlement, ...]]:
    """Returns the windows with settled unknown counts, if these have their present values, and the valid settlements.
    The last one wins.
    """
    used: list[Settlement] = []
    result = []
    for window in windows:
        cells = dict(window.cells)
        for tier, cell in window.cells.items():
            if cell.state is not State.UNKNOWN:
                continue
            by = next((each for each in reversed(settlements) if each.covers(tier, window.start_ms, cell)), None)
            if by is not None:
                cells[tier] = replace(cell, state=State.SETTLED)
                used += [by] if by not in used else []
        result.append(WindowAudit(window.start_ms, cells))
    return tuple(result), tuple(sorted(used, key=lambda each: each.time_ms))


def _is_closed(problem: Problem, windows: Iterable[WindowAudit]) -> bool:
    """Returns True if the problem affects only settled counts. Records that the broker tier has not counted are in no
    count that can be settled.
    """
    if problem.kind is Kind.BEHIND:
        return False
    touched = [window.cells[problem.tier].state for window in windows if problem.touches(window.start_ms)]
    return bool(touched) and all(state is State.SETTLED for state in touched)


def watermark(windows: Iterable[WindowAudit], window_ms: int, horizon: Horizon) -> int | None:
    """Returns the end of the last window before the first that is not complete, or that may still get records, in ms
    since the epoch; None if there is none.

    A downstream job that needs a whole day waits until the watermark has passed the day's end.
    """
    reached: int | None = None
    for window in windows:
        if window.start_ms == NO_WINDOW:
            continue
        end = window.start_ms + window_ms
        if not window.complete or end > horizon.limit_ms or window.start_ms in horizon.held:
            break
        reached = end
    return reached
