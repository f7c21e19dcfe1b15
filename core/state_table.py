"""State machines as data: a table of (state, event) → next state that the code executes and a docstring shows.

A module that has a state machine declares one `StateTable`, moves through it with `StateTable.next`, and shows
`render()` in its own docstring. `tests/core/test_state_tables.py` compares the two, so the documented table is the
one that runs (as in h11).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Generic, TypeVar

from .errors import KlammError

__all__ = ["IllegalTransitionError", "StateTable"]

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalTransitionError(KlammError):
    """The table has no row for this event in this state: a defect of the code, not of its input."""


class StateTable(Generic[S, E]):
    """Immutable. `rows` are (state, event, next state) in the order in which they are shown, with the values of the
    enums as words. `initial` is the state in which a machine starts."""

    def __init__(self, name: str, initial: S, rows: Iterable[tuple[S, E, S]]) -> None:
        self.name = name
        self.initial = initial
        self.rows = tuple(rows)
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

    def render(self) -> str:
        """Returns the table as text: a heading, then one line a row, in columns."""
        heading = ("state", "event", "next state")
        cells = [heading, *((state.value, event.value, after.value) for state, event, after in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(2)]
        return "\n".join(f"{state:<{widths[0]}}  {event:<{widths[1]}}  {after}" for state, event, after in cells)
