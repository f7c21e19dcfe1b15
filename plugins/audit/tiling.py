"""From the events of the audit topic to what each tier has counted: the last event of a key, and whether ranges tile.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from klamm.core.seams.audit import NO_WINDOW
from klamm.plugins.audit.event import PRODUCER, AuditEvent, EventKey


class Kind(StrEnum):
    """What can be wrong with a tier's events; each makes its counts unknown."""

    GAP = "gap"
    OVERLAP = "overlap"
    KILLED = "killed"
    LOSSY = "lossy"
    ABSENT = "absent"
    UNREADABLE = "unreadable"


class TierKey(NamedTuple):
    """A column of the comparison. The producers of a topic are one tier, with the owner ""."""

    tier: str
    owner: str = ""

    def __str__(self) -> str:
        return f"{self.tier}/{self.owner}" if self.owner and self.tier != "broker" else self.tier


class Problem(NamedTuple):
    kind: Kind
    topic: str
    tier: TierKey | None
    text: str


@dataclass(slots=True)
class Tally:
    """Records of one window. For producers `records` are the acknowledged."""

    records: int = 0
    size: int = 0
    attempted: int = 0


@dataclass
class TierCounts:
    """What one tier counted of one topic. `ends`: one past the last offset covered, by partition. `live` owners are
    producers that go on."""

    tier: TierKey
    windows: dict[int, Tally] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    live: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    replayed: int = 0

    def add(self, event: AuditEvent, window_ms: int) -> None:
        for start, records, size, attempted, _ in event.windows:
            wider = start - start % window_ms if start >= 0 else NO_WINDOW
            tally = self.windows.setdefault(wider, Tally())
            tally.records += records
            tally.size += size
            tally.attempted += attempted


def last_of_each(events: Iterable[AuditEvent]) -> dict[EventKey, AuditEvent]:
    """For one key the last event wins: the order is that of the audit topic, where a key has one partition."""
    return {event.key: event for event in events}


def tier_counts(
    topic: str, events: Iterable[AuditEvent], window_ms: int, now_ms: int, patience: int = 3
) -> dict[TierKey, TierCounts]:
    """The tiers of one topic. A producer that was silent for `patience` of its intervals, without a last word, counts
    as killed. Every window length among the events must divide `window_ms`."""
    ranges: dict[tuple[TierKey, str, int | None], list[AuditEvent]] = {}
    found: dict[TierKey, TierCounts] = {}
    for event in last_of_each(events).values():
        tier = TierKey(event.tier, "" if event.tier == PRODUCER else event.owner)
        counts = found.setdefault(tier, TierCounts(tier))
        if event.replay:
            counts.replayed += sum(window.records for window in event.windows)
            continue
        counts.add(event, window_ms)
        if event.lossy:
            where = f"partition {event.partition} [{event.from_offset}, {event.to_offset})"
            counts.problems.append(Problem(Kind.LOSSY, topic, tier, f"{where}: not every record could be counted"))
        ranges.setdefault((tier, event.owner, event.partition), []).append(event)
    for (tier, owner, partition), tiles in ranges.items():
        tiles.sort(key=lambda event: event.from_offset)
        counts = found[tier]
        if partition is None:
            counts.problems += _check_producer(topic, tier, owner, tiles)
            _check_life(topic, counts, tiles[-1], now_ms, patience)
        else:
            counts.problems += check_tiles(topic, tier, partition, tiles)
            counts.ends[partition] = tiles[-1].to_offset
    return found


def check_tiles(topic: str, tier: TierKey, partition: int, tiles: Sequence[AuditEvent]) -> list[Problem]:
    """Gaps and overlaps between neighbours; `tiles` are sorted by `from`."""
    problems = []
    for left, right in pairwise(tiles):
        if left.to_offset < right.from_offset:
            text = f"partition {partition}: nothing counted in offsets [{left.to_offset}, {right.from_offset})"
            problems.append(Problem(Kind.GAP, topic, tier, text))
        elif left.to_offset > right.from_offset:
            end = min(left.to_offset, right.to_offset)
            text = f"partition {partition}: offsets [{right.from_offset}, {end}) are counted twice"
            problems.append(Problem(Kind.OVERLAP, topic, tier, text))
    return problems


def _check_producer(topic: str, tier: TierKey, owner: str, tiles: Sequence[AuditEvent]) -> list[Problem]:
    """A producer's events are numbered from 0 without a hole."""
    there, told = len(tiles), tiles[-1].from_offset + 1
    if there == told:
        return []
    first = next(number for number, event in enumerate(tiles) if event.from_offset != number)
    text = f"producer {owner}: {told - there} of its {told} events are not there, the first is {first}"
    return [Problem(Kind.GAP, topic, tier, text)]


def _check_life(topic: str, counts: TierCounts, last: AuditEvent, now_ms: int, patience: int) -> None:
    silent_ms = now_ms - last.time_ms
    if last.final:
        return
    if silent_ms <= patience * last.interval_ms:
        counts.live.append(last.owner)
        return
    text = (
        f"producer {last.owner} (application {last.application} on {last.host}) was killed or cut off: silent for "
        f"{silent_ms // 1000} s, without its last counts"
    )
    counts.problems.append(Problem(Kind.KILLED, topic, counts.tier, text))
