"""What is true of a history, computed from the logs and from what the applications did, not from what was counted.

Which counts may be unknown is computed, too: from what happened (`Causes`), by the rules of docs/audit.md. Only there
are events used: the rules name the broker tier's ranges.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from uuid import UUID

from klamm.core.interfaces.audit import NO_WINDOW
from klamm.plugins.audit.counting.broker_tier import GROUP
from klamm.plugins.audit.event import BROKER, CONSUMER, HADOOP, PRODUCER, AuditEvent

from .actors import INTERVAL_S, Group, Lake, Offset, Sender
from .world import LATENESS_MS, WINDOW_MS, Part, World

EVERY: frozenset[int] | None = None
Span = tuple[UUID, int, int, int]
"""Topic id, partition, [from, to)."""


@dataclass
class Causes:
    """What happened that the rules name as a reason for an unknown count."""

    uncounted: list[Span] = field(default_factory=list)
    """Offsets that were deleted, or could not be read, before the broker tier counted them."""
    cut: list[Span] = field(default_factory=list)
    """Offsets that an unclean election has cut off."""


@dataclass
class Known:
    """The applications of a history. `too_late`: windows with records that were sent later than the lateness allows."""

    world: World
    senders: list[Sender] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    lakes: list[Lake] = field(default_factory=list)
    causes: Causes = field(default_factory=Causes)
    too_late: set[int] = field(default_factory=set)
    deleted: dict[tuple[UUID, int], int] = field(default_factory=dict)
    """From where on the records of a topic that was deleted were not counted: nothing is demanded of readers there."""

    def live_lakes(self, sink: str) -> list[Lake]:
        """Returns the lakes that a sink's loads have announced and that have not ended, the newest one last."""
        ended = [lake for lake in self.lakes if lake.retired or self._replaced(lake)]
        lakes = [lake for lake in self.lakes if lake.sink == sink and lake.id and lake not in ended]
        first = {event.lake: n for n, event in reversed(list(enumerate(self.world.audit.events))) if event.lake}
        return sorted((lake for lake in lakes if lake.id in first), key=lambda lake: first[lake.id])

    def _replaced(self, lake: Lake) -> bool:
        """R6: a lake was begun in its directory, and an event of it is stored."""
        others = [event for event in self.world.audit.events if event.lake not in ("", lake.id)]
        if lake.told_directory != lake.layout.base and any(lake.id in event.replaces for event in others):
            return True  # it was moved, a copy of it was loaded, and it was not: it gets another id
        return lake.replaced and any(event.directory == lake.told_directory for event in others)

    def is_forgotten(self, sink: str) -> bool:
        """R6: returns True if the audit does not know that a lake's directory was moved."""
        events = [event for event in self.world.audit.events if event.lake]
        for lake, directory in [each for made in self.lakes if made.sink == sink for each in made.forgotten]:
            last = max((n for n, event in enumerate(events) if event.lake == lake), default=math.inf)
            if last < math.inf and not any(
                n > last and (event.directory == directory or lake in event.replaces) for n, event in enumerate(events)
            ):
                return True
        return False

    def parts(self) -> Iterator[tuple[UUID, Part]]:
        for topic_id, parts in [*self.world.ended, (self.world.topic_id, self.world.parts)]:
            for part in parts:
                yield topic_id, part

    def stored(self) -> dict[int, Counter[str]]:
        """Returns the stored records by window and producer."""
        found: dict[int, Counter[str]] = defaultdict(Counter)
        for _, part in self.parts():
            for row in part.rows:
                found[row.window][row.source] += 1
        return found

    def never_counted(self) -> dict[int, Counter[str]]:
        """Returns by window and producer the records that were deleted with their topic before they were counted: where
        they are more than were acknowledged, nothing shows it (R16)."""
        found: dict[int, Counter[str]] = defaultdict(Counter)
        for topic_id, part in self.parts():
            for row in part.rows[self.demanded_to(topic_id, part) :]:
                found[row.window][row.source] += 1
        return found

    @property
    def named(self) -> set[int]:
        """Returns the windows in which a producer or the broker tier has counted. Records that nobody counted before
        they were deleted are in no report."""
        of = (BROKER, PRODUCER)
        events = [event for event in self.world.audit.events if event.tier in of]
        return {window.start_ms for event in events for window in event.windows}

    def acknowledged(self) -> dict[int, Counter[str]]:
        """Returns the acknowledged records by window and producer, but for a killed producer of which no event and no
        record was ever stored (R18)."""
        events = (*self.world.audit.events, *self.world.audit.deleted)
        known = {event.owner for event in events if event.tier == PRODUCER}
        known |= {window.source for event in events if event.tier == BROKER for window in event.windows}
        known |= {row.source for _, part in self.parts() for row in part.rows}
        found: dict[int, Counter[str]] = defaultdict(Counter)
        for sender in self.senders:
            for window, count in sender.acknowledged.items() if sender.alive or sender.name in known else ():
                found[window][sender.name] += count
        return found

    def told(self) -> dict[int, Counter[str]]:
        """Returns the acknowledged records that the producers' stored events report."""
        last: dict[tuple[str, int], AuditEvent] = {}
        for event in self.world.audit.events:
            if event.tier == PRODUCER:
                last[event.owner, event.from_offset] = event
        found: dict[int, Counter[str]] = defaultdict(Counter)
        for (owner, _), event in last.items():
            for window in event.windows:
                found[window.start_ms][owner] += window.records
        return found

    # -- readers

    def demanded_to(self, topic_id: UUID, part: Part) -> int:
        """R13: readers are compared with what the broker tier counted."""
        counted = self.deleted.get((topic_id, part.number))
        if counted is None:
            return len(part.rows)
        return max([counted, *(event.to_offset for event in self.ranges(topic_id, part.number))])

    def told_begin(self, tier: str, owner: str, lake: str = "") -> dict[tuple[UUID, int], int]:
        """R22: returns where the events of a reader begin that are left in an audit topic that has deleted some."""
        found: dict[tuple[UUID, int], int] = {}
        for event in self.world.audit.events if self.world.audit.retained_ms > -math.inf else ():
            if event.ends and (event.tier, event.owner) == (tier, owner) and event.lake in ("", lake):
                found.clear()
            elif (event.tier, event.owner, event.lake) == (tier, owner, lake) and event.partition is not None:
                key = UUID(event.topic_id), event.partition
                found[key] = min(event.from_offset, found.get(key, event.from_offset))
        return found

    def demanded(self, group: Group) -> dict[int, list[Offset]]:
        """Returns the records that a group must have received, by window (R3). Nothing shows that it began in a topic
        that was replaced before the audit topic took its first event."""
        found: dict[int, list[Offset]] = defaultdict(list)
        begins = group.began | self.told_begin(CONSUMER, group.name)
        begun_ids = {topic_id for topic_id, _ in group.began}
        audit = self.world.audit
        published = (*audit.events, *audit.deleted, *audit.lost)
        told = {event.topic_id for event in published if (event.tier, event.owner) == (CONSUMER, group.name)}
        begun_ids = {topic_id for topic_id in begun_ids if str(topic_id) in told} or begun_ids
        begun = False
        for topic_id, part in self.parts():
            begun = begun or topic_id in begun_ids
            if not begun:
                continue  # it was replaced before the group began
            for offset in range(begins.get((topic_id, part.number), 0), self.demanded_to(topic_id, part)):
                found[part.rows[offset].window].append((topic_id, part.number, offset))
        return found

    def demanded_of(self, lake: Lake) -> dict[int, list[Offset]]:
        """Returns the records that a lake must have (R4)."""
        found: dict[int, list[Offset]] = defaultdict(list)
        begins = self.told_begin(HADOOP, lake.sink, lake.id)
        seen = False
        for topic_id, part in self.parts():
            seen = seen or topic_id == lake.topic_id
            if seen:
                for offset in range(begins.get((topic_id, part.number), 0), self.demanded_to(topic_id, part)):
                    found[part.rows[offset].window].append((topic_id, part.number, offset))
        return found

    # -- which counts may be unknown

    def ranges(
        self, topic_id: UUID, partition: int, owners: Collection[tuple[str, str]] = ((BROKER, GROUP),)
    ) -> list[AuditEvent]:
        """Returns the ranges of a partition, by their beginnings."""
        found = [
            event
            for event in self.world.audit.events
            if (event.tier, event.owner) in owners and event.partition == partition and event.topic_id == str(topic_id)
        ]
        return sorted(found, key=lambda event: event.from_offset)

    def enclosing(self, spans: Iterable[Span], tier: str = BROKER, owner: str = "") -> set[int]:
        """Returns the windows of the ranges in which these offsets lie, the broker tier's and those of an owner, and
        the windows of their records."""
        windows: set[int] = set()
        parts = {(topic_id, part.number): part for topic_id, part in self.parts()}
        for topic_id, number, begin, end in spans:
            for event in self.ranges(topic_id, number, {(BROKER, GROUP), (tier, owner)}):
                if event.from_offset < end and event.to_offset > begin:
                    windows |= {window.start_ms for window in event.windows}
            rows = parts[topic_id, number].rows[begin:end]
            windows |= {row.window for row in rows}
        return windows

    def perhaps_begun(self, name: str) -> set[int]:
        """R22: returns the windows of the topic ids that were replaced before a group's first event that is left, where
        the audit topic has deleted some: it may have begun there."""
        if any(event.ends and (event.tier, event.owner) == (CONSUMER, name) for event in self.world.audit.events):
            return set()  # its events since are all there
        told = {topic_id for topic_id, _ in self.told_begin(CONSUMER, name)}
        former = takewhile(lambda each: each[0] not in told, self.parts())
        return (
            self.enclosing((topic_id, part.number, 0, len(part.rows)) for topic_id, part in former) if told else set()
        )

    def owners(self) -> set[tuple[str, str]]:
        """Returns the groups and sinks that have counted."""
        return {(event.tier, event.owner) for event in self.world.audit.events if event.tier in (CONSUMER, HADOOP)}

    def doubted_at_broker(self) -> set[int]:
        """Returns the windows in which the broker tier's counts may be unknown."""
        windows: set[int] = set()
        every = {row.window for _, part in self.parts() for row in part.rows}
        every |= {window for sender in self.senders for window in sender.sent}
        audit = self.world.audit
        off = [0, *(sender.ahead_ms for sender in self.senders)]
        apart_ms = max(off) - min(off)
        begins: dict[tuple[str, int | None], int] = {}
        for event in audit.events:
            if event.tier == BROKER:
                place = event.topic_id, event.partition
                begins[place] = min(event.from_offset, begins.get(place, event.from_offset))
        # R22: of a leader that was cut off an event may be left, though later offsets' events are deleted
        gone = [e for e in audit.deleted if e.from_offset > begins.get((e.topic_id, e.partition), math.inf)]
        lost = [
            (UUID(event.topic_id), event.partition or 0, event.from_offset, event.to_offset)
            for event in (*audit.lost, *gone)
            if event.tier == BROKER
        ]
        for topic_id, number, begin, end in [*self.causes.uncounted, *self.causes.cut, *lost]:
            ranges = [event for event in self.ranges(topic_id, number) if event.windows]
            before = [event for event in ranges if event.to_offset <= begin][-1:]
            after = [event for event in ranges if event.from_offset >= end][:1]
            touching = [event for event in ranges if event.from_offset < end and event.to_offset > begin]
            sides = [window.start_ms for event in (*before, *after, *touching) for window in event.windows]
            low: float = min(sides) - (0 if after else 2 * LATENESS_MS) if before else NO_WINDOW
            low = min(low, math.inf if after else _behind_since(ranges))
            high = max(sides) if after else max(every, default=0)
            low, high = low - LATENESS_MS - apart_ms, high + LATENESS_MS + WINDOW_MS + apart_ms
            windows |= {window for window in every if low <= window < high or window == NO_WINDOW}
            for reader in self.owners():
                windows |= self.enclosing([(topic_id, number, begin, end)], *reader)
        return windows

    def uncounted_in(self) -> set[int]:
        """Returns the windows of records that the broker tier has not counted, or whose counts the audit topic lost."""
        lost = [event for event in self.world.audit.lost if event.tier == BROKER]
        spans = [(UUID(each.topic_id), each.partition, each.from_offset, each.to_offset) for each in lost]
        parts = {(topic_id, part.number): part for topic_id, part in self.parts()}
        return {
            row.window
            for topic_id, number, begin, end in [*self.causes.uncounted, *spans]
            for row in parts[topic_id, number or 0].rows[begin:end]
        }

    def repeated_in(self) -> set[int]:
        """Returns the windows of producers' events that were lost, and of which an earlier version is stored, because
        its acknowledgement was lost: no number is missing."""
        stored = {(event.owner, event.from_offset) for event in self.world.audit.events if event.tier == PRODUCER}
        lost = [e for e in self.world.audit.lost if e.tier == PRODUCER and (e.owner, e.from_offset) in stored]
        return {window.start_ms for event in lost for window in event.windows}

    def doubted_of_producers(self) -> set[int]:
        """Returns the windows in which a killed producer may have counted (R18)."""
        windows: set[int] = set()
        stored, told = self.stored(), self.told()
        every = stored.keys() | told.keys()
        last: dict[str, AuditEvent] = {}
        for event in self.world.audit.events:
            if event.tier == PRODUCER:
                last[event.owner] = event
        for event in self.world.audit.lost:
            if event.tier == PRODUCER:
                near = LATENESS_MS + 2 * INTERVAL_S * 1000
                first_ms = NO_WINDOW - 1 if event.from_offset == 0 else event.stored_ms - near - WINDOW_MS
                windows |= {w for w in every if w == NO_WINDOW or first_ms < w < event.stored_ms + near}
                windows |= {window.start_ms for window in event.windows}
                windows |= next(sender.sent for sender in self.senders if sender.name == event.owner)
        for sender in self.senders:
            final = last.get(sender.name)
            if sender.alive or (final is not None and final.final):
                continue
            windows |= {w for w in stored if stored[w][sender.name] > told.get(w, Counter())[sender.name]}
            if final is None:
                windows |= sender.sent
            elif not final.quiet:
                near = LATENESS_MS + (PATIENCE + 1) * INTERVAL_S * 1000
                low = final.seen_ms + min(sender.ahead_ms, 0) - near - WINDOW_MS
                high = final.seen_ms + max(sender.ahead_ms, 0) + near
                windows |= {w for w in every if w == NO_WINDOW or low < w < high}
                windows |= sender.sent
        return windows


def _behind_since(ranges: Iterable[AuditEvent]) -> float:
    """R17: returns the earliest time of a record that follows these ranges, by the disorder that the partition had. A
    time after its own event is a sender's mistake."""
    newest, most = -math.inf, 0.0
    for event in ranges:
        starts = [window.start_ms for window in event.windows if window.start_ms != NO_WINDOW]
        if starts:
            newest = max(newest, min(max(starts), event.seen_ms))
            most = max(most, newest - min(starts))
    return newest - most


PATIENCE = 3
