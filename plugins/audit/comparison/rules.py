"""The rules of the comparison, with the numbers that docs/audit.md gives them: who counts, which event counts, what a
comparison proves, what moves the watermark.

A problem belongs to the windows whose counts it may affect, and to no others. The windows of a range of offsets are
known from the broker tier, which has counted every range. Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice, pairwise
from typing import NamedTuple

from klamm.plugin import NO_WINDOW

from ..event import (
    BROKER,
    CONSUMER,
    FOREIGN,
    HADOOP,
    MIRROR,
    PRODUCER,
    UNATTRIBUTED,
    AuditEvent,
    EventKey,
    EventWindow,
)
from .tiers import (
    PATIENCE,
    PRODUCERS,
    Cell,
    Ended,
    Horizon,
    Kind,
    LogEnd,
    Lost,
    Place,
    Problem,
    ProducerLife,
    State,
    Tally,
    TierCounts,
    TierKey,
    WindowAudit,
    wide,
)

# -- who counts, and from when until when


def tier_of(event: AuditEvent) -> TierKey:
    """R1: a producer's owner is not a tier of its own, nor is the mirror's; any other owner is."""
    return TierKey(event.tier, "" if event.tier in (PRODUCER, MIRROR) else event.owner)


def expected_tiers(found: Iterable[TierKey], named: Collection[TierKey]) -> frozenset[TierKey]:
    """R2: producers, broker, mirror, the named tiers, and every lake unless one is named."""
    any_lake = not any(tier.tier == HADOOP for tier in named)
    known = (tier for tier in found if tier.tier in (PRODUCER, BROKER, MIRROR) or (tier.tier == HADOOP and any_lake))
    return frozenset({*known, *named})


def without_ended(events: Iterable[AuditEvent]) -> tuple[list[AuditEvent], list[Ended]]:
    """R5: drops what groups and lakes had counted before they ended, and the end events."""
    events = list(events)
    ends: dict[tuple[TierKey, str], AuditEvent] = {}
    for event in events:
        if event.ends and event.seen_ms >= ends.get((tier_of(event), event.lake), event).seen_ms:
            ends[tier_of(event), event.lake] = event

    def counts(event: AuditEvent) -> bool:
        tier = tier_of(event)
        last = max((end.seen_ms for key in ("", event.lake) if (end := ends.get((tier, key)))), default=-math.inf)
        return not event.ends and event.seen_ms > last

    ended = [Ended(tier, lake, end.seen_ms, end.application, end.note) for (tier, lake), end in ends.items()]
    return [event for event in events if counts(event)] if ends else events, ended


class _Lake(NamedTuple):
    """One lake of a sink by its events, in the order of time."""

    id: str
    events: list[AuditEvent]

    @property
    def first_ms(self) -> int:
        return self.events[0].seen_ms

    @property
    def last_ms(self) -> int:
        return self.events[-1].seen_ms

    @property
    def directory(self) -> str:
        return self.events[-1].directory

    def replaces(self, older: _Lake) -> bool:
        """Returns True if the older lake's directory cannot be there any more, and it published nothing since."""
        moved_from = {lake for event in self.events for lake in event.replaces}
        return older.last_ms <= self.first_ms and (older.directory == self.directory or older.id in moved_from)

    def only_announced(self) -> bool:
        return all(event.load == 0 for event in self.events)


def newest_lake(
    events: Iterable[AuditEvent], current: Collection[AuditEvent]
) -> tuple[list[AuditEvent], list[Ended], list[str]]:
    """R6: returns the events of a sink's newest lake, the lakes that were replaced, and a line for each that is live if
    there are several. A lake that was announced and lost the race for its directory's first load does not count.
    `current`: the events that no end follows (R5); a lake that has ended may have replaced others before.
    """
    grouped: dict[str, list[AuditEvent]] = {}
    going_on: dict[str, list[AuditEvent]] = {}
    for found, of in ((grouped, events), (going_on, current)):
        for event in sorted(of, key=lambda each: each.seen_ms):
            found.setdefault(event.lake, []).append(event)
    lakes = [_Lake(lake, of_lake) for lake, of_lake in grouped.items()]

    def lost(lake: _Lake) -> bool:
        others = (each for each in lakes if each is not lake and not each.only_announced())
        return lake.only_announced() and any(
            each.directory == lake.directory and each.last_ms > lake.last_ms for each in others
        )

    replaced: list[Ended] = []
    live: list[_Lake] = []
    for at, lake in enumerate(lakes):
        if lost(lake):
            continue  # but it may name lakes that its directory was moved from
        by = next((newer for newer in lakes[at + 1 :] if newer.replaces(lake)), None)
        if by is None and lake.id in going_on:
            live.append(lake)
        elif by is not None:
            why = f"replaced by lake {by.id} in {by.directory}"
            replaced.append(Ended(tier_of(lake.events[0]), lake.id, by.first_ms, "", why))
    said = [f"{lake.id} in {lake.directory or 'an unknown directory'}" for lake in live]
    return going_on[live[-1].id] if live else [], replaced, said if len(live) > 1 else []


def demand_begins(counts: TierCounts, place: Place, events: Iterable[AuditEvent], retained: bool) -> None:
    """R3, R4, R22: notes where a reader's demand begins in each partition in which it has an event. A group's and a
    mirror's begins with the first event there, a lake's with everything that the broker counted. Where earlier events
    are void, or were deleted (`retained` False), it begins with the first event left."""
    first = min((event.from_offset for event in events if not event.cut), default=None)
    told = counts.tier.tier in (CONSUMER, MIRROR)
    if first is not None and (told or (counts.tier.tier == HADOOP and (counts.restarted or not retained))):
        counts.begins[place] = first


