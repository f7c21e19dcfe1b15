"""Finds what cannot be correct in a history, given what a reader and each replica hold at its end.

Each check is a function from a part of a partition's history to descriptions; `_CHECKS` names the kinds of anomaly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from klamm.core.records.partition import TopicPartition

from .events import Commit, History, Leadership, Outcome, Ownership, PartitionHistory, Poll, Send
from .replicas import ReplicaLog

Row = tuple[int, str | int]
"""An offset and the value stored there."""


class Anomaly(NamedTuple):
    kind: str
    partition: TopicPartition
    detail: str


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


@dataclass
class _Evidence:
    """A partition's history beside what is stored, with the look-ups that several checks need."""

    events: PartitionHistory
    stored: Sequence[Row]
    replicas: Sequence[ReplicaLog]
    value_at: dict[int, str | int] = field(init=False)
    offsets_of: dict[str | int, int] = field(init=False)
    acknowledged: list[Send] = field(init=False)

    def __post_init__(self) -> None:
        self.value_at = dict(self.stored)
        self.offsets_of = {value: offset for offset, value in self.stored}
        self.acknowledged = [s for s in self.events.sends if s.outcome is Outcome.OK]


def check(
    history: History,
    read_back: Mapping[TopicPartition, Sequence[Row]],
    replicas: Mapping[TopicPartition, Sequence[ReplicaLog]] | None = None,
) -> Verdict:
    """Checks every partition's history against what is stored.

    `read_back[partition]` is the whole partition, [(offset, value), …], read by one reader at the end; `replicas` are
    all of its replicas, after the cluster has healed: each of them must have every acknowledged record.
    """
    found: list[Anomaly] = []
    acknowledged = unknown = 0
    copies = replicas or {}
    for partition in sorted(set(history.partitions) | set(read_back)):
        evidence = _Evidence(history.partitions[partition], read_back.get(partition, []), copies.get(partition, []))
        acknowledged += len(evidence.acknowledged)
        unknown += sum(1 for s in evidence.events.sends if s.outcome is Outcome.UNKNOWN)
        for kind, details in _CHECKS.items():
            found += [Anomaly(kind, partition, detail) for detail in details(evidence)]
    return Verdict(acknowledged, unknown, found)


# -- what was sent ---------------------------------------------------------------------------------------------------


def _lost(evidence: _Evidence) -> Iterator[str]:
    for s in evidence.acknowledged:
        if s.value not in evidence.offsets_of:
            yield f"{s.producer}: acknowledged at {s.offset}, not stored: {s.value!r} ({s.start:.3f} to {s.end:.3f})"


def _duplicated(evidence: _Evidence) -> Iterator[str]:
    sent = Counter(s.value for s in evidence.events.sends)
    repeated = {s.value for s in evidence.events.sends if not s.idempotent}
    for value, n in Counter(value for _, value in evidence.stored).items():
        if 0 < sent[value] < n and value not in repeated:
            yield f"sent {sent[value]} times, stored {n} times: {value!r}"


def _phantom(evidence: _Evidence) -> Iterator[str]:
    outcomes: dict[str | int, set[Outcome]] = defaultdict(set)
    for s in evidence.events.sends:
        outcomes[s.value].add(s.outcome)
    for value in evidence.offsets_of:
        if outcomes.get(value, {Outcome.FAIL}) == {Outcome.FAIL}:
            yield f"stored, never sent or refused: {value!r}"


def _reordered(evidence: _Evidence) -> Iterator[str]:
    """Records of one producer that are not stored in the order in which it sent them, acknowledged or unknown."""
    order = sorted((s for s in evidence.events.sends if s.idempotent), key=lambda s: s.start)  # equal starts: as listed
    rank = {s.value: (s.producer, i) for i, s in enumerate(order)}
    last: dict[str, int] = {}
    for offset, value in evidence.stored:
        producer, position = rank.get(value, ("", -1))
        if position < 0:
            continue
        if position < last.get(producer, -1):
            yield f"{value!r} at {offset} stands after a record that {producer} sent later"
        last[producer] = max(position, last.get(producer, -1))


def _acknowledged_elsewhere(evidence: _Evidence) -> Iterator[str]:
    """Acknowledged records that are stored at another offset, and offsets that were read twice."""
    for offset, n in Counter(offset for offset, _ in evidence.stored).items():
        if n > 1:
            yield f"offset {offset} read twice"
    places = defaultdict(set)
    for offset, value in evidence.stored:
        places[value].add(offset)
    for s in evidence.acknowledged:
        if s.offset >= 0 and s.value in places and s.offset not in places[s.value]:
            there = evidence.value_at.get(s.offset)
            yield f"acknowledged {s.value!r} at {s.offset}, stored at {min(places[s.value])}; stored there: {there!r}"


