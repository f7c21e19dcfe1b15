"""The comparison: is what each tier counted, window by window, what the tier before it counted?

The events of a topic become counts by tier, window and partition; `rules` decides which events count, which windows are
compared, and what a difference proves. The ends of the logs, which are requested before the events are read, show
whether the broker tier is counting. A user may settle an unknown count: it is then treated as complete as long as it
does not change, and the report says who settled it. Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from klamm.plugin import NO_WINDOW

from ..event import BROKER, CONSUMER, HADOOP, MIRROR, PRODUCER, SETTLEMENT, TIERS, AuditEvent
from ..windows import iso
from . import rules
from .tiers import (
    DEFAULT_LATENESS_MS,
    PRODUCERS,
    Age,
    Cell,
    Ended,
    Horizon,
    Kind,
    LogEnd,
    Place,
    Problem,
    ProducerLife,
    State,
    TierCounts,
    TierKey,
    WindowAudit,
    wide,
)

DELIVERY_MS: Final = 180_000
"""The most ms between making an event and storing it: a producer's `delivery.timeout.ms` is two minutes."""


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


@dataclass(frozen=True)
class TopicAudit:
    """One topic: its tiers in their order along the pipeline, windows by time, and what is wrong with the events.
    `settled`: the valid settlements; `closed`: the problems that they close. `topic_ids`: the ids that the name has
    had; more than one when the topic was deleted and created again. `expected`: the tiers that hold watermark, gate and
    exit status; `ended`: tiers and lakes that are not compared any more. `left_out_ms`: windows that begin before are
    left out (docs/audit.md, R2, R5, R22)."""

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
    """The completeness watermark: every window up to it that holds a record is complete at every expected tier."""
    counts: Mapping[TierKey, TierCounts] = field(default_factory=dict)
    """What each tier counted, and in which ranges."""
    expected: frozenset[TierKey] = frozenset()
    ended: tuple[Ended, ...] = ()
    left_out_ms: int | None = None
    clocks: tuple[ClockOff, ...] = ()
    """Producers with wrong clocks. Their counts are right, so these are not problems."""

    @property
    def complete(self) -> bool:
        faulty = any(problem.tier in self.expected for problem in self.problems)
        return bool(self.windows) and not faulty and all(window.complete for window in self.windows)

    def lowest(self) -> float | None:
        """Returns the lowest ratio over all windows and tiers; None if one of them is unknown, or there is none."""
        return lowest(cell for window in self.windows for cell in window.cells.values())

    def latency(self, tier: TierKey, quantile: float) -> Age | None:
        """Returns two bounds of this quantile of the latency, from a record's timestamp until the audit topic had the
        tier's count of it; None without a record that has a timestamp.
        """
        by_window = self.counts[tier].ages if tier in self.counts else {}
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
        """Returns the audit of these tiers only, each compared as before; all of them are expected then."""
        chosen = tuple(tier for tier in self.tiers if tier in tiers)
        windows = [
            WindowAudit(w.start_ms, {tier: rules.holding(w.cells[tier], holds=True) for tier in chosen})
            for w in self.windows
            if chosen
        ]
        return replace(
            self,
            tiers=chosen,
            windows=tuple(windows),
            problems=tuple(problem for problem in self.problems if problem.tier in chosen),
            closed=tuple(problem for problem in self.closed if problem.tier in chosen),
            watermark_ms=rules.watermark(windows, self.window_ms, self.horizon),
            expected=frozenset(chosen),
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
    """Returns the lowest ratio of the expected tiers; None if a cell is unknown or there is nothing to compare."""
    ratios: list[float] = []
    for cell in cells:
        if not cell.holds:
            continue
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
    retained_ms: float = -math.inf,
) -> list[TopicAudit]:
    """Returns the audits of the topics, by name: those named in events, and `topics`.

    `expect` names tiers besides producer and broker that must have counted each topic. `lateness_ms`: how much later
    than its timestamp a record may be sent. `logs`: where the partitions of each topic ended before the events were
    read; None: not requested, and not compared. A topic that has records and no events is included. `retained_ms`: when
    the audit topic stored the first event that is left; -inf if none was deleted.
    """
    logs = {} if logs is None else logs
    events = list(events)
    now_ms = rules.present_ms(events, now_ms)
    by_topic: dict[str, list[AuditEvent]] = {topic: [] for topic in topics}
    for event in events:
        by_topic.setdefault(event.topic, []).append(event)
    for topic, ends in logs.items():
        if any(rules.is_behind(place, log, {}) for place, log in ends.items()):
            by_topic.setdefault(topic, [])
    return [
        _compare_topic(topic, by_topic[topic], now_ms, expect, lateness_ms, logs.get(topic, {}), retained_ms)
        for topic in sorted(by_topic)
    ]


