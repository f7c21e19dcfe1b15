"""The history checker: records what clients did and received, and finds what cannot be correct.

Recorders append events as they happen (start, end, outcome); `check` reads the whole history afterwards. A time-out is
*unknown*, never a failure: an unknown record may be stored or not, but at most once with an idempotent producer.
Histories are compared per partition and values are small ints or strings, so that a million records need no million
objects.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from klamm.core.records.partition import TopicPartition


class Outcome(Enum):
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Send(NamedTuple):
    """`offset` is set when the outcome is OK; `producer` names the sender whose order counts."""

    producer: str
    value: str | int
    outcome: Outcome
    offset: int = -1


class Poll(NamedTuple):
    """A record as a consumer received it."""

    consumer: str
    offset: int
    value: str | int


class Commit(NamedTuple):
    group: str
    offset: int
    outcome: Outcome
    generation: int = -1


class Ownership(NamedTuple):
    """A member owned the partition from `start` to `end` (seconds of one clock) in a generation."""

    member: str
    generation: int
    start: float
    end: float


class Leadership(NamedTuple):
    broker: int
    epoch: int


@dataclass
class PartitionHistory:
    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    ownerships: list[Ownership] = field(default_factory=list)
    leaderships: list[Leadership] = field(default_factory=list)
    high_watermarks: list[int] = field(default_factory=list)


class Anomaly(NamedTuple):
    kind: str
    partition: TopicPartition
    detail: str


class History:
    """Thread-safe recorder; `read_back` is the whole partition, read from the start by one reader at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.partitions: dict[TopicPartition, PartitionHistory] = defaultdict(PartitionHistory)

    def send(self, partition: TopicPartition, event: Send) -> None:
        with self._lock:
            self.partitions[partition].sends.append(event)

    def polled(self, partition: TopicPartition, events: Iterable[Poll]) -> None:
        with self._lock:
            self.partitions[partition].polls.extend(events)

    def commit(self, partition: TopicPartition, event: Commit) -> None:
        with self._lock:
            self.partitions[partition].commits.append(event)

    def owned(self, partition: TopicPartition, event: Ownership) -> None:
        with self._lock:
            self.partitions[partition].ownerships.append(event)

    def led(self, partition: TopicPartition, event: Leadership) -> None:
        with self._lock:
            self.partitions[partition].leaderships.append(event)

    def high_watermark(self, partition: TopicPartition, offset: int) -> None:
        with self._lock:
            self.partitions[partition].high_watermarks.append(offset)


@dataclass(frozen=True)
class Verdict:
    """The result that the campaign line prints. `anomalies` holds every kind; the counts are those of the three kinds
    that have a column.
    """

    acknowledged: int
    unknown: int
    anomalies: Sequence[Anomaly]

    def count(self, kind: str) -> int:
        return sum(1 for a in self.anomalies if a.kind == kind)

    def line(self, name: str, injected: int) -> str:
        return (
            f"campaign {name} injected {injected} acknowledged {self.acknowledged} lost {self.count('lost')} "
            f"duplicated {self.count('duplicated')} reordered {self.count('reordered')}"
        )


def check(history: History, read_back: dict[TopicPartition, list[tuple[int, str | int]]]) -> Verdict:
    """Checks every partition's history against what is stored: `read_back[partition]` is [(offset, value), …]."""
    found: list[Anomaly] = []
    acknowledged = unknown = 0
    for partition in sorted(set(history.partitions) | set(read_back)):
        events, stored = history.partitions[partition], read_back.get(partition, [])
        acknowledged += sum(1 for s in events.sends if s.outcome is Outcome.OK)
        unknown += sum(1 for s in events.sends if s.outcome is Outcome.UNKNOWN)
        for kind, details in (
            *_check_values(events.sends, stored),
            ("reordered", _reordered(events.sends, stored)),
            ("offset", _offsets(events.sends, events.polls, stored)),
            ("skipped", _skipped(events.polls, stored)),
            ("commit-back", _falling_commits(events.commits)),
            ("two-owners", _two_owners(events.ownerships)),
            ("two-leaders", _two_leaders(events.leaderships)),
            ("high-watermark-fell", _falling(events.high_watermarks)),
        ):
            found += [Anomaly(kind, partition, detail) for detail in details]
    return Verdict(acknowledged, unknown, found)


