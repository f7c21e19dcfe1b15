"""A gate for downstream jobs: waits until no record before an instant of record time is missing, or until a time-out.

Rule R23 of docs/audit.md: the gate is open when each window before the instant passes at every requested tier, or at
every expected one, and no record before the instant may still arrive.

So it is open wherever the completeness watermark has passed the instant. It also opens if no later window has records,
as in a night without traffic: there the watermark stays at the end of the last window. Windows of records without a
timestamp do not keep the gate closed. `obstacle` is pure; `wait_complete` takes its clock from the caller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from klamm.errors import UnknownTopicError
from klamm.plugin import NO_WINDOW, ConfigError, KlammError

from .comparison import rules
from .comparison.compare import TopicAudit
from .comparison.mirrors import losses
from .comparison.tiers import Cell, Problem, State, TierKey, WindowAudit
from .event import BROKER, MIRROR, PRODUCER
from .query import Answer
from .windows import iso

POLL_S: Final = 0.5
MAX_POLL_S: Final = 15.0


class NotCompleteError(KlammError):
    """The gate was still closed when the time-out had passed."""


@dataclass(frozen=True)
class Gate:
    """The condition to wait for. `tiers` as in an `AuditQuery`; all when empty. `since_ms`: windows that end before are
    ignored."""

    topic: str
    until_ms: int
    since_ms: float = -math.inf
    threshold: float = 1.0
    tiers: tuple[str, ...] = ()

    def chosen(self, audit: TopicAudit) -> list[TierKey]:
        if not self.tiers:
            return [tier for tier in audit.tiers if tier in audit.expected]
        return [tier for tier in audit.tiers if tier.tier in self.tiers or str(tier) in self.tiers]

    def windows(self, audit: TopicAudit) -> list[WindowAudit]:
        return [window for window in audit.windows if self._holds(window.start_ms, audit.window_ms)]

    def open_windows(self, audit: TopicAudit) -> list[int]:
        """Windows in which a live producer may still count."""
        return sorted(start for start in audit.horizon.held if self._holds(start, audit.window_ms))

    def passes(self, cell: Cell) -> bool:
        return rules.cell_passes(cell, self.threshold)

    def _holds(self, start_ms: int, window_ms: int) -> bool:
        return start_ms != NO_WINDOW and start_ms < self.until_ms and start_ms + window_ms > self.since_ms


def obstacle(audit: TopicAudit, gate: Gate) -> str | None:
    """Returns why the gate is closed, with the earliest window first; None if it is open. `audit` has all tiers and
    windows.
    """
    tiers = gate.chosen(audit)
    absent = [name for name in gate.tiers if not any(name in (tier.tier, str(tier)) for tier in tiers)]
    if absent or not tiers:
        return f"{' and '.join(absent) or 'every tier'} has counted nothing"
    if audit.left_out_ms is not None and gate.until_ms <= audit.left_out_ms:
        return f"windows before {iso(audit.left_out_ms)} are left out: older events were deleted (audit.retention.ms)"
    failing = [(w, t) for w in gate.windows(audit) for t in tiers if not gate.passes(w.cells[t])]
    if failing:
        window, tier = failing[0]
        others = len({w.start_ms for w, _ in failing}) - 1
        more = f"; and {others} more window{'s' if others > 1 else ''}" if others else ""
        return f"window {iso(window.start_ms)} at {tier} {_lack(audit, window, tier)}{more}"
    for problem in audit.problems:
        if problem.tier in _concerned(tiers, audit) and rules.closes_gate(problem, gate.until_ms):
            return f"windows before {iso(gate.until_ms)} are unknown: {_reason(problem)}"
    return _still_open(audit, gate)


def _lack(audit: TopicAudit, window: WindowAudit, tier: TierKey) -> str:
    cell = window.cells[tier]
    if cell.state is State.UNKNOWN:
        found = (p for p in audit.problems if p.touches(window.start_ms) and p.tier in _concerned([tier], audit))
        why = next(map(_reason, found), "tiers are still counting")
        of = f" of {cell.expected:,}" if tier.tier != PRODUCER else ""
        return f"is unknown ({cell.records:,}{of} records counted): {why}"
    over = "" if cell.ratio is None or math.isinf(cell.ratio) else f", ratio {cell.ratio:.6g}"
    if cell.state is State.DUPLICATED:
        return f"has {cell.over:,} records more than the {cell.expected:,} expected{over}"
    verb = "has not got" if cell.state is State.LATE else "lacks"
    why = next(losses(audit), "") if tier.tier == MIRROR and verb == "lacks" else ""
    yet = " yet" if verb != "lacks" else ""
    return f"{verb} {cell.short:,} of {cell.expected:,} records{yet}{over}{f' ({why})' if why else ''}"


def _concerned(tiers: Collection[TierKey], audit: TopicAudit) -> set[TierKey]:
    """Returns the tiers whose problems make counts of these unknown: the tiers themselves, and those that they are
    compared with.
    """
    found = set(tiers)
    if any(tier.tier != PRODUCER for tier in tiers):
        found |= {tier for tier in audit.tiers if tier.tier == BROKER}
    if any(tier.tier == BROKER for tier in tiers):
        found |= {tier for tier in audit.tiers if tier.tier == PRODUCER}
    return found


def _reason(problem: Problem) -> str:
    return f"{problem.tier}: {problem.kind}: {problem.text}"


def _still_open(audit: TopicAudit, gate: Gate) -> str | None:
    opened = gate.open_windows(audit)
    if opened:
        who = ", ".join(audit.live_producers)
        return f"window {iso(opened[0])} may still get records: a producer counted in it recently (alive: {who})"
    limit = audit.horizon.limit_ms
    if limit >= gate.until_ms:
        return None
    when = iso(math.floor(limit)) if math.isfinite(limit) else "any time"
    return f"records from {when} on may still arrive (allowed.lateness.ms, and the last event of each live producer)"


def wait_complete(
    ask: Callable[[], Answer],
    gate: Gate,
    timeout_s: float,
    *,
    began_s: float | None = None,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> str:
    """Returns a line about what is complete. Raises `NotCompleteError` with what is not, `timeout_s` after `began_s`
    (None: after the call).

    It also waits while the cluster is unreachable. The pause between two queries is as long as a query took, within
    bounds. A query that the time-out interrupts does not replace the result of the one before it.
    """
    deadline = (clock_s() if began_s is None else began_s) + timeout_s
    closed: str | None = None
    while True:
        begun = clock_s()
        try:
            answer = ask()
            closed = _closed(answer, gate)
            if closed is None:
                return _summary(answer, gate)
        except (ConfigError, UnknownTopicError):
            raise
        except KlammError as error:
            if closed is None or clock_s() < deadline:
                closed = f"the audit cannot be queried: {error}"
        now = clock_s()
        if now >= deadline:
            raise NotCompleteError(
                f"topic {gate.topic} is not complete before {iso(gate.until_ms)} after {timeout_s:g} s: {closed}"
            )
        sleep(min(max(POLL_S, now - begun), MAX_POLL_S, deadline - now))


def _closed(answer: Answer, gate: Gate) -> str | None:
    if answer.unreadable:
        return f"{len(answer.unreadable)} records of the audit topic cannot be read: {answer.unreadable[0]}"
    [audit] = answer.audits
    return obstacle(audit, gate)


def _summary(answer: Answer, gate: Gate) -> str:
    [audit] = answer.audits
    tiers, windows = gate.chosen(audit), gate.windows(audit)
    counts = ", ".join(f"{tier} {sum(window.cells[tier].records for window in windows):,}" for tier in tiers)
    least = "" if gate.threshold >= 1 else f" (each window at least {gate.threshold:g})"
    out = audit.left_out_ms
    left = "" if out is None or out <= gate.since_ms else f" and not before {iso(out)} (audit.retention.ms)"
    return (
        f"topic {gate.topic} is complete before {iso(gate.until_ms)}{left}{least}: {len(windows)} windows; records: "
        f"{counts}"
    )