def is_killed(last: AuditEvent, now_ms: int) -> bool:
    """R7: a producer's last event is final, or the next one comes within its interval."""
    return not last.final and now_ms - last.seen_ms > PATIENCE * last.interval_ms


def present_ms(events: Sequence[AuditEvent], now_ms: int) -> int:
    """R7: returns the present time by the clock that stamps events, as far as it is known.

    The reader's own clock may be ahead, and every producer would seem silent. So it counts only beyond the silence that
    a live producer is allowed.
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


# -- which event counts


def last_of_each(events: Iterable[AuditEvent]) -> dict[EventKey, AuditEvent]:
    """R8: returns the last event of each key: the highest epoch wins, and of these the last event, in the order of the
    audit topic, where a key has one partition.
    """
    found: dict[EventKey, AuditEvent] = {}
    for event in events:
        before = found.get(event.key)
        if before is None or event.epoch >= before.epoch:
            found[event.key] = event
    return found


def chosen(tier: TierKey, versions: Mapping[int, Sequence[AuditEvent]]) -> Iterator[AuditEvent]:
    """R8: yields one event for each `from`, in order.

    The one that ends where another range begins was committed, because ranges begin at commits. One that extends past
    the beginning of another range was not: its owner was suspended, and another one began there. If that does not
    decide, the highest epoch does, and among these the last event; an epoch may start again (the generation of a
    classic group whose broker lost it).
    """
    begins: list[int | None] = [*sorted(versions), None]
    for begin, following in pairwise(begins):
        assert begin is not None
        ranked = [event for _, event in sorted(enumerate(versions[begin]), key=_rank, reverse=True)]
        committed = (event for event in ranked if event.to_offset == following)
        fits = (event for event in ranked if following is None or event.to_offset <= following)
        yield ranked[0] if tier.tier in (BROKER, MIRROR) else next(chain(committed, fits), ranked[0])


def _rank(item: tuple[int, AuditEvent]) -> tuple[int, int]:
    return item[1].epoch, item[0]


def current_loads(events: Iterable[AuditEvent]) -> list[AuditEvent]:
    """R9: drops the events of loads that were removed from the lake by hand.

    A load was removed if another job later reported a load of its number, or of a lower one. `events`: of one lake, in
    the order of time.
    """
    kept: list[AuditEvent] = []
    jobs: dict[int, str] = {}
    for event in events:
        number = event.load
        if number is not None and jobs.setdefault(number, event.job) != event.job:
            kept = [each for each in kept if each.load is None or each.load < number]
            jobs = {each: job for each, job in jobs.items() if each < number} | {number: event.job}
        kept.append(event)
    return kept


def not_cut(tiles: Iterable[AuditEvent]) -> Iterator[AuditEvent]:
    """R11: leaves out broker events that a leader of a higher epoch has counted again: the log was truncated there, and
    the records they counted are lost or are in the events of that leader.
    """
    highest = -1
    for event in tiles:
        if event.epoch >= highest:
            highest = event.epoch
            yield event


def without_cuts(events: Iterable[AuditEvent]) -> tuple[list[AuditEvent], list[Lost]]:
    """R25: returns the ranges of a mirror in a partition without what it has lost, and what it has lost.

    The events that report a cut say what was counted in the offsets that were cut. A range that begins there or later,
    and was published before, is void; one inside of which the log was cut ends at the cut, without these counts. It is
    lossy if they are not known, or are not those of the ranges. A cut that is reported again changes nothing: no range
    is beyond it.
    """
    ranges: dict[int, AuditEvent] = {}
    lost: list[Lost] = []
    for event in sorted(events, key=lambda each: (each.epoch, each.time_ms, each.sequence)):
        if not event.cut:
            ranges[event.from_offset] = event
            continue
        begin, end = event.from_offset, event.to_offset
        beyond = sorted((each for each in ranges.values() if each.to_offset > begin), key=lambda each: each.from_offset)
        ranges = {at: each for at, each in ranges.items() if at < begin}
        beyond = [each for each in beyond if each.from_offset < begin or each.to_offset <= end]
        if not beyond:
            continue
        tiled = beyond[-1].to_offset == end and all(one.to_offset == two.from_offset for one, two in pairwise(beyond))
        known = tiled and not event.lossy and not any(each.lossy for each in beyond)
        crossing = [each for each in beyond if each.from_offset < begin]
        inside = _summed(window for each in beyond if each.from_offset >= begin for window in each.windows)
        for each in crossing:
            left = _less(each.windows, _less(event.windows, inside.values()) if known else None)
            windows = each.windows if left is None else left
            ranges[each.from_offset] = replace(each, to_offset=begin, windows=windows, lossy=left is None)
        if not event.lossy and beyond[0].from_offset <= begin:
            lost.append(Lost(event, ()))
        else:
            unknown = (each for each in beyond if each.lossy or (event.lossy and each.from_offset < begin))
            lost.append(Lost(replace(event, windows=tuple(inside.values())), tuple(unknown)))
    return list(ranges.values()), lost


def _summed(windows: Iterable[EventWindow]) -> dict[tuple[int, str], EventWindow]:
    found: dict[tuple[int, str], EventWindow] = {}
    for window in windows:
        key = (window.start_ms, window.source)
        before = found.get(key, window._replace(records=0, size=0))
        found[key] = before._replace(records=before.records + window.records, size=before.size + window.size)
    return found


def _less(windows: Iterable[EventWindow], others: Iterable[EventWindow] | None) -> tuple[EventWindow, ...] | None:
    """Returns the windows without the counts of the others; None if these have more, or are None."""
    if others is None:
        return None
    left = _summed(windows)
    for other in others:
        key = (other.start_ms, other.source)
        before = left.get(key, other._replace(records=0))
        if before.records < other.records:
            return None
        left[key] = before._replace(records=before.records - other.records, size=before.size - other.size)
    return tuple(window for window in left.values() if window.records)


def topic_ids(events: Iterable[AuditEvent], logs: Iterable[Place]) -> dict[str, int]:
    """R12: returns the ids that a topic name has had, each with the time at which an event first reported it, in this
    order. The ids of present logs come last, because an event of a former topic may be sent late."""
    present = {place.topic_id for place in logs}
    first: dict[str, int] = {}
    for event in events:
        if event.topic_id:
            first[event.topic_id] = min(first.get(event.topic_id, event.seen_ms), event.seen_ms)
    return dict(sorted(first.items(), key=lambda item: (item[0] in present, item[1])))


def not_mirrored(mirror: TierCounts, broker: TierCounts, ids: Sequence[str]) -> set[str]:
    """R24: returns the topic ids of which a mirror copies nothing more until somebody acts: those that the source has
    replaced, and those newer than every id of which it has counted records. None for another reader. `ids`: see
    `topic_ids`."""
    if mirror.tier.tier != MIRROR or not mirror.topic_ids:
        return set()
    counted = {place.topic_id for place in broker.tiles}
    newest = max((at for at, topic_id in enumerate(ids) if topic_id in counted), default=-1)
    copied = max((at for at, topic_id in enumerate(ids) if topic_id in mirror.topic_ids), default=len(ids))
    return {topic_id for at, topic_id in enumerate(ids) if at < newest or at > copied}


def former_ids(reader: TierCounts, ids: Sequence[str]) -> set[str]:
    """R3, R4: returns the topic ids that were replaced before the reader's first event. `ids`: see `topic_ids`."""
    first = min((at for at, topic_id in enumerate(ids) if topic_id in reader.topic_ids), default=0)
    return set(ids[:first])