def _check_values(sends: list[Send], stored: list[tuple[int, str | int]]) -> list[tuple[str, list[str]]]:
    there = Counter(value for _, value in stored)
    sent = Counter(s.value for s in sends)
    failed = {s.value for s in sends if s.outcome is Outcome.FAIL}
    lost = [
        f"acknowledged at {s.offset}, not stored: {s.value!r}"
        for s in sends
        if s.outcome is Outcome.OK and not there[s.value]
    ]
    doubled = [f"sent {sent[v]} times, stored {n} times: {v!r}" for v, n in there.items() if 0 < sent[v] < n]
    phantom = [f"stored, never sent or refused: {v!r}" for v in there if not sent[v] or v in failed]
    return [("lost", lost), ("duplicated", doubled), ("phantom", phantom)]


def _reordered(sends: list[Send], stored: list[tuple[int, str | int]]) -> list[str]:
    """Finds records of one producer that are not stored in the order in which it sent them, acknowledged or unknown."""
    rank = {s.value: (s.producer, i) for i, s in enumerate(sends)}
    last: dict[str, int] = {}
    found = []
    for offset, value in stored:
        producer, position = rank.get(value, ("", -1))
        if position < 0:
            continue
        if position < last.get(producer, -1):
            found.append(f"{value!r} at {offset} stands after a record that {producer} sent later")
        last[producer] = max(position, last.get(producer, -1))
    return found


def _offsets(sends: list[Send], polls: list[Poll], stored: list[tuple[int, str | int]]) -> list[str]:
    """Finds offsets with more than one value: acknowledged, polled and stored values must agree."""
    value_at = dict(stored)
    found = [f"offset {o} read twice" for o, n in Counter(o for o, _ in stored).items() if n > 1]
    found += [
        f"acknowledged {s.value!r} at {s.offset}, stored there: {value_at[s.offset]!r}"
        for s in sends
        if s.outcome is Outcome.OK and s.offset in value_at and value_at[s.offset] != s.value
    ]
    found += [
        f"{p.consumer} polled {p.value!r} at {p.offset}, stored there: {value_at.get(p.offset)!r}"
        for p in polls
        if value_at.get(p.offset) != p.value
    ]
    return found


def _skipped(polls: list[Poll], stored: list[tuple[int, str | int]]) -> list[str]:
    """Finds records between the first and the last received one that no consumer received."""
    if not polls:
        return []
    seen = {p.offset for p in polls}
    low, high = min(seen), max(seen)
    return [f"no consumer received offset {o}" for o, _ in stored if low <= o <= high and o not in seen]


def _falling_commits(commits: list[Commit]) -> list[str]:
    last: dict[str, int] = {}
    found = []
    for commit in commits:
        if commit.outcome is not Outcome.OK:
            continue
        if commit.offset < last.get(commit.group, -1):
            found.append(f"group {commit.group} committed {commit.offset} after {last[commit.group]}")
        last[commit.group] = commit.offset
    return found


def _two_owners(ownerships: list[Ownership]) -> list[str]:
    found = []
    ordered = sorted(ownerships, key=lambda o: o.start)
    for i, first in enumerate(ordered):
        for second in ordered[i + 1 :]:
            if second.start >= first.end:
                break
            if second.member != first.member:
                found.append(f"{first.member} and {second.member} both owned it at {second.start:.3f}")
    return found


def _two_leaders(leaderships: list[Leadership]) -> list[str]:
    leaders: dict[int, set[int]] = defaultdict(set)
    for leadership in leaderships:
        leaders[leadership.epoch].add(leadership.broker)
    return [f"epoch {epoch} was led by brokers {sorted(b)}" for epoch, b in leaders.items() if len(b) > 1]


def _falling(high_watermarks: list[int]) -> list[str]:
    pairs = pairwise(high_watermarks)
    return [f"fell from {a} to {b}" for a, b in pairs if b < a]
