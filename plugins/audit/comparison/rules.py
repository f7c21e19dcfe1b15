"""Computes from the events of the audit topic what each tier has counted by window, and which windows have problems.

- Of the events of one key, the one that ends where another range begins was committed, because ranges begin at commits.
  An event that extends past the beginning of another range was not (its owner was suspended, and another one began
  there). If that does not decide, the highest epoch wins, and among these the last event; an epoch may start again (the
  generation of a classic group whose broker lost it).
- A problem belongs to the windows whose counts it may affect, and to no others. The windows of a range of offsets are
  known from the broker tier, which has counted every range.
- Offsets of a topic that was deleted and created again are other offsets: ranges tile by topic id.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from types import MappingProxyType

from klamm.plugin import NO_WINDOW

from ..event import (
    BROKER,
    CONSUMER,
    FOREIGN,
    HADOOP,
    PRODUCER,
    SETTLEMENT,
    UNATTRIBUTED,
    AuditEvent,
    EventKey,
)
from .tiers import (
    DEFAULT_LATENESS_MS,
    PATIENCE,
    PRODUCERS,
    Kind,
    LogEnd,
    Place,
    Problem,
    ProducerLife,
    TierCounts,
    TierKey,
    wide,
)


def end_counted(events: Iterable[AuditEvent]) -> dict[Place, int]:
    """Returns the offset up to which the broker tier has counted each partition."""
    ends: dict[Place, int] = {}
    for event in events:
        if event.tier == BROKER and event.partition is not None:
            place = Place(event.topic_id, event.partition)
            ends[place] = max(ends.get(place, 0), event.to_offset)
    return ends


def is_behind(place: Place, log: LogEnd, counted: Mapping[Place, int]) -> bool:
    """Returns True if a log holds, or may hold, records that the broker tier has not counted.

    Records deleted before it saw the partition are not counted.
    """
    end = counted.get(place, log.start)
    return log.end < 0 or end < log.end


def last_of_each(events: Iterable[AuditEvent]) -> dict[EventKey, AuditEvent]:
    """Returns the last event of each key: the highest epoch wins, and of these the last event, in the order of the
    audit topic, where a key has one partition.
    """
    found: dict[EventKey, AuditEvent] = {}
    for event in events:
        before = found.get(event.key)
        if before is None or event.epoch >= before.epoch:
            found[event.key] = event
    return found


def topic_ids(events: Iterable[AuditEvent]) -> tuple[str, ...]:
    """Returns the ids that a topic name has had, in the order in which events reported them."""
    first: dict[str, int] = {}
    for event in events:
        if event.topic_id:
            first[event.topic_id] = min(first.get(event.topic_id, event.seen_ms), event.seen_ms)
    return tuple(sorted(first, key=lambda topic_id: first[topic_id]))


def tier_counts(
    topic: str,
    events: Iterable[AuditEvent],
    window_ms: int,
    now_ms: int,
    lateness_ms: int = DEFAULT_LATENESS_MS,
    logs: Mapping[Place, LogEnd] = MappingProxyType({}),
) -> dict[TierKey, TierCounts]:
    """Returns the tiers of one topic, with their problems. Every window length among the events must divide
    `window_ms`. `logs`: the topic's partitions as they were before the events were read.
    """
    found: dict[TierKey, TierCounts] = {}
    ranges: dict[tuple[TierKey, Place], dict[int, list[AuditEvent]]] = {}
    producers: dict[str, dict[int, AuditEvent]] = {}
    replays: list[AuditEvent] = []
    for event in (event for event in events if event.tier != SETTLEMENT):
        tier = TierKey(event.tier, "" if event.tier == PRODUCER else event.owner)
        found.setdefault(tier, TierCounts(tier))
        if event.replay:
            replays.append(event)
        elif event.partition is None:
            producers.setdefault(event.owner, {})[event.from_offset] = event
        else:
            place = Place(event.topic_id, event.partition)
            ranges.setdefault((tier, place), {}).setdefault(event.from_offset, []).append(event)
    for event in last_of_each(replays).values():
        found[TierKey(event.tier, event.owner)].replayed += sum(window.records for window in event.windows)
    for (tier, place), versions in ranges.items():
        chosen = _chosen(tier, versions)
        tiles = found[tier].tiles[place] = list(_not_cut(chosen) if tier.tier == BROKER else chosen)
        if tier.tier == CONSUMER and (span := _set_back(chain.from_iterable(versions.values()))):
            found[tier].set_back[place] = span
        for event in tiles:
            found[tier].add(event, window_ms)
    for owner, numbered in producers.items():
        told = tuple(numbered[number] for number in sorted(numbered))
        killed = not told[-1].final and now_ms - told[-1].seen_ms > PATIENCE * told[-1].interval_ms
        found[PRODUCERS].lives.append(ProducerLife(owner, told, killed))
        for event in told:
            found[PRODUCERS].add(event, window_ms)
    _Findings(topic, found, window_ms, now_ms, lateness_ms).find(logs)
    return found


def _chosen(tier: TierKey, versions: Mapping[int, Sequence[AuditEvent]]) -> Iterator[AuditEvent]:
    """Yields one event for each `from`, in order."""
    begins: list[int | None] = [*sorted(versions), None]
    for begin, following in pairwise(begins):
        assert begin is not None
        ranked = [event for _, event in sorted(enumerate(versions[begin]), key=_rank, reverse=True)]
        committed = (event for event in ranked if event.to_offset == following)
        fits = (event for event in ranked if following is None or event.to_offset <= following)
        yield ranked[0] if tier.tier == BROKER else next(chain(committed, fits), ranked[0])


def _set_back(events: Iterable[AuditEvent]) -> tuple[int, int] | None:
    """Returns the offsets that a group read again after its offset was set back, or None.

    Ranges begin at commits. So if an owner begins before a range that an earlier one had published, the group's offset
    went back in between. An earlier owner has the lower epoch and published earlier: a suspended member may publish
    late, and the epoch of a classic group may start again.
    """
    furthest: dict[int, AuditEvent] = {}
    back: tuple[int, int] | None = None
    reached = 0
    for event in sorted(events, key=lambda each: each.seen_ms):
        for epoch, last in furthest.items() if event.from_offset < reached else ():
            if epoch < event.epoch and event.from_offset < last.from_offset and last.seen_ms < event.seen_ms:
                low, high = (event.from_offset, last.to_offset) if back is None else back
                back = min(low, event.from_offset), max(high, last.to_offset)
        reached = max(reached, event.from_offset)
        if event.epoch not in furthest or furthest[event.epoch].from_offset < event.from_offset:
            furthest[event.epoch] = event
    return back


def _not_cut(tiles: Iterable[AuditEvent]) -> Iterator[AuditEvent]:
    """Leaves out events that a leader of a higher epoch has counted again: the log was truncated there, and the records
    they counted are lost or are in the events of that leader.
    """
    highest = -1
    for event in tiles:
        if event.epoch >= highest:
            highest = event.epoch
            yield event


def _rank(item: tuple[int, AuditEvent]) -> tuple[int, int]:
    return item[1].epoch, item[0]


class _Findings:
    """Finds the problems of one topic's tiers."""

    def __init__(
        self, topic: str, found: dict[TierKey, TierCounts], window_ms: int, now_ms: int, lateness_ms: int
    ) -> None:
        self._topic = topic
        self._found = found
        self._window_ms = window_ms
        self._now_ms = now_ms
        self._lateness_ms = lateness_ms
        self._known = {start for counts in found.values() for start in counts.windows}
        self._broker = next((counts for tier, counts in found.items() if tier.tier == BROKER), None)

    def find(self, logs: Mapping[Place, LogEnd]) -> None:
        for counts in self._found.values():
            for place, tiles in counts.tiles.items():
                counts.problems += self._tiling(counts, place, tiles)
            for place, span in counts.set_back.items():
                counts.problems += self._given_again(counts, place, span)
        if self._broker is not None:
            self._broker.problems += self._behind(self._broker, logs)
        producers = self._found.get(PRODUCERS)
        if producers is None:
            return
        for life in producers.lives:
            producers.problems += self._holes(life)
            producers.problems += self._killed(life)
        producers.problems += self._untold({life.owner for life in producers.lives})

    # -- ranges

    def _tiling(self, counts: TierCounts, place: Place, tiles: Sequence[AuditEvent]) -> Iterator[Problem]:
        where = f"partition {place.partition}"
        for event in tiles:
            if event.lossy:
                windows = self._touched(counts, place, (event.from_offset, event.to_offset))
                text = f"{where} [{event.from_offset}, {event.to_offset}): not every record could be counted"
                own = self._of(event)
                yield from self._problem(Kind.LOSSY, counts.tier, text, None if windows is None else windows | own)
        if counts.tier.tier == HADOOP and self._broker is not None and place in self._broker.tiles:
            first = self._broker.tiles[place][0].from_offset
            if tiles[0].from_offset > first:  # the broker counted records that no load has
                yield from self._gap(counts, place, (first, tiles[0].from_offset))
        for left, right in pairwise(tiles):
            if left.to_offset < right.from_offset:
                yield from self._gap(counts, place, (left.to_offset, right.from_offset))
            elif left.to_offset > right.from_offset:
                end = min(left.to_offset, right.to_offset)
                text = f"{where}: offsets [{right.from_offset}, {end}) are counted twice"
                yield from self._problem(Kind.OVERLAP, counts.tier, text, self._of(left) | self._of(right))

    def _given_again(self, counts: TierCounts, place: Place, span: tuple[int, int]) -> Iterator[Problem]:
        text = f"partition {place.partition}: the group was set back and received offsets [{span[0]}, {span[1]}) again"
        yield from self._problem(Kind.OVERLAP, counts.tier, text, self._touched(counts, place, span))

    def _gap(self, counts: TierCounts, place: Place, span: tuple[int, int]) -> Iterator[Problem]:
        text = f"partition {place.partition}: nothing counted in offsets [{span[0]}, {span[1]})"
        yield from self._problem(Kind.GAP, counts.tier, text, self._touched(counts, place, span))

    def _behind(self, broker: TierCounts, logs: Mapping[Place, LogEnd]) -> Iterator[Problem]:
        """Finds logs that continue where the broker tier has stopped counting, temporarily or permanently."""
        for place, log in sorted(logs.items()):
            if not is_behind(place, log, broker.ends):
                continue
            tiles = broker.tiles.get(place, [])
            since_ms = self._since(tiles)
            broker.uncounted_ms = min(broker.uncounted_ms, since_ms)
            counted = f"counted up to offset {tiles[-1].to_offset}" if tiles else "not counted yet"
            end = "no broker says where its log ends" if log.end < 0 else f"its log ends at {log.end}"
            touched = frozenset(s for s in self._known if s == NO_WINDOW or s + self._window_ms > since_ms)
            windows = None if since_ms == -math.inf else touched
            text = f"partition {place.partition}: {counted}, and {end}"
            yield Problem(Kind.BEHIND, self._topic, broker.tier, text, windows, since_ms)

    def _since(self, tiles: Sequence[AuditEvent]) -> float:
        """The earliest time that a record after these ranges may have: as far before the newest one counted as the
        allowed lateness of both permits, or as the partition was out of order before. A time after its own event is a
        sender's mistake."""
        newest, disorder = -math.inf, 2 * self._lateness_ms
        for event in tiles:
            starts = [window.start_ms for window in event.windows if window.start_ms != NO_WINDOW]
            if starts:
                newest = max(newest, min(max(starts), event.seen_ms))
                disorder = max(disorder, math.ceil(newest - min(starts)))
        return newest - disorder

    def _problem(self, kind: Kind, tier: TierKey, text: str, windows: frozenset[int] | None) -> Iterator[Problem]:
        if windows is None or windows:
            yield Problem(kind, self._topic, tier, text, windows)

    def _of(self, event: AuditEvent) -> frozenset[int]:
        return frozenset(wide(window.start_ms, self._window_ms) for window in event.windows)

    def _touched(self, counts: TierCounts, place: Place, span: tuple[int, int]) -> frozenset[int] | None:
        """Returns the windows in which records of these offsets can lie; None if unknown.

        They are the windows in which the broker tier has counted them; without its count, those between the ranges
        before and after, or those of another tier's count.
        """
        if counts is not self._broker:
            return None if self._broker is None else self._counted(self._broker, place, span)
        tiles = [event for event in counts.tiles[place] if event.windows and not event.lossy]
        before = next((self._of(event) for event in reversed(tiles) if event.to_offset <= span[0]), None)
        after = next((self._of(event) for event in tiles if event.from_offset >= span[1]), None)
        sides = [side for side in (before, after) if side is not None]
        low = -math.inf if before is None else min(map(min, sides))
        high = math.inf if after is None else max(map(max, sides))
        near = {start for start in self._known if low <= start <= high or start == NO_WINDOW}
        others = [self._counted(other, place, span) for other in self._found.values() if other is not counts]
        return frozenset(near).union(*(windows for windows in others if windows))

    def _counted(self, counts: TierCounts, place: Place, span: tuple[int, int]) -> frozenset[int] | None:
        """Returns the windows of the ranges that contain these offsets; None if not all offsets are counted."""
        windows: frozenset[int] = frozenset()
        at, end = span
        for event in counts.tiles.get(place, ()):
            if event.to_offset > at and event.from_offset < end:
                if event.from_offset > at:
                    return None
                windows |= self._of(event)
                at = event.to_offset
        return windows if at >= end else None

    # -- producers

    def _holes(self, life: ProducerLife) -> Iterator[Problem]:
        """Checks that a producer's events are numbered from 0 without a gap."""
        told = life.last.from_offset + 1
        if len(life.events) == told:
            return
        first = next(number for number, event in enumerate(life.events) if event.from_offset != number)
        text = (
            f"producer {life.owner}: {told - len(life.events)} of its {told} events are missing, the first is {first}"
        )
        windows: set[int] = set()
        for left, right in pairwise([None, *life.events]):
            assert right is not None
            if right.from_offset == (0 if left is None else left.from_offset + 1):
                continue
            windows |= self._windows_told_between(None if left is None else left.seen_ms, right.seen_ms)
            windows |= self._of(right) | (frozenset() if left is None else self._of(left))
        yield from self._problem(Kind.GAP, PRODUCERS, text, frozenset(windows | self._surplus(life)))

    def _killed(self, life: ProducerLife) -> Iterator[Problem]:
        """Reports a killed producer. Records that it reported are in the log or missing; records that it may not have
        reported are unknown.

        A quiet producer had reported everything. One that was not quiet may have had records acknowledged in the
        windows of its time, or in those in which it counted last.
        """
        if not life.killed:
            return
        last = life.last
        windows = self._surplus(life)
        if not last.quiet:
            windows |= self._open(life) or {wide(last.seen_ms, self._window_ms)}
        text = (
            f"producer {life.owner} (application {last.application} on {last.host}) was killed or cut off: silent for "
            f"{(self._now_ms - last.seen_ms) // 1000} s, without its last counts"
        )
        yield from self._problem(Kind.KILLED, PRODUCERS, text, frozenset(windows))

    def _open(self, life: ProducerLife) -> set[int]:
        """Returns the windows in which a producer may have counted after its last event."""
        last, late = life.last, self._lateness_ms
        near = self._windows_told_between(last.seen_ms, last.seen_ms + PATIENCE * last.interval_ms)
        return near | life.told_since(last.seen_ms - late, self._window_ms)

    def _windows_told_between(self, since_ms: int | None, until_ms: int) -> set[int]:
        """Returns the windows in which a record sent in that time may lie, by the allowed lateness."""
        late, length = self._lateness_ms, self._window_ms
        return {
            start
            for start in self._known
            if (since_ms is None or start + length > since_ms - late) and start <= until_ms + late
        }

    def _surplus(self, life: ProducerLife) -> set[int]:
        """Returns the windows in which the log holds more of a producer's records than it reported."""
        if self._broker is None:
            return set()
        producers = self._found[PRODUCERS].sources
        more = set()
        for start, stored in self._broker.sources.items():
            told = producers.get(start, {})
            if UNATTRIBUTED in stored:
                if sum(stored.values()) - stored.get(FOREIGN, 0) > sum(told.values()):
                    more.add(start)
            elif stored.get(life.owner, 0) > told.get(life.owner, 0):
                more.add(start)
        return more

    def _untold(self, owners: Collection[str]) -> Iterator[Problem]:
        """Finds records of audited producers without any event: killed before their first event was stored, or just
        started."""
        windows: dict[str, dict[int, int]] = {}
        for start, stored in {} if self._broker is None else self._broker.sources.items():
            for source, records in stored.items():
                if source not in (FOREIGN, UNATTRIBUTED) and source not in owners:
                    windows.setdefault(source, {})[start] = records
        for source, counts in windows.items():
            text = f"producer {source} has sent no event, but {sum(counts.values())} of its records are stored"
            yield from self._problem(Kind.UNTOLD, PRODUCERS, text, frozenset(counts))