def tier_counts(
    topic: str,
    events: Iterable[AuditEvent],
    window_ms: int,
    now_ms: int,
    lateness_ms: int = DEFAULT_LATENESS_MS,
    logs: Mapping[Place, LogEnd] = MappingProxyType({}),
    retained_ms: float = -math.inf,
    ended: list[Ended] | None = None,
) -> dict[TierKey, TierCounts]:
    """Returns the tiers of one topic, with their problems; adds to `ended` those that are not compared any more. Every
    window length among the events must divide `window_ms`. `logs`: the topic's partitions as they were before the
    events were read.
    """
    every = [event for event in events if event.tier != SETTLEMENT]
    current, gone = rules.without_ended(every)
    by_tier: dict[TierKey, list[AuditEvent]] = {}
    for event in current:
        by_tier.setdefault(rules.tier_of(event), []).append(event)
    found: dict[TierKey, TierCounts] = {}
    retained = retained_ms == -math.inf
    for tier, own in by_tier.items():
        counts = found[tier] = TierCounts(tier, restarted=any(each.tier == tier for each in gone))
        if tier.tier == HADOOP:
            of_sink = [event for event in every if rules.tier_of(event) == tier and not event.ends]
            own, replaced, live = rules.newest_lake(of_sink, own)
            own, gone = rules.current_loads(own), [*gone, *replaced]
            if live:
                text = (
                    f"{len(live)} lakes are loaded under this name: {'; '.join(live)}; end one with klamm audit retire"
                )
                counts.problems.append(Problem(Kind.TWO_LAKES, topic, tier, text))
        if tier == PRODUCERS:
            _add_producers(counts, own, window_ms, now_ms)
        else:
            _add_ranges(counts, own, window_ms, retained=retained)
    ids = rules.topic_ids(every, () if TierKey(MIRROR) in found else logs)
    rules.Problems(topic, found, window_ms, now_ms, lateness_ms, ids, retained=retained).find(logs)
    if ended is not None:
        ended += sorted(gone, key=lambda each: each.time_ms)
    return found


def _add_ranges(counts: TierCounts, events: Iterable[AuditEvent], window_ms: int, *, retained: bool) -> None:
    replays: list[AuditEvent] = []
    ranges: dict[Place, list[AuditEvent]] = {}
    for event in events:
        if event.replay:  # R10
            replays.append(event)
        elif event.partition is not None:
            ranges.setdefault(Place(event.topic_id, event.partition), []).append(event)
    for event in rules.last_of_each(replays).values():
        counts.replayed += sum(window.records for window in event.windows)
    for place, told in ranges.items():
        rules.demand_begins(counts, place, told, retained)
        counts.topic_ids.add(place.topic_id)
        if counts.tier.tier == MIRROR:
            told, lost = rules.without_cuts(told)
            for each in lost:
                counts.lose(place, each, window_ms)
        if counts.tier.tier == CONSUMER:
            told, counts.set_back[place] = rules.read_by_group(told)
        versions: dict[int, list[AuditEvent]] = {}
        for event in told:
            if counts.tier.tier == BROKER:
                for window in event.windows:
                    counts.told.setdefault(wide(window.start_ms, window_ms), set()).add(window.source)
            if not event.begins or counts.tier.tier != HADOOP:  # else a lake is announced
                versions.setdefault(event.from_offset, []).append(event)
        chosen = rules.chosen(counts.tier, versions)
        tiles = list(rules.not_cut(chosen) if counts.tier.tier in (BROKER, MIRROR) else chosen)
        if tiles:
            counts.tiles[place] = tiles
        for event in tiles:
            counts.add(event, window_ms)