def _real_time(evidence: _Evidence) -> Iterator[str]:
    """A record that was acknowledged before another was sent has the lower offset, whoever sent them."""
    ended = sorted((s for s in evidence.acknowledged if s.offset >= 0), key=lambda s: s.end)
    i, highest = 0, None
    for later in sorted(evidence.events.sends, key=lambda s: s.start):
        while i < len(ended) and ended[i].end < later.start:
            if highest is None or ended[i].offset > highest.offset:
                highest = ended[i]
            i += 1
        offset = later.offset if later.outcome is Outcome.OK else evidence.offsets_of.get(later.value, -1)
        if highest is not None and 0 <= offset <= highest.offset and highest.value != later.value:
            yield (
                f"{highest.value!r} was acknowledged at {highest.offset} (by {highest.end:.3f}) before {later.value!r} "
                f"was sent (at {later.start:.3f}), which is at {offset}"
            )


# -- what was received -----------------------------------------------------------------------------------------------


def _by_consumer(polls: Iterable[Poll]) -> dict[str, list[Poll]]:
    found = defaultdict(list)
    for poll in polls:
        found[poll.consumer].append(poll)
    return found


def _polled_otherwise(evidence: _Evidence) -> Iterator[str]:
    for p in evidence.events.polls:
        if p.offset in evidence.value_at and evidence.value_at[p.offset] != p.value:
            yield f"{p.consumer} polled {p.value!r} at {p.offset}, stored there: {evidence.value_at[p.offset]!r}"


def _vanished(evidence: _Evidence) -> Iterator[str]:
    for p in evidence.events.polls:
        if p.offset not in evidence.value_at:
            yield f"{p.consumer} polled {p.value!r} at {p.offset}, nothing is stored there"


def _skipped(evidence: _Evidence) -> Iterator[str]:
    """Stored records that a consumer passed over."""
    offsets = sorted(evidence.value_at)
    for consumer, polls in _by_consumer(evidence.events.polls).items():
        for before, after in pairwise(polls):
            for offset in offsets[bisect_right(offsets, before.offset) : bisect_right(offsets, after.offset - 1)]:
                yield f"{consumer} did not receive offset {offset}: it received {before.offset}, then {after.offset}"


def _consumer_back(evidence: _Evidence) -> Iterator[str]:
    for consumer, polls in _by_consumer(evidence.events.polls).items():
        for before, after in pairwise(polls):
            if after.offset <= before.offset:
                yield f"{consumer} received offset {after.offset} after {before.offset}"


def _falling_commits(evidence: _Evidence) -> Iterator[str]:
    last: dict[str, Commit] = {}
    for commit in evidence.events.commits:
        if commit.outcome is not Outcome.OK:
            continue
        before = last.get(commit.group, commit)
        if commit.offset < before.offset:
            yield f"group {commit.group} committed {commit.offset} after {before.offset}"
        last[commit.group] = commit


# -- who led, who owned, and how far readers may read ----------------------------------------------------------------


def _two_owners(evidence: _Evidence) -> Iterator[str]:
    ordered: list[Ownership] = sorted(evidence.events.ownerships, key=lambda o: o.start)
    for i, first in enumerate(ordered):
        for second in ordered[i + 1 :]:
            if second.start >= first.end:
                break
            if second.member != first.member:
                yield f"{first.member} and {second.member} both owned it at {second.start:.3f}"


def _two_leaders(evidence: _Evidence) -> Iterator[str]:
    leaders: dict[int, set[Leadership]] = defaultdict(set)
    for leadership in evidence.events.leaderships:
        if leadership.broker >= 0:
            leaders[leadership.epoch].add(leadership)
    for epoch, said in sorted(leaders.items()):
        if len({one.broker for one in said}) > 1:
            yield f"epoch {epoch}: " + ", ".join(
                f"{one.observer or 'someone'} saw {one.broker} lead" for one in sorted(said)
            )


def _watermark_back(evidence: _Evidence) -> Iterator[str]:
    """An observer that keeps leader epochs ignores answers of an earlier epoch; in the others watermarks never fall.
    Another observer may still see an older watermark at a deposed leader.
    """
    newest: dict[str, tuple[int, int]] = {}
    for w in evidence.events.watermarks:
        epoch, offset = newest.get(w.observer, (-1, -1))
        if w.leader_epoch < epoch:
            continue
        if w.offset < offset:
            yield f"{w.observer}: fell from {offset} (epoch {epoch}) to {w.offset} (epoch {w.leader_epoch})"
        newest[w.observer] = (w.leader_epoch, max(offset, w.offset))


