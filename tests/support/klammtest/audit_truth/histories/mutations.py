"""Planted bugs in the production code, at least one for each numbered rule of docs/audit.md, and for what the tiers'
own modules say of counting. Random histories must find each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.comparison import compare, rules
from klamm.plugins.audit.comparison.tiers import Horizon, TierKey
from klamm.plugins.audit.counting.broker_tier import Follower
from klamm.plugins.audit.counting.ranges import KlammRangeAudit
from klamm.plugins.audit.event import CONSUMER, HADOOP, AuditEvent, EventSource
from klammsim.runner import Patch, planted

from . import campaign, mirrored
from .campaign import in_memory
from .generate import troubles_of
from .world import Broker

MIRRORS: Final = "mirrors"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A planted bug. `rule` is its number in docs/audit.md, or the module whose rule it is. `trouble`: only histories
    with it are run; empty for all, and `MIRRORS` for those of a mirror."""

    rule: str
    what: str
    patches: tuple[Patch, ...]
    trouble: str = ""

    def planted(self) -> AbstractContextManager[None]:
        return planted(self.patches)


def found_at(mutation: Mutation, seed: int, most: int) -> int | None:
    """Returns the number of the first history that finds the mutation, and nothing without it, out of `most` with its
    kind of trouble; None if none does."""
    ran, number = 0, -1
    while ran < most:
        number += 1
        if mutation.trouble not in ("", MIRRORS) and mutation.trouble not in troubles_of(f"{seed} {number}"):
            continue
        ran += 1
        with in_memory():
            with mutation.planted():
                wrong = _wrong(mutation, seed, number)
            if wrong and not _wrong(mutation, seed, number):
                return number
    return None


def _wrong(mutation: Mutation, seed: int, number: int) -> bool:
    try:
        return bool((mirrored if mutation.trouble == MIRRORS else campaign).run(seed, number).wrong)
    except Exception:
        return True


# -- the tiers' modules ------------------------------------------------------------------------------------------

_read_piece: Final = Follower._read_piece
_begin: Final = Follower._begin
_commit: Final = Broker.commit
_source_event: Final = EventSource.event
_start: Final = KlammRangeAudit.start


def _nothing(*_: object, **__: object) -> None:
    return None


def _where_it_stopped(self: Follower, partition: TopicPartition) -> bool:
    self._followed[partition].epoch = None
    return _read_piece(self, partition)


def _commit_unguarded(self: Broker, group: str, offsets: Any, leader_epochs: Any) -> set[TopicPartition]:
    refused = _commit(self, group, offsets, leader_epochs)
    self.world.store |= offsets
    return refused - refused


def _without_topic_id(self: EventSource, *place: Any, **more: Any) -> AuditEvent:
    return _source_event(self, *place, **more | {"topic_id": ""})


def _at_a_commit(self: KlammRangeAudit, partition: TopicPartition, committed: int, **more: Any) -> None:
    _start(self, partition, committed, **more | {"reset": False})


def _readable(self: KlammRangeAudit, partition: TopicPartition, to: int) -> None:
    self._partitions[partition].counted = to


# -- the rules of the comparison ---------------------------------------------------------------------------------

_expected_tiers: Final = rules.expected_tiers
_add_ranges: Final = compare._add_ranges
_demand_begins: Final = rules.demand_begins
_difference: Final = rules._difference
_horizon: Final = rules.horizon
_of: Final = rules.Demand._of


def _groups_are_one(event: AuditEvent) -> TierKey:
    return TierKey(event.tier, "billing" if event.tier == CONSUMER else rules_owner(event))


def rules_owner(event: AuditEvent) -> str:
    return "" if event.tier == "producer" else event.owner


def _all_are_expected(found: Any, named: Any) -> frozenset[TierKey]:
    return frozenset({*found, *named})


def _lakes_are_not(found: Any, named: Any) -> frozenset[TierKey]:
    return frozenset(tier for tier in _expected_tiers(found, named) if tier.tier != HADOOP)


def _lakes_begin_anywhere(counts: Any, place: Any, events: Any, retained: bool) -> None:
    if counts.tier.tier == HADOOP:
        counts.begins[place] = min(event.from_offset for event in events if event.from_offset < event.to_offset)
    else:
        _demand_begins(counts, place, events, retained)


def _nothing_ends(events: Any) -> Any:
    return [event for event in events if not event.ends], []


def _every_lake(events: Any, *_: Any) -> Any:
    return sorted(events, key=lambda event: event.seen_ms), [], []


def _all_live(self: Any, older: Any) -> bool:
    return False


def _the_last(tier: TierKey, versions: Mapping[int, Any]) -> Iterator[AuditEvent]:
    for begin in sorted(versions):
        yield versions[begin][-1]


def _in_order(events: Any) -> list[AuditEvent]:
    return list(events)


def _replays_count(counts: Any, events: Any, window_ms: int, **more: Any) -> None:
    _add_ranges(counts, [replace(event, replay=False) for event in events], window_ms, **more)


def _never_short(mine: Mapping[str, int], expected: Mapping[str, int]) -> Any:
    return _difference(mine, expected)._replace(short=0)


def _no_bounds(self: Any, tiles: Any, place: Any, held: Mapping[int, int]) -> Any:
    return _of(self, tiles, place, held)._replace(part={}, late={})


def _no_problem(*_: object, **__: object) -> Iterator[Any]:
    return iter(())


def _read_once(events: Any) -> Any:
    return list(events), None


def _any_horizon(*given: Any) -> Horizon:
    return _horizon(*given)._replace(limit_ms=math.inf, held=frozenset())


