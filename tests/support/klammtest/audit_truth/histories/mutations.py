"""Planted bugs in the production code, at least one for each numbered rule of docs/audit.md. Random histories must find
each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.counting.broker_tier import Follower
from klamm.plugins.audit.counting.ranges import KlammRangeAudit

from .campaign import in_memory, run
from .world import Broker

MOST: Final = 3000
"""Histories within which a mutation must be found."""

Patch = tuple[object, str, object]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A planted bug. `rule` is the number in docs/audit.md; "counting" for the rules of the tiers' own modules."""

    rule: str
    what: str
    patches: tuple[Patch, ...]
    trouble: str = ""
    """The kind of history that finds it; only these are run."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, replacement in self.patches:
                stack.enter_context(patch.object(owner, name, replacement))
            yield


def found_at(mutation: Mutation, seed: int, most: int = MOST) -> int | None:
    """Returns the number of the first history that finds the mutation, out of `most` with its kind of trouble."""
    from .generate import History

    with in_memory(), mutation.planted():
        ran, number = 0, 0
        while ran < most:
            if not mutation.trouble or mutation.trouble in History(f"{seed} {number}").troubles:
                ran += 1
                try:
                    wrong = run(seed, number).wrong
                except Exception:
                    return number
                if wrong:
                    return number
            number += 1
    return None


# -- counting ----------------------------------------------------------------------------------------------------

_read_piece: Final = Follower._read_piece
_commit: Final = Broker.commit


def _where_it_stopped(self: Follower, partition: TopicPartition) -> bool:
    self._followed[partition].epoch = None
    return _read_piece(self, partition)


def _commit_unguarded(self: Broker, group: str, offsets: Any, leader_epochs: Any) -> set[TopicPartition]:
    refused = _commit(self, group, offsets, leader_epochs)
    self.world.store |= offsets
    return refused - refused


def _nothing(*_: object, **__: object) -> None:
    return None


def _one(rule: str, what: str, owner: object, name: str, replacement: object, kind: str = "") -> Mutation:
    return Mutation(rule, what, ((owner, name, replacement),), kind)


MUTATIONS: Final = (
    _one("counting", "a leader that leads again continues where it stopped", Follower, "_read_piece", _where_it_stopped,
         "leaders"),
    _one("counting", "a leader commits below what the next one has passed", Broker, "commit", _commit_unguarded,
         "cut-off leaders"),
    _one("R11", "a cut is not told", KlammRangeAudit, "cut", _nothing, "unclean leaders"),
)  # fmt: skip
