"""Runs histories and counts what the reports said: `make audit-truth HISTORIES=n`. Each number is two histories, one of
a cluster and one of a mirror."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

from klamm.hadoop.load import audit as load_audit
from klamm.plugins.audit.counting import producer
from klamm.plugins.audit.event import AuditEvent

from . import mirrored
from .actors import NoThread
from .generate import History
from .mirrored import MirrorHistory
from .world import passed_as_it_is

PROCESSES: Final = 2
PIECE: Final = 250
ENCODED: Final = 20
"""In one of so many histories events are encoded and decoded, which takes half of the time."""

MOST_UNKNOWN: Final = {"producer": 0.12, "broker": 0.12, "consumer": 0.15, "hadoop": 0.15, "mirror": 0.45}
"""The largest share of a tier's counts that may be unknown at the ends of histories: an audit that calls everything
unknown says nothing false, and nothing. A mirror's source is cut inside of a range in many of them."""


class _Threading:
    """Replaces the module `threading` in the producer's audit."""

    Thread = NoThread

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


@contextmanager
def in_memory() -> Iterator[None]:
    """Inside the block producers' audits have no threads, and loads no connections."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(producer, "threading", _Threading()))
        stack.enter_context(mock.patch.object(load_audit, "EventPublisher", return_value=None))
        quiet = logging.getLogger("klamm")
        level = quiet.level
        quiet.setLevel(logging.CRITICAL)
        stack.callback(quiet.setLevel, level)
        yield


def run(seed: int, number: int, *, traced: bool = False) -> History:
    """Runs one history; call it in `in_memory`."""
    encoded = number % ENCODED == 0
    with mock.patch.object(AuditEvent, "encode", passed_as_it_is) if not encoded else ExitStack():
        history = History(f"{seed} {number}", encoded=encoded, traced=traced)
        history.run()
    return history


@dataclass
class Score:
    """`states`: the cells at the ends of histories by (tier, state). `troubles`: the histories by what happened."""

    histories: int = 0
    seconds: float = 0.0
    """CPU."""
    events: int = 0
    checks: int = 0
    states: Counter[tuple[str, str]] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    """How far the watermark is at the end: past every window, past some, or none."""
    troubles: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str]] = field(default_factory=list)
    """(number of the history, what was wrong)."""

    def add(self, number: int, history: History) -> None:
        self.histories += 1
        self.events += len(history.world.audit.events)
        self.checks += history.checks
        self.states += history.states
        self.marks[history.mark] += 1
        self.troubles.update(history.troubles or {"none"})
        self.wrong += [(number, text) for text in history.wrong]

    def add_mirror(self, number: int, history: MirrorHistory) -> None:
        self.events += len(history.topic.events)
        self.checks += history.checks
        self.states += history.states
        self.wrong += [(number, text) for text in history.wrong]

    def merge(self, other: Score) -> None:
        for name in ("histories", "seconds", "events", "checks", "states", "marks", "troubles", "wrong"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def unknown(self, tier: str) -> float:
        return self.states[tier, "unknown"] / max(1, sum(n for (of, _), n in self.states.items() if of == tier))

    @property
    def too_unknown(self) -> list[str]:
        return [tier for tier, most in MOST_UNKNOWN.items() if self.unknown(tier) > most]

    @property
    def right(self) -> bool:
        return not self.wrong and not self.too_unknown

    def lines(self) -> Iterator[str]:
        bad = len({number for number, _ in self.wrong})
        each = 1000 * self.seconds / max(1, self.histories)
        yield (
            f"histories {self.histories} checks {self.checks} events {self.events} wrong {bad} "
            f"({each:.1f} ms of CPU each)"
        )
        for tier, most in MOST_UNKNOWN.items():
            found = {state: n for (of, state), n in self.states.items() if of == tier}
            total = max(1, sum(found.values()))
            shares = ", ".join(f"{state} {100 * n / total:.1f} %" for state, n in sorted(found.items()))
            yield f"  {tier}: {shares or 'no window'} (unknown: {100 * most:.0f} % at most)"
        yield "  watermark at the end: " + ", ".join(f"{mark} {n}" for mark, n in sorted(self.marks.items()))
        yield "  with " + ", ".join(f"{name} {n}" for name, n in self.troubles.most_common())


def piece(seed: int, numbers: Sequence[int]) -> Score:
    score = Score()
    began = time.process_time()
    with in_memory():
        for number in numbers:
            try:
                score.add(number, run(seed, number))
                score.add_mirror(number, mirrored.run(seed, number))
            except Exception as error:
                score.histories += 1
                score.wrong.append((number, f"the history broke off: {error!r}"))
    score.seconds = time.process_time() - began
    return score


def campaign(seed: int, histories: int) -> Score:
    """Runs histories in two processes."""
    score = Score()
    pieces = [range(first, min(first + PIECE, histories)) for first in range(0, histories, PIECE)]
    with ProcessPoolExecutor(PROCESSES) as pool:
        for found in pool.map(piece, [seed] * len(pieces), pieces):
            score.merge(found)
    return score