def _add_producers(counts: TierCounts, events: Iterable[AuditEvent], window_ms: int, now_ms: int) -> None:
    producers: dict[str, dict[int, AuditEvent]] = {}
    for event in events:
        producers.setdefault(event.owner, {})[event.from_offset] = event
    for owner, numbered in producers.items():
        told = tuple(numbered[number] for number in sorted(numbered))
        counts.lives.append(ProducerLife(owner, told, rules.is_killed(told[-1], now_ms)))
        for event in told:
            counts.add(event, window_ms)


def _compare_topic(
    topic: str,
    events: list[AuditEvent],
    now_ms: int,
    expect: Collection[TierKey],
    lateness_ms: int,
    logs: Mapping[Place, LogEnd],
    retained_ms: float,
) -> TopicAudit:
    window_ms = math.lcm(*{event.window_ms for event in events if not event.ends})
    ended: list[Ended] = []
    found = tier_counts(topic, events, window_ms, now_ms, lateness_ms, logs, retained_ms, ended)
    for tier in (PRODUCERS, *expect):
        _require(topic, tier, found, ended)
    if not any(tier.tier == BROKER for tier in found):
        _require(topic, TierKey(BROKER), found, ended)
    left_out = rules.left_out_ms(retained_ms, lateness_ms, found[PRODUCERS].lives)
    starts = {start for counts in found.values() for start in (*counts.windows, *counts.lost)}
    starts |= {start for counts in found.values() for problem in counts.problems for start in problem.windows or ()}
    kept = {start for start in starts if left_out is None or start >= left_out}
    for counts in found.values():
        within = (rules.within(problem, kept, left_out) for problem in counts.problems)
        counts.problems = [problem for problem in within if problem is not None]
    order = sorted(found, key=lambda tier: (TIERS.index(tier.tier), tier.owner))
    problems = [problem for tier in order for problem in found[tier].problems]
    expected = rules.expected_tiers(order, expect)
    settlements = [_settlement(event) for event in events if event.tier == SETTLEMENT and event.window_ms == window_ms]
    ids = tuple(rules.topic_ids(events, () if TierKey(MIRROR) in found else logs))
    measured = _windows(sorted(kept), order, found, expected, ids, window_ms)
    windows, settled = _settled(measured, settlements)
    closed = [problem for problem in problems if rules.closes(problem, windows)]
    lives = found[PRODUCERS].lives
    horizon = rules.horizon(found, now_ms, lateness_ms, window_ms)
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
        ids,
        rules.watermark(windows, window_ms, horizon),
        found,
        expected,
        tuple(ended),
        left_out,
        tuple(_clocks_off(lives, max(lateness_ms, DELIVERY_MS))),
    )


def _windows(
    starts: Sequence[int],
    order: Sequence[TierKey],
    found: Mapping[TierKey, TierCounts],
    expected: Collection[TierKey],
    ids: Sequence[str],
    window_ms: int,
) -> Iterator[WindowAudit]:
    broker = found[next(tier for tier in order if tier.tier == BROKER)]
    demands = {
        tier: rules.Demand(broker, found[tier], found[PRODUCERS], ids, window_ms)
        for tier in order
        if tier.tier in (MIRROR, CONSUMER, HADOOP)
    }
    for start in starts:
        stored = rules.broker_cell(start, broker, found[PRODUCERS])
        cells = {}
        for tier in order:
            if tier.tier == PRODUCER:
                cells[tier] = rules.producer_cell(start, found[tier])
            elif tier in demands:
                cells[tier] = rules.holding(demands[tier].cell(start, broker, stored), holds=tier in expected)
            else:
                cells[tier] = stored
        yield WindowAudit(start, cells)


def _clocks_off(lives: Iterable[ProducerLife], allowed_ms: int) -> Iterator[ClockOff]:
    for life in lives:
        if abs(life.ahead_ms) > allowed_ms:
            yield ClockOff(life.owner, life.last.application, life.last.host, life.ahead_ms)


def _require(topic: str, tier: TierKey, found: dict[TierKey, TierCounts], ended: Iterable[Ended]) -> None:
    """R2: adds an expected tier that has no event, or none since its end."""
    if tier not in found:
        since = max((each.time_ms for each in ended if each.tier == tier and each.who), default=None)
        text = f"{tier} has counted nothing" + ("" if since is None else f" since it ended on {iso(since)}")
        found[tier] = TierCounts(tier)
        found[tier].problems.append(Problem(Kind.ABSENT, topic, tier, text))


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