def _any_window(windows: Any, window_ms: int, horizon: Horizon) -> int | None:
    ends = [w.start_ms + window_ms for w in windows if w.start_ms >= 0]
    return max((end for end in ends if end <= horizon.limit_ms), default=None)


def _always(*_: object, **__: object) -> bool:
    return True


def _never(*_: object, **__: object) -> bool:
    return False


def _one(rule: str, what: str, owner: object, name: str, new: Callable[..., Any], trouble: str = "") -> Mutation:
    return Mutation(rule, what, ((owner, name, new),), trouble)


def _no_topic_ids(*_: object) -> set[str]:
    return set()


def _uncut(events: Iterable[AuditEvent]) -> tuple[list[AuditEvent], list[object]]:
    return [event for event in events if not event.cut], []


def _no_records(*_: object) -> int:
    return 0


def _goes_on(self: Follower, *arguments: Any) -> bool:
    _begin(self, *arguments)
    return True


MUTATIONS: Final = (
    _one("R1", "all groups are one owner", rules, "tier_of", _groups_are_one, "latest groups"),
    _one("R2", "a group that nobody expects holds the watermark", rules, "expected_tiers", _all_are_expected,
         "latest groups"),
    _one("R2", "a lake that lacks records does not hold the watermark", rules, "expected_tiers", _lakes_are_not),
    _one("R3", "a group must have what was there before it began", rules, "demand_begins", _nothing, "latest groups"),
    _one("R3", "a group does not tell where it begins", KlammRangeAudit, "begin", _nothing, "latest groups"),
    _one("R4", "a lake begins where its first load does", rules, "demand_begins", _lakes_begin_anywhere, "lost events"),
    _one("R5", "a group that was deleted is compared on", rules, "without_ended", _nothing_ends, "ended groups"),
    _one("R6", "the lakes of a sink count as one", rules, "newest_lake", _every_lake, "lakes"),
    _one("R6", "a lake that was moved goes on counting", rules._Lake, "replaces", _all_live, "lakes"),
    _one("R7", "no producer is ever killed", rules, "is_killed", _never, "killed producers"),
    _one("R8", "the last event of a key counts", rules, "chosen", _the_last, "suspended members"),
    _one("R8", "a range counts whose commit was refused", rules, "_not_committed", _never, "latest groups"),
    _one("R8", "a group does not tell that it begins without a commit", KlammRangeAudit, "start", _at_a_commit,
         "latest groups"),
    _one("R9", "loads that were removed count on", rules, "current_loads", _in_order, "lakes"),
    _one("R10", "records that are read again count again", compare, "_add_ranges", _replays_count, "seeking groups"),
    _one("R11", "ranges behind a cut count on", rules, "not_cut", _in_order, "unclean leaders"),
    _one("R11", "a cut is not told", KlammRangeAudit, "cut", _nothing, "unclean leaders"),
    _one("R12", "events name no topic id", EventSource, "event", _without_topic_id, "created again"),
    _one("R13", "records that the broker lacks are not missing", rules, "_difference", _never_short,
         "lost records"),
    _one("R13", "what a reader has not got yet is missing", rules.Demand, "_of", _no_bounds),
    _one("R14", "a gap is not found", rules.Problems, "_gap", _no_problem, "lost events"),
    Mutation("R15", "a group that is set back is not found", (
        (rules.Problems, "_given_again", _no_problem), (rules, "read_by_group", _read_once)), "set-back groups"),
    _one("R16", "what could not be counted is not lossy", KlammRangeAudit, "uncountable", _readable, "retention"),
    _one("R16", "what a deleted topic held and nobody counted is missing", rules.Problems, "_deleted", _no_problem,
         "created again"),
    _one("R17", "nobody looks where the logs end", rules, "is_behind", _never),
    _one("R18", "a killed producer's last counts are not doubted", rules.Problems, "_killed", _no_problem,
         "killed producers"),
    _one("R18", "a hole in a producer's events is not doubted", rules.Problems, "_holes", _no_problem, "lost events"),
    _one("R18", "records of a producer without an event are not doubted", rules.Problems, "_untold", _no_problem,
         "failing audit topic"),
    _one("R19", "a settlement closes every problem", rules, "closes", _always, "lakes"),
    _one("R19", "a settlement covers nothing", compare.Settlement, "covers", _never, "killed producers"),
    _one("R20", "the watermark passes windows that are not complete", rules, "watermark", _any_window),
    _one("R21", "the watermark waits for nobody", rules, "horizon", _any_horizon),
    _one("R22", "no window is left out", rules, "left_out_ms", _nothing, "retention of the audit"),
    _one("R23", "the gate opens for any count", rules, "cell_passes", _always),
    _one("R24", "what a mirror will never copy is late", rules, "not_mirrored", _no_topic_ids, MIRRORS),
    _one("R25", "what a mirror has lost counts on", rules, "without_cuts", _uncut, MIRRORS),
    _one("R25", "what a mirror has lost is not demanded of it", rules.Demand, "_lost", _no_records, MIRRORS),
    _one("R25", "a mirror's tier does not tell what was cut", KlammRangeAudit, "lost", _nothing, MIRRORS),
    _one("R25", "more is counted before a cut is committed", Follower, "_begin", _goes_on, MIRRORS),
    _one("broker_tier", "a leader that leads again continues where it stopped", Follower, "_read_piece",
         _where_it_stopped, "leaders"),
    _one("broker_tier", "a leader commits below what the next one has passed", Broker, "commit", _commit_unguarded,
         "cut-off leaders"),
)  # fmt: skip