# -- what a comparison proves


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


def _by_source(stored: Mapping[str, int], told: Mapping[str, int]) -> _Difference:
    """Compares what the broker tier counted with what producers reported, one by one if it knows them."""
    audited = {source: records for source, records in stored.items() if source != FOREIGN}
    if UNATTRIBUTED in audited:
        return _difference({"": sum(audited.values())}, {"": sum(told.values())})
    return _difference(audited, told)


def producer_cell(start: int, producers: TierCounts) -> Cell:
    """R13: producers are the reference."""
    tally = producers.windows.get(start, Tally())
    state = State.UNKNOWN if producers.doubts(start) else State.COMPLETE
    return Cell(tally.records, tally.size, tally.attempted, None, state)


def broker_cell(start: int, broker: TierCounts, producers: TierCounts) -> Cell:
    """R13, R18: compares producer by producer. Records that a producer has reported and the broker has not stored are
    missing, even if the window is otherwise unknown.
    """
    tally = broker.windows.get(start, Tally())
    stored, told = broker.sources.get(start, {}), producers.sources.get(start, {})
    difference = _by_source(stored, told)
    ratio: float | None = difference.ratio
    state = difference.state
    absent = any(p.kind is Kind.ABSENT and p.touches(start) for p in (*broker.problems, *producers.problems))
    if absent or broker.doubts(start) or (state is not State.MISSING and producers.doubts(start)):
        ratio, state = None, State.UNKNOWN
    elif state is State.MISSING and any(problem.kind is Kind.BEHIND for problem in broker.problems):
        ratio, state = None, State.UNKNOWN  # R17: the broker may hold them and not have counted them yet
    elif state is State.DUPLICATED and producers.live:
        more = {source for source, records in stored.items() if source != FOREIGN and records > told.get(source, 0)}
        if UNATTRIBUTED in more or more & set(producers.live) or UNATTRIBUTED in stored:
            ratio, state = None, State.UNKNOWN
    return Cell(tally.records, tally.size, 0, ratio, state, difference.expected, stored.get(FOREIGN, 0))


class _PlaceDemand(NamedTuple):
    """What is demanded of a reader in one partition, by window: `held` by the broker; of these `before` its beginning,
    `part` in ranges inside which it began, `late` in ranges that go on beyond its end; of these `far` in ranges that
    begin there or later. `cut`: what a group counted in offsets that hold fewer records of the window now."""

    held: Mapping[int, int]
    before: Mapping[int, int]
    part: Mapping[int, int]
    late: Mapping[int, int]
    far: Mapping[int, int]
    cut: Mapping[int, int]


