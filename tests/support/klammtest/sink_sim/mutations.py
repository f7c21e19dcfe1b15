"""Planted bugs, one for each rule of `klamm.hadoop.spark.attempt`: random schedules must find each.

A mutation replaces methods of the production code while it is planted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from klamm.hadoop.spark import attempt
from klamm.hadoop.spark.attempt import (
    Append,
    Attempt,
    AttemptEvent,
    AttemptState,
    Claim,
    FoundRows,
    RegisterBatch,
    Scan,
    Send,
)
from klamm.hadoop.spark.claims import TaskIdentity, TaskProducer

from .actor import Actor

Patch = tuple[object, str, object]
Machine = Attempt[Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A planted bug. `rule` is its number in `attempt`."""

    rule: int
    what: str
    patches: tuple[Patch, ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, replacement in self.patches:
                stack.enter_context(patch.object(owner, name, replacement))
            yield


_appended = Attempt.appended
_go = Attempt._go
_producer = TaskIdentity.producer
_do = Actor._do


def _random_ids(self: TaskIdentity, topic: str, topic_id: Any) -> TaskProducer:
    """Each attempt has an id of its own, as `init_producer_id` returns them."""
    found = _producer(self, topic, topic_id)
    return replace(found, producer_id=found.producer_id ^ (next(_NUMBERS) << 20))


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


_NUMBERS: Final = _numbers()


def _one_epoch(self: TaskIdentity, topic: str, topic_id: Any) -> TaskProducer:
    return replace(_producer(self, topic, topic_id), epoch=0)


def _takes_each_claim_for_its_own(self: Machine, stored: Claim) -> None:
    if self.state is AttemptState.CLAIMING:
        stored = replace(stored, attempt=self._attempt)
    _appended(self, stored)


def _believes_the_broker(self: Actor, effect: Any) -> Iterator[None]:
    """The claim is the record at the offset that the broker answers."""
    if isinstance(effect, Append):
        effect = replace(effect, since=self.cluster.claims.end)
    yield from _do(self, effect)


def _ends_after_the_register(self: Actor, effect: Any) -> Iterator[None]:
    """The ends that are stored are read when they are stored."""
    if isinstance(effect, RegisterBatch):
        ends = {number: log.high_watermark for number, log in enumerate(self.cluster.topic)}
        effect = RegisterBatch(replace(effect.entry, starts=ends))
    yield from _do(self, effect)


def _does_not_search(self: Machine, stored: Claim) -> None:
    _appended(self, stored)
    if isinstance(self.effect, Scan):
        self._go(AttemptEvent.SCANNED, None)


def _searches_only_after_others(self: Machine, stored: Claim) -> None:
    """Although brokers may have forgotten the claim of the run before."""
    _appended(self, stored)
    if isinstance(self.effect, Scan) and self._is_first:
        self._go(AttemptEvent.SCANNED, None)


def _begins_at_zero(self: Any, found: FoundRows) -> bool:
    changed: bool = _scanned(self, found)
    self.next_sequence = 0
    return changed


_scanned = attempt._Lane.scanned


def _sends_at_once(self: Machine) -> bool:
    return True


def _reads_nothing_back(self: Machine, event: AttemptEvent, effect: Any) -> None:
    if isinstance(effect, Send):
        effect = Send(effect.rows, False)
    _go(self, event, effect)


def _tells_nobody(self: Machine, stored: Claim) -> None:
    """The attempt that adopts a claim does not append sequence 1."""
    _appended(self, stored)
    if self.state is AttemptState.JOINING:
        self._go(AttemptEvent.JOINED, Scan(0))


def _is_always_alone(self: Machine, stored: Claim) -> None:
    if self.state is AttemptState.CLOSING:
        stored = replace(stored, attempt=self._attempt)
    _appended(self, stored)


def _does_not_wait(self: Machine, stored: Any, announced: Any) -> None:
    _tasks(self, frozenset(), frozenset())


_tasks = Attempt.tasks


def _forgets_what_was_acknowledged(self: Machine) -> None:
    for partition, (_, chunks) in self._outstanding.items():
        self._lanes[partition].pending += chunks
    self._outstanding = {}


def _ends_when_it_is_refused(self: Machine) -> None:
    """Takes rows whose sequence numbers were used for stored ones."""
    self._put_back()
    for lane in self._lanes.values():
        lane.pending = []
    self._go(AttemptEvent.SENT, None)
    self._proceed()


def _property(replacement: Callable[[Any], bool]) -> property:
    return property(replacement)


MUTATIONS: Final[dict[str, Mutation]] = {
    "random-ids": Mutation(1, "each attempt has a producer id of its own", ((TaskIdentity, "producer", _random_ids),)),
    "one-epoch": Mutation(7, "all micro-batches have one epoch", ((TaskIdentity, "producer", _one_epoch),)),
    "claims-nothing": Mutation(
        2, "each attempt takes the stored claim for its own", ((Attempt, "appended", _takes_each_claim_for_its_own),)
    ),
    "broker-decides": Mutation(
        2,
        "the claim is the one that the broker answers, not the first in the log",
        ((Actor, "_do", _believes_the_broker),),
    ),
    "late-ends": Mutation(3, "the ends are read after the register", ((Actor, "_do", _ends_after_the_register),)),
    "no-search": Mutation(4, "nobody searches the log before it writes", ((Attempt, "appended", _does_not_search),)),
    "no-search-by-a-new-run": Mutation(
        4,
        "an attempt of a new run that makes the claim does not search",
        ((Attempt, "appended", _searches_only_after_others),),
    ),
    "from-zero": Mutation(4, "sequence numbers begin at 0 again", ((attempt._Lane, "scanned", _begins_at_zero),)),
    "at-once": Mutation(
        4, "rows are sent before the stored ones were found", ((Attempt, "_all_found", _property(_sends_at_once)),)
    ),
    "acknowledged-again": Mutation(
        4, "acknowledged rows are sent again after a refusal", ((Attempt, "_put_back", _forgets_what_was_acknowledged),)
    ),
    "refused-is-stored": Mutation(
        4,
        "rows whose sequence numbers were used count as stored",
        ((Attempt, "batch_refused", _ends_when_it_is_refused),),
    ),
    "no-read-back": Mutation(5, "nothing is read back", ((Attempt, "_go", _reads_nothing_back),)),
    "silent-loser": Mutation(
        5, "an attempt that adopts a claim does not say so", ((Attempt, "appended", _tells_nobody),)
    ),
    "always-alone": Mutation(
        5, "the attempt that made the claim does not compare what it sent", ((Attempt, "appended", _is_always_alone),)
    ),
    "no-waiting": Mutation(
        6, "rows are sent before the other tasks found theirs", ((Attempt, "tasks", _does_not_wait),)
    ),
}
