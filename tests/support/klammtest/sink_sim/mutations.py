"""Planted bugs, one for each rule of `klamm.hadoop.spark.attempt`: random schedules must find each.

`rule` is the number there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

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
from klammsim.runner import Mutation

from .actor import Actor

Machine = Attempt[Any]

_appended = Attempt.appended
_go = Attempt._go
_producer = TaskIdentity.producer
_do = Actor._do


def _random_ids(self: TaskIdentity, topic: str, topic_id: Any) -> TaskProducer:
    """Each attempt has an id of its own, as `init_producer_id` returns them."""
    found = _producer(self, topic, topic_id)
    return replace(found, producer_id=found.producer_id ^ (next(_NUMBERS) << 20))


_NUMBERS: Final = itertools.count(1)


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


MUTATIONS: Final = {
    mutation.name: mutation
    for mutation in (
        Mutation("random-ids", "1", "each attempt has a producer id of its own",
                 ((TaskIdentity, "producer", _random_ids),)),
        Mutation("one-epoch", "7", "all micro-batches have one epoch",
                 ((TaskIdentity, "producer", _one_epoch),)),
        Mutation("claims-nothing", "2", "each attempt takes the stored claim for its own",
                 ((Attempt, "appended", _takes_each_claim_for_its_own),)),
        Mutation("broker-decides", "2", "the claim is the one that the broker answers, not the first in the log",
                 ((Actor, "_do", _believes_the_broker),)),
        Mutation("late-ends", "3", "the ends are read after the register",
                 ((Actor, "_do", _ends_after_the_register),)),
        Mutation("no-search", "4", "nobody searches the log before it writes",
                 ((Attempt, "appended", _does_not_search),)),
        Mutation("no-search-by-a-new-run", "4", "an attempt of a new run that makes the claim does not search",
                 ((Attempt, "appended", _searches_only_after_others),)),
        Mutation("from-zero", "4", "sequence numbers begin at 0 again",
                 ((attempt._Lane, "scanned", _begins_at_zero),)),
        Mutation("at-once", "4", "rows are sent before the stored ones were found",
                 ((Attempt, "_all_found", property(_sends_at_once)),)),
        Mutation("acknowledged-again", "4", "acknowledged rows are sent again after a refusal",
                 ((Attempt, "_put_back", _forgets_what_was_acknowledged),)),
        Mutation("refused-is-stored", "4", "rows whose sequence numbers were used count as stored",
                 ((Attempt, "batch_refused", _ends_when_it_is_refused),)),
        Mutation("no-read-back", "5", "nothing is read back",
                 ((Attempt, "_go", _reads_nothing_back),)),
        Mutation("silent-loser", "5", "an attempt that adopts a claim does not say so",
                 ((Attempt, "appended", _tells_nobody),)),
        Mutation("always-alone", "5", "the attempt that made the claim does not compare what it sent",
                 ((Attempt, "appended", _is_always_alone),)),
        Mutation("no-waiting", "6", "rows are sent before the other tasks found theirs",
                 ((Attempt, "tasks", _does_not_wait),)),
    )
}  # fmt: skip