class Demand:
    """R13: what is demanded of one reader, partition by partition. `ids`: see `topic_ids`."""

    def __init__(
        self, broker: TierCounts, mine: TierCounts, producers: TierCounts, ids: Sequence[str], window_ms: int
    ) -> None:
        self._mine = mine
        self._producers = producers
        self._window_ms = window_ms
        self._never = not_mirrored(mine, broker, ids)
        ahead = not all(_covered(broker.tiles.get(place, ()), tiles) for place, tiles in mine.tiles.items() if tiles)
        self._ahead = ahead
        former = former_ids(mine, ids)
        self._later = set(ids[len(former) + 1 :]) if mine.tier.tier == MIRROR else set()
        """R24: of these ids a mirror should have copied everything."""
        self._places = {
            place: self._of(tiles, place, broker.by_place.get(place, {}))
            for place, tiles in broker.tiles.items()
            if place.topic_id not in former
        }
        self._elsewhere = {
            start for place in broker.tiles if place.topic_id in former for start in broker.by_place[place]
        }

    def _of(self, tiles: Sequence[AuditEvent], place: Place, held: Mapping[int, int]) -> _PlaceDemand:
        """The broker's ranges that are not demanded, or not whole, lie at the two ends."""
        begin, end = self._mine.begins.get(place, -math.inf), self._mine.ends.get(place, -math.inf)
        if place.topic_id in self._later:
            begin = -math.inf
        before: dict[int, int] = {}
        part: dict[int, int] = {}
        late: dict[int, int] = {}
        far: dict[int, int] = {}
        last = self._mine.tiles[place][-1].to_offset if place in self._mine.tiles else -math.inf
        for event in tiles:
            if event.from_offset >= begin:
                break
            self._add(before if event.to_offset <= begin else late if event.to_offset > end else part, event)
        for event in reversed(tiles):
            if event.to_offset <= end or event.from_offset < begin:
                break
            self._add(late, event)
            if event.from_offset >= last:
                self._add(far, event)
        return _PlaceDemand(held, before, part, late, far, self._cut(tiles, self._mine.tiles.get(place, ())))

    def _cut(self, broker: Sequence[AuditEvent], mine: Sequence[AuditEvent]) -> dict[int, int]:
        """R11: returns by window how many records a group's ranges have more than the broker's of the same offsets. The
        log was cut after the group had counted them, so they make up for no other record."""
        found: dict[int, int] = {}
        near = 0
        for event in mine if broker and self._mine.tier.tier == CONSUMER else ():
            while near < len(broker) and broker[near].to_offset <= event.from_offset:
                near += 1
            held: dict[int, int] = {}
            at = event.from_offset
            for other in islice(broker, near, None):
                if other.from_offset >= event.to_offset:
                    break
                if other.from_offset <= at < other.to_offset:
                    at = other.to_offset
                self._add(held, other)
            if at < event.to_offset:
                continue  # the broker tier has not counted all of its offsets
            mine_here: dict[int, int] = {}
            self._add(mine_here, event)
            for start, records in mine_here.items():
                if (more := records - held.get(start, 0)) > 0:
                    found[start] = found.get(start, 0) + more
        return found

    def _add(self, found: dict[int, int], event: AuditEvent) -> None:
        for window in event.windows:
            start = wide(window.start_ms, self._window_ms)
            found[start] = found.get(start, 0) + window.records

    def cell(self, start: int, broker: TierCounts, stored: Cell) -> Cell:
        """R13: compares the reader's count of a window with the two bounds of its demand in each partition."""
        mine = self._mine
        tally = mine.windows.get(start, Tally())
        most = short = late = rest = over = held = 0
        for place, demand in self._places.items():
            counted = mine.by_place.get(place, {}).get(start, 0)
            mine_here = counted - demand.cut.get(start, 0)
            all_of = demand.held.get(start, 0)
            wanted = all_of - demand.before.get(start, 0)
            beyond = demand.late.get(start, 0)
            covered = wanted - demand.part.get(start, 0) - beyond
            held, most = held + all_of, most + wanted
            short, over = (
                short + max(covered - mine_here, 0),
                over + max(counted - wanted + demand.far.get(start, 0), 0),
            )
            left = wanted - max(mine_here, covered)
            never = place.topic_id in self._never
            short, late = short + max(min(left, beyond), 0) * never, late + max(min(left, beyond), 0) * (not never)
            rest += max(left - beyond, 0)
        over += sum(by_window.get(start, 0) for place, by_window in mine.by_place.items() if place not in self._places)
        lost = self._lost(start, broker)
        short, most = short + lost, most + lost
        ratio: float | None = 1.0
        if short or late:
            ratio, state = (most - short - late) / most, State.MISSING if short else State.LATE
        elif over:
            ratio, state = (most + over) / most if most else math.inf, State.DUPLICATED
        elif rest or (not most and (held or start in self._elsewhere)):
            ratio, state = None, State.NOT_COMPARED
        else:
            state = State.COMPLETE
        # R17, R18: what the broker may not have counted
        all_counted = all(problem.kind is Kind.OVERLAP for problem in broker.problems)
        gaps = stored.state in (State.MISSING, State.UNKNOWN) and any(
            problem.kind is not Kind.ABSENT for problem in broker.problems
        )
        gaps = gaps and not (lost and all_counted)
        ahead = state is State.DUPLICATED and self._ahead
        again = start in mine.lost and not lost and stored.state is State.UNKNOWN  # or they were sent again
        if mine.doubts(start) or broker.doubts(start) or gaps or ahead or again:
            ratio, state = None, State.UNKNOWN
            lost = self._lost(start, mine)
            if lost and all_counted and not late and not mine.doubts(start) and self._is_whole(start):
                most = tally.records + lost
                ratio, state = tally.records / most, State.MISSING
        return Cell(tally.records, tally.size, 0, ratio, state, most)

    def _lost(self, start: int, stored: TierCounts) -> int:
        """R25: returns how many of the records that the mirror and its source have lost were not sent again: of a
        producer at most those that it has reported and that are not stored; all of those of clients that do not audit,
        since nobody reports whether they have sent them again."""
        lost, told = self._mine.lost.get(start, {}), self._producers.sources.get(start, {})
        held = {source: records for source, records in stored.sources.get(start, {}).items() if source != FOREIGN}
        audited = {source: records for source, records in lost.items() if source != FOREIGN}
        if UNATTRIBUTED in audited or UNATTRIBUTED in held:
            audited, told, held = ({"": sum(each.values())} for each in (audited, told, held))
        lacking = {source: max(told.get(source, 0) - held.get(source, 0), 0) for source in audited}
        return lost.get(FOREIGN, 0) + sum(min(records, lacking[source]) for source, records in audited.items())

    def _is_whole(self, start: int) -> bool:
        """Returns True if all records of the window are demanded of the reader."""
        in_part = any(demand.before.get(start) or demand.part.get(start) for demand in self._places.values())
        return not in_part and start not in self._elsewhere


def _covered(broker: Sequence[AuditEvent], mine: Sequence[AuditEvent]) -> bool:
    """Returns False if the reader has counted offsets that the broker tier has not counted yet, or never will because
    they were deleted before it began.
    """
    return bool(broker) and broker[0].from_offset <= mine[0].from_offset and broker[-1].to_offset >= mine[-1].to_offset