def _stale(evidence: _Evidence) -> Iterator[str]:
    """A watermark that was asked for after a record was acknowledged, in a later leader epoch than the record's, covers
    the record (KIP-207). In the record's own epoch that holds only if there is no later one: a retry may have been
    acknowledged by the next leader, while the deposed one still answers. The epoch is that of the stored batch.
    """
    if not evidence.replicas:
        return
    batches = evidence.replicas[0].batches
    bases = [batch.base for batch in batches]
    ended = sorted((s for s in evidence.acknowledged if s.offset >= 0), key=lambda s: s.end)
    epochs = {one.epoch for one in evidence.events.leaderships} | {w.leader_epoch for w in evidence.events.watermarks}
    last = max(epochs, default=-1)
    i, highest = 0, dict[int, Send]()
    for w in sorted(evidence.events.watermarks, key=lambda w: w.start):
        while i < len(ended) and ended[i].end < w.start:
            place = bisect_right(bases, ended[i].offset) - 1
            epoch = batches[place].leader_epoch if place >= 0 else 0
            if epoch not in highest or highest[epoch].offset < ended[i].offset:
                highest[epoch] = ended[i]
            i += 1
        for epoch, s in highest.items():
            covers = epoch < w.leader_epoch or epoch == w.leader_epoch == last
            if covers and w.offset <= s.offset:
                yield (
                    f"{w.observer} was told {w.offset} in epoch {w.leader_epoch} (asked at {w.start:.3f}), after "
                    f"{s.value!r} of epoch {epoch} was acknowledged at {s.offset} (by {s.end:.3f})"
                )
                break


# -- what the replicas hold ------------------------------------------------------------------------------------------


def _missing(evidence: _Evidence) -> Iterator[str]:
    for replica in evidence.replicas:
        held = dict(replica.rows)
        for s in evidence.acknowledged:
            if s.offset >= max(replica.start, 0) and held.get(s.offset) != s.value:
                there = held.get(s.offset)
                yield f"broker {replica.broker} has {there!r} at {s.offset}, where {s.value!r} was acknowledged"


def _inconsistent(evidence: _Evidence) -> Iterator[str]:
    """Batches below the highest watermark anyone saw that are not byte-equal on all replicas."""
    shown = [w.offset for w in evidence.events.watermarks] + [p.offset + 1 for p in evidence.events.polls]
    limit = max(
        shown + [s.offset + 1 for s in evidence.acknowledged] + [offset + 1 for offset, _ in evidence.stored], default=0
    )
    for first, second in pairwise(evidence.replicas):
        start = max(first.start, second.start)
        here, there = ({b.base: b for b in r.batches if start <= b.base < limit} for r in (first, second))
        for base in sorted(here.keys() | there.keys()):
            if base not in here or base not in there:
                without = second if base in here else first
                yield f"broker {without.broker} has no batch at {base}, below the watermark {limit}"
            elif here[base].digest != there[base].digest:
                yield (
                    f"the batch at {base} differs: on broker {first.broker} up to {here[base].next} of epoch "
                    f"{here[base].leader_epoch}, on broker {second.broker} up to {there[base].next} of epoch "
                    f"{there[base].leader_epoch}"
                )


def _broken_chain(evidence: _Evidence) -> Iterator[str]:
    """Holes and overlaps in a replica's log, and leader epochs that fall along it. For topics without compaction."""
    for replica in evidence.replicas:
        for before, after in pairwise(replica.batches):
            if after.base != before.next or after.leader_epoch < before.leader_epoch:
                yield (
                    f"broker {replica.broker}: the batch at {before.base} ends at {before.next} in epoch "
                    f"{before.leader_epoch}, the next is at {after.base} in epoch {after.leader_epoch}"
                )


_CHECKS = {
    "lost": _lost,
    "duplicated": _duplicated,
    "phantom": _phantom,
    "reordered": _reordered,
    "offset": _acknowledged_elsewhere,
    "real-time": _real_time,
    "polled": _polled_otherwise,
    "vanished": _vanished,
    "skipped": _skipped,
    "consumer-back": _consumer_back,
    "commit-back": _falling_commits,
    "two-owners": _two_owners,
    "two-leaders": _two_leaders,
    "watermark-back": _watermark_back,
    "stale": _stale,
    "missing": _missing,
    "inconsistent": _inconsistent,
    "broken-chain": _broken_chain,
}
