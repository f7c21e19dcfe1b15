"""State machines as data: a table of (state, event) → next state, written as text, that the code executes.

A module that has a state machine declares one `StateTable`, and moves through it with `StateTable.next`, so the table
that is read is the one that runs (as in h11).
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Generic, TypeVar

from .errors import KlammError

__all__ = ["IllegalTransitionError", "StateTable"]

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)
_COLUMNS = re.compile(r" {2,}")


class IllegalTransitionError(KlammError):
    """The table has no row for this event in this state: a defect of the code, not of its input."""


class StateTable(Generic[S, E]):
    """Immutable. `table` has a heading, then a row a line: state, event and next state, each by its enum's value, with
    two blanks or more between them. A machine starts in the first row's state."""

    def __init__(self, name: str, states: type[S], events: type[E], table: str) -> None:
        self.name = name
        words = [_COLUMNS.split(line.strip()) for line in table.strip().splitlines()[1:]]
        self.rows = tuple((states(state), events(event), states(after)) for state, event, after in words)
        self.initial = self.rows[0][0]
        self._next = {(state, event): after for state, event, after in self.rows}
        if len(self._next) != len(self.rows):
            raise ValueError(f"the state table of a {name} has two rows for one state and event")

    def next(self, state: S, event: E) -> S:
        """Returns the state after `event`. Raises `IllegalTransitionError`, with both names, if the table has no such
        row."""
        after = self._next.get((state, event))
        if after is None:
            raise IllegalTransitionError(f"a {self.name} in state {state.value!r} cannot take event {event.value!r}")
        return after