def read_by_group(events: Iterable[AuditEvent]) -> tuple[list[AuditEvent], list[tuple[int, int]]]:
    """R8, R15: returns the events of a group in a partition that are not void, with those that report where an owner
    begins, and the spans of offsets that the group read again because its offset was set back, in order.

    Ranges begin at commits. So if an owner begins elsewhere than at the end of the range before it, or where there is
    no commit, nothing shows that this range was committed. If an owner begins below a range that was published before,
    that range was not committed, or the group's offset was set back in between (by a later owner), or the log was cut
    (the same owner reports a beginning again). A later owner has the higher epoch and begins later; but a suspended
    member may publish late, and the epoch of a classic group may start again. So a range is void, too, if an owner of a
    higher epoch has reported its beginning since the owner of the range did.
    """
    kept: dict[int, list[AuditEvent]] = {}
    furthest: dict[int, AuditEvent] = {}
    begun: dict[int, int] = {}
    resets: set[tuple[int, int]] = set()
    back: list[tuple[int, int]] = []
    reached = highest = last = -1
    for at, event in enumerate(sorted(events, key=lambda each: each.seen_ms)):
        begin, tells = event.from_offset, event.begins
        if tells:
            begun[event.epoch] = at
        elif any(epoch > event.epoch and since > begun.get(event.epoch, at) for epoch, since in begun.items()):
            continue  # another owner had begun: its commit was refused
        if begin <= reached:
            again = [
                of_epoch.to_offset
                for epoch, of_epoch in furthest.items()
                if epoch < event.epoch and begin < of_epoch.from_offset and of_epoch.seen_ms < event.seen_ms
            ]
            if again:
                back.append((begin, max(again)))
            kept = _without_again(kept, event)
            last = max((before for before in kept if before < begin), default=-1)
        if tells and event.epoch < highest:
            continue  # it was suspended
        if (tells or event.epoch > highest) and last >= 0 and _not_committed(kept[last], event):
            if (end := max(each.to_offset for each in kept[last])) > begin:
                back.append((begin, end))
            kept[last] = [replace(each, to_offset=last, windows=()) for each in kept[last]]
        if event.reset:
            resets.add((event.epoch, begin))
        at_commit = not tells and (event.epoch, begin) not in resets
        if at_commit and (event.epoch not in furthest or furthest[event.epoch].from_offset < begin):
            furthest[event.epoch] = event
        kept.setdefault(begin, []).append(event)
        last = begin if begin > reached else max(kept)
        reached, highest = max(reached, begin), max(highest, event.epoch)
    return [event for at_begin in kept.values() for event in at_begin], _joined(back)


def _not_committed(last: Sequence[AuditEvent], event: AuditEvent) -> bool:
    """Returns True if an owner begins with `event`, and nothing shows that the range before that was committed."""
    return event.reset or not any(before.to_offset == event.from_offset for before in last)


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins those that overlap; the others stay apart."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if found and low < found[-1][1]:
            low, high = found[-1][0], max(found.pop()[1], high)
        found.append((low, high))
    return found


def _without_again(kept: Mapping[int, Sequence[AuditEvent]], event: AuditEvent) -> dict[int, list[AuditEvent]]:
    """Leaves out what the owner of `event` reads again, and where former owners began there."""
    begin = event.from_offset

    def again(before: AuditEvent) -> bool:
        if event.begins:
            return before.from_offset >= begin and before.epoch <= event.epoch
        return before.from_offset > begin and before.epoch < event.epoch

    left = {at: [each for each in of if not again(each)] for at, of in kept.items()}
    return {at: of for at, of in left.items() if of}


def is_behind(place: Place, log: LogEnd, counted: Mapping[Place, int]) -> bool:
    """R17: returns True if a log holds, or may hold, records that the broker tier has not counted.

    Records deleted before it saw the partition are not counted. What it has committed counts only where all of its
    events may have been deleted (R22).
    """
    end = counted.get(place, max(log.start, log.counted))
    return log.end < 0 or end < log.end


def is_cut(log: LogEnd, tiles: Sequence[AuditEvent]) -> bool:
    """R17: returns True if the log was cut below what the broker tier has counted, and its leader has not reported it
    yet, as the first event of the next leader epoch does (R11).
    """
    newest = max((event.epoch for event in tiles), default=-1)
    return 0 <= log.kept < max((event.to_offset for event in tiles if event.epoch == newest), default=0)


@dataclass(eq=False)
class Problems:
    """R14 to R18: finds the problems of one topic's tiers.

    `lateness_ms`: how much later than its timestamp a record may be sent; `ids`: see `topic_ids`; `retained`: no
    event of the audit topic was deleted.
    """

    topic: str
    found: dict[TierKey, TierCounts]
    window_ms: int
    now_ms: int
    lateness_ms: int
    ids: Mapping[str, int]
    retained: bool = True

    def __post_init__(self) -> None:
        self._known = {s for counts in self.found.values() for s in (*counts.windows, *counts.told, *counts.lost)}
        self._broker = next((counts for tier, counts in self.found.items() if tier.tier == BROKER), None)
        self._producers = self.found.get(PRODUCERS, TierCounts(PRODUCERS))

    def find(self, logs: Mapping[Place, LogEnd]) -> None:
        for counts in self.found.values():
            for place, tiles in counts.tiles.items():
                counts.problems += self._tiling(counts, place, tiles)
            for place, cuts in counts.cuts.items():
                for event in chain.from_iterable(each.ranges for each in cuts):
                    counts.problems += self._uncounted(counts, place, event, "what was cut from it is not known")
            for place, spans in counts.set_back.items():
                for span in spans:
                    counts.problems += self._given_again(counts, place, span)
            if counts.tier.tier == CONSUMER and not (self.retained or counts.restarted):
                counts.problems += self._begun_before(counts)
        if self._broker is not None:
            self._broker.problems += self._behind(self._broker, logs)
            present = set() if TierKey(MIRROR) in self.found else {place.topic_id for place in logs}
            self._broker.problems += self._deleted(self._broker, present)
        producers = self._producers
        for life in producers.lives:
            producers.problems += self._holes(life)
            producers.problems += self._killed(life)
        producers.problems += self._untold({life.owner for life in producers.lives})

    # -- ranges

    def _tiling(self, counts: TierCounts, place: Place, tiles: Sequence[AuditEvent]) -> Iterator[Problem]:
        where = f"partition {place.partition}"
        for event in tiles:
            if event.lossy:
                yield from self._uncounted(counts, place, event)
        begin = counts.begins.get(place)
        if begin is None and counts.tier.tier == HADOOP and self._broker is not None:
            begin = next((event.from_offset for event in self._broker.tiles.get(place, ())), None)
        if tiles and begin is not None and begin < tiles[0].from_offset:  # R14
            yield from self._gap(counts, place, (begin, tiles[0].from_offset))
        left = tiles[0]  # of those before `right`, the one that reaches furthest
        for right in tiles[1:]:
            if left.to_offset < right.from_offset:  # R14
                yield from self._gap(counts, place, (left.to_offset, right.from_offset))
            elif left.to_offset > right.from_offset:  # R15
                end = min(left.to_offset, right.to_offset)
                text = f"{where}: offsets [{right.from_offset}, {end}) are counted twice"
                both: frozenset[int] | None = self._of(left) | self._of(right)
                if counts.tier.tier not in (BROKER, MIRROR):
                    both = self._touched(counts, place, (right.from_offset, end))
                yield from self._problem(Kind.OVERLAP, counts.tier, text, both)
            left = max(left, right, key=lambda each: each.to_offset)

    def _uncounted(
        self, counts: TierCounts, place: Place, event: AuditEvent, what: str = "not every record could be counted"
    ) -> Iterator[Problem]:
        """R16, R25: a range not all of which is counted, or not known any more although it was counted."""
        begin, end = event.from_offset, event.to_offset
        windows = self._touched(counts, place, (begin, end)) if event.lossy else frozenset()
        text = f"partition {place.partition} [{begin}, {end}): {what}"
        both = None if windows is None else windows | self._of(event)
        yield from self._problem(Kind.LOSSY, counts.tier, text, both)

    def _given_again(self, counts: TierCounts, place: Place, span: tuple[int, int]) -> Iterator[Problem]:
        """R15."""
        text = f"partition {place.partition}: the group was set back and received offsets [{span[0]}, {span[1]}) again"
        yield from self._problem(Kind.OVERLAP, counts.tier, text, self._touched(counts, place, span))

    def _gap(self, counts: TierCounts, place: Place, span: tuple[int, int]) -> Iterator[Problem]:
        text = f"partition {place.partition}: nothing counted in offsets [{span[0]}, {span[1]})"
        yield from self._problem(Kind.GAP, counts.tier, text, self._touched(counts, place, span))

    def _begun_before(self, counts: TierCounts) -> Iterator[Problem]:
        """R22: finds topic ids that were replaced before the first event of a group that is left. Nothing shows whether
        it began there, and what it has not read of them is lost to it."""
        former = former_ids(counts, [*self.ids])
        held = {} if self._broker is None else self._broker.by_place
        windows = frozenset(start for place, of in held.items() if place.topic_id in former for start in of)
        text = "the topic was created again before the group's first event that is left; it may have started before"
        yield from self._problem(Kind.GAP, counts.tier, text, windows)

    def _behind(self, broker: TierCounts, logs: Mapping[Place, LogEnd]) -> Iterator[Problem]:
        """R17: finds logs that continue where the broker tier has stopped counting, temporarily or permanently."""
        for place, log in sorted(logs.items()):
            tiles = broker.tiles.get(place, [])
            cut = is_cut(log, tiles)
            if not cut and not is_behind(place, log, broker.ends):
                continue
            since_ms = self._since([event for event in tiles if event.to_offset <= log.kept] if cut else tiles)
            broker.uncounted_ms = min(broker.uncounted_ms, since_ms)
            counted = f"counted up to offset {tiles[-1].to_offset}" if tiles else "not counted yet"
            end = "no broker says where its log ends" if log.end < 0 else f"its log ends at {log.end}"
            end = f"its log was cut at {log.kept}" if cut else end
            touched = frozenset(s for s in self._known if s == NO_WINDOW or s + self.window_ms > since_ms)
            if cut:
                touched = touched.union(*(self._of(event) for event in tiles if event.to_offset > log.kept))
            windows = None if since_ms == -math.inf else touched
            text = f"partition {place.partition}: {counted}, and {end}"
            yield Problem(Kind.BEHIND, self.topic, broker.tier, text, windows, since_ms)

    def _deleted(self, broker: TierCounts, present: Collection[str]) -> Iterator[Problem]:
        """R16: finds topic ids that were replaced, or deleted: their last records may have been deleted before the
        broker tier counted them, so that what it lacks there is not proved to be missing.
        """
        told, stored = self._producers.sources, broker.sources
        lacking = {start for start, of in told.items() if _by_source(stored.get(start, {}), of).short}
        off = [0, *(life.ahead_ms for life in self._producers.lives)]
        for topic_id, following in pairwise([*self.ids, None]):
            if topic_id is None or (following is None and (not present or topic_id in present)):
                continue
            high = math.inf if following is None else self.ids[following] + self.lateness_ms + max(off)
            of_id = [tiles for place, tiles in broker.tiles.items() if place.topic_id == topic_id]
            low = min(map(self._since, of_id), default=-math.inf) - max(off) + min(off)
            windows = {s for s in lacking if s == NO_WINDOW or low - self.window_ms < s <= high}
            text = f"the topic with id {topic_id} was deleted, perhaps before its last records were counted"
            yield from self._problem(Kind.LOSSY, broker.tier, text, frozenset(windows))

    def _since(self, tiles: Sequence[AuditEvent]) -> float:
        """R17: the earliest time that a record after these ranges may have: as far before the newest one counted as the
        allowed lateness of both permits, or as the partition was out of order before. A time after its own event is a
        sender's mistake."""
        newest, disorder = -math.inf, 2 * self.lateness_ms
        for event in tiles:
            starts = [window.start_ms for window in event.windows if window.start_ms != NO_WINDOW]
            if starts:
                newest = max(newest, min(max(starts), event.seen_ms))
                disorder = max(disorder, math.ceil(newest - min(starts)))
        return newest - disorder

    def _problem(self, kind: Kind, tier: TierKey, text: str, windows: frozenset[int] | None) -> Iterator[Problem]:
        if windows is None or windows:
            yield Problem(kind, self.topic, tier, text, windows)

    def _of(self, event: AuditEvent) -> frozenset[int]:
        return frozenset(wide(window.start_ms, self.window_ms) for window in event.windows)

    def _touched(self, counts: TierCounts, place: Place, span: tuple[int, int]) -> frozenset[int] | None:
        """Returns the windows in which records of these offsets can lie; None if unknown.

        They are the windows in which the broker tier has counted them; without its count, those between the ranges
        before and after, give or take the lateness that senders are allowed and what is wrong with their clocks, or
        those of another tier's count.
        """
        if counts is not self._broker:
            if self._broker is None or place not in self._broker.tiles:
                return None
            if not self.retained:  # R22: what the broker tier counted before is left out
                span = max(span[0], self._broker.tiles[place][0].from_offset), span[1]
            windows, holes = self._counted(self._broker, place, span)
            inside = [self._touched(self._broker, place, hole) or frozenset() for hole in holes]
            return windows.union(*inside)
        tiles = [event for event in counts.tiles[place] if event.windows and not event.lossy]
        before = next((self._of(event) for event in reversed(tiles) if event.to_offset <= span[0]), None)
        after = next((self._of(event) for event in tiles if event.from_offset >= span[1]), None)
        sides = [side for side in (before, after) if side is not None]
        spread = self.lateness_ms + self._clocks_apart_ms()
        low = -math.inf if before is None else min(map(min, sides)) - spread
        high = math.inf if after is None else max(map(max, sides)) + spread + self.window_ms - 1
        near = {start for start in self._known if low <= start <= high or start == NO_WINDOW}
        others = [self._counted(other, place, span) for other in self.found.values() if other is not counts]
        return frozenset(near).union(*(windows for windows, holes in others if not holes))

    def _clocks_apart_ms(self) -> int:
        """Returns how far the clocks of producers are apart, of those that are off by more than the lateness."""
        off = [0, *(each.ahead_ms for each in self._producers.lives if abs(each.ahead_ms) > self.lateness_ms)]
        return max(off) - min(off)

    def _counted(
        self, counts: TierCounts, place: Place, span: tuple[int, int]
    ) -> tuple[frozenset[int], list[tuple[int, int]]]:
        """Returns the windows of the ranges that contain these offsets, and the offsets that are in no range."""
        windows: frozenset[int] = frozenset()
        holes: list[tuple[int, int]] = []
        at, end = span
        for event in counts.tiles.get(place, ()):
            if event.to_offset > at and event.from_offset < end:
                if event.from_offset > at:
                    holes.append((at, event.from_offset))
                windows |= self._of(event)
                at = event.to_offset
        return windows, holes if at >= end else [*holes, (at, end)]

    # -- producers

    def _holes(self, life: ProducerLife) -> Iterator[Problem]:
        """R18: checks that a producer's events are numbered from 0 without a gap; where events of the audit topic were
        deleted, from its first one left (R22).
        """
        numbers = [event.from_offset for event in life.events]
        least = 0 if self.retained else numbers[0]
        told = numbers[-1] + 1 - least
        if len(numbers) == told:
            if least:
                text = f"producer {life.owner}: the log has more of its records than its events that are left"
                yield from self._problem(Kind.GAP, PRODUCERS, text, frozenset(self._surplus(life)))
            return
        first = next(wanted for wanted, number in zip(count(least), numbers, strict=False) if wanted != number)
        text = f"producer {life.owner}: {told - len(numbers)} of its {told} events are missing, the first is {first}"
        windows: set[int] = set()
        for left, right in pairwise([None, *life.events]):
            assert right is not None
            if right.from_offset == (least if left is None else left.from_offset + 1):
                continue
            windows |= self._windows_between(None if left is None else left.seen_ms, right.seen_ms)
            windows |= self._of(right) | (frozenset() if left is None else self._of(left))
        yield from self._problem(Kind.GAP, PRODUCERS, text, frozenset(windows | self._surplus(life)))

    def _killed(self, life: ProducerLife) -> Iterator[Problem]:
        """R18: reports a killed producer. Records that it reported are in the log or missing; records that it may not
        have reported are unknown.

        A quiet producer had reported everything. One that was not quiet may have had records acknowledged in the
        windows of its time, or in those in which it counted last.
        """
        if not life.killed:
            return
        last = life.last
        windows = self._surplus(life)
        if not last.quiet:
            windows |= self._open(life) or {wide(last.seen_ms, self.window_ms)}
        text = (
            f"producer {life.owner} (application {last.application} on {last.host}) was killed or cut off: silent for "
            f"{(self.now_ms - last.seen_ms) // 1000} s, without its last counts"
        )
        yield from self._problem(Kind.KILLED, PRODUCERS, text, frozenset(windows))

    def _open(self, life: ProducerLife) -> set[int]:
        """Returns the windows in which a producer may have counted after its last event, also by its own clock, if that
        is off by more than the lateness."""
        last, late = life.last, self.lateness_ms
        ahead_ms = life.ahead_ms if abs(life.ahead_ms) > late else 0
        since_ms = last.seen_ms + min(ahead_ms, 0)
        until_ms = last.seen_ms + PATIENCE * last.interval_ms + max(ahead_ms, 0)
        return self._windows_between(since_ms, until_ms) | life.windows_since(last.seen_ms - late, self.window_ms)

    def _windows_between(self, since_ms: int | None, until_ms: int) -> set[int]:
        """Returns the windows in which a record sent in that time may lie, by the allowed lateness."""
        late, length = self.lateness_ms, self.window_ms
        return {
            start
            for start in self._known
            if start == NO_WINDOW
            or ((since_ms is None or start + length > since_ms - late) and start <= until_ms + late)
        }

    def _surplus(self, life: ProducerLife) -> set[int]:
        """Returns the windows in which the log holds more of a producer's records than it reported."""
        if self._broker is None:
            return set()
        more = set()
        for start, stored in self._broker.sources.items():
            told = self._producers.sources.get(start, {})
            if UNATTRIBUTED in stored:
                if _by_source(stored, told).over:
                    more.add(start)
            elif stored.get(life.owner, 0) > told.get(life.owner, 0):
                more.add(start)
        return more

    def _untold(self, owners: Collection[str]) -> Iterator[Problem]:
        """R18: finds records of audited producers without any event: killed before it was stored, or just started.
        The log may have lost the records since (R11)."""
        if self._broker is None:
            return
        windows: dict[str, set[int]] = {}
        mirrors = (counts.lost for counts in self.found.values())
        for start, sources in chain(self._broker.told.items(), *(lost.items() for lost in mirrors)):
            for source in {*sources} - {FOREIGN, UNATTRIBUTED, *owners}:
                windows.setdefault(source, set()).add(start)
        for source, starts in windows.items():
            stored = sum(of.get(source, 0) for of in self._broker.sources.values())
            text = f"producer {source} has sent no event, but " + (
                f"{stored} of its records are stored" if stored else "the log has had records of it"
            )
            yield from self._problem(Kind.UNTOLD, PRODUCERS, text, frozenset(starts))


def closes(problem: Problem, windows: Iterable[WindowAudit]) -> bool:
    """R19: returns True if the problem affects only settled counts. Records that the broker tier has not counted are in
    no count that can be settled, and of two lakes it is not known which one counts.
    """
    if problem.kind in (Kind.BEHIND, Kind.TWO_LAKES):
        return False
    touched = [window.cells[problem.tier].state for window in windows if problem.touches(window.start_ms)]
    return bool(touched) and all(state is State.SETTLED for state in touched)


# -- what moves the watermark


def watermark(windows: Iterable[WindowAudit], window_ms: int, horizon: Horizon) -> int | None:
    """R20: returns the end of the last window before the first that is not complete, or that may still get records.

    In ms since the epoch; None if there is none.

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


def horizon(found: Mapping[TierKey, TierCounts], now_ms: int, lateness_ms: int, window_ms: int) -> Horizon:
    """R21: returns the instant from which on records may still arrive, and the windows in which live producers counted
    lately. A live producer may have unreported records from its last event on, by its own clock.
    """
    live = [life for life in found[PRODUCERS].lives if life.live]
    sent_ms = (life.last.seen_ms + min(life.ahead_ms, 0) for life in live)
    uncounted_ms = min(counts.uncounted_ms for counts in found.values())
    held: frozenset[int] = frozenset().union(*(life.windows_since(now_ms - lateness_ms, window_ms) for life in live))
    return Horizon(min(min([now_ms, *sent_ms]) - lateness_ms, uncounted_ms), held)


def left_out_ms(retained_ms: float, lateness_ms: int, lives: Iterable[ProducerLife]) -> int | None:
    """R22: returns the instant before which windows are left out, because events that counted in them may have been
    deleted; None if no event was. `retained_ms`: when the audit topic stored the first event left, or -inf.
    """
    ahead_ms = max((life.ahead_ms for life in lives), default=0)
    return None if retained_ms == -math.inf else math.ceil(retained_ms) + lateness_ms + max(ahead_ms, 0)


def within(problem: Problem, windows: Collection[int], left_out: int | None) -> Problem | None:
    """R22: restricts a problem to the windows that are not left out; None if it affects none of them. A tier all of
    whose events may have been deleted lacks an event only in the remaining windows.
    """
    if left_out is None:
        return problem
    if problem.windows is None and problem.kind is Kind.ABSENT:
        touched = frozenset(windows)
    elif problem.windows is None:
        return problem
    else:
        touched = problem.windows.intersection(windows)
    return problem._replace(windows=touched) if touched or problem.since_ms < math.inf else None


def cell_passes(cell: Cell, threshold: float) -> bool:
    """R23: returns True if a count lets a gate open; below 1 a `threshold` is the least ratio that does."""
    return cell.state.passes or (threshold < 1 and cell.ratio is not None and cell.ratio >= threshold)


def closes_gate(problem: Problem, until_ms: float) -> bool:
    """R23: returns True if a problem may affect a window before the instant that has no cell."""
    return problem.windows is None or problem.since_ms < until_ms


def holding(cell: Cell, holds: bool) -> Cell:
    """R2: returns the cell as that of an expected tier, which holds watermark and gate, or of one that does not."""
    return cell if cell.holds == holds else replace(cell, holds=holds)
