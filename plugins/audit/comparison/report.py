"""The report of `klamm audit`: a table of counts by window and tier, and the same data as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table

from klamm.core.cli.output import text, titled_table
from klamm.core.escaping import escaped

from ..event import BROKER, PRODUCER
from ..windows import Span, iso
from .compare import TopicAudit, lowest
from .mirrors import losses
from .tiers import Cell, LogEnd, Place, Problem, State, TierKey, WindowAudit

_STYLES = {
    State.COMPLETE: "green",
    State.NOT_COMPARED: "dim",
    State.SETTLED: "cyan",
    State.DUPLICATED: "magenta",
    State.LATE: "blue",
    State.MISSING: "red",
    State.UNKNOWN: "yellow",
}
_ORDER = list(State)
FEW_ROWS: Final = 60
QUANTILES: Final = {"p50": 0.5, "p99": 0.99}


@dataclass(frozen=True)
class Row:
    """The windows of one label together: counts are sums, completeness is that of the worst window of an expected tier,
    so that a surplus record in one window cannot hide a missing record in another."""

    label: str
    windows: tuple[WindowAudit, ...]

    def records(self, tier: TierKey) -> int:
        return sum(window.cells[tier].records for window in self.windows)

    def size(self, tier: TierKey) -> int:
        return sum(window.cells[tier].size for window in self.windows)

    def attempted(self, tier: TierKey) -> int:
        return sum(window.cells[tier].attempted for window in self.windows)

    def foreign(self) -> int:
        return sum(cell.foreign for cell in self.cells())

    def cells(self, tier: TierKey | None = None) -> list[Cell]:
        return [cell for window in self.windows for key, cell in window.cells.items() if tier in (None, key)]

    def state(self, tier: TierKey | None = None) -> State:
        """Returns the worst state of a tier, or of all that are expected."""
        states = (cell.state for cell in self.cells(tier) if tier is not None or cell.counts)
        return max(states, key=_ORDER.index, default=State.NOT_COMPARED)

    def completeness(self) -> str:
        """The lowest ratio; the highest if nothing is missing and something is counted twice."""
        state = self.state()
        if state is State.UNKNOWN:
            return "unknown"
        if state in (State.SETTLED, State.NOT_COMPARED):
            return str(state)
        if state is State.DUPLICATED:
            return ratio_text(max(cell.ratio for cell in self.cells() if cell.ratio is not None)) + " duplicated"
        return ratio_text(lowest(self.cells())) + (f" {state}" if state in (State.MISSING, State.LATE) else "")


def ratio_text(ratio: float | None) -> str:
    """Returns four decimals, truncated and not rounded: only a ratio of exactly 1 is printed as 1.0000."""
    if ratio is None:
        return "unknown"
    if ratio == float("inf"):
        return "inf"
    scaled = int(ratio * 10_000)
    return f"{(scaled + (ratio > 1 and scaled == 10_000)) / 10_000:.4f}"


def rows(audit: TopicAudit, span: Span) -> list[Row]:
    """Returns the rows by label, in the order of time."""
    grouped: dict[str, list[WindowAudit]] = {}
    for window in audit.windows:
        grouped.setdefault(span.label(window.start_ms), []).append(window)
    return [Row(label, tuple(windows)) for label, windows in grouped.items()]


def few_rows(audit: TopicAudit) -> Span:
    """Returns the shortest span that gives few rows."""
    for span in (Span.WINDOW, Span.HOUR, Span.DAY):
        if len({span.label(window.start_ms) for window in audit.windows}) <= FEW_ROWS:
            return span
    return Span.MONTH


def render(audit: TopicAudit, span: Span) -> RenderableType:
    """Returns the table of one topic, and below it its problems."""
    table = titled_table(f"audit of topic {audit.topic}, by {span} of record time (UTC)")
    table.add_column(str(span))
    for tier in audit.tiers:
        if tier.tier == PRODUCER:
            table.add_column("attempted", justify="right")
            table.add_column("acknowledged", justify="right")
        else:
            table.add_column(str(tier), justify="right")
    foreign = any(cell.foreign for window in audit.windows for cell in window.cells.values())
    if foreign:
        table.add_column("not audited", justify="right")
    table.add_column("MB", justify="right")
    table.add_column("complete", justify="right")
    shown = rows(audit, span)
    for row in shown:
        _add(table, audit.tiers, row, foreign)
    if len(shown) > 1:
        table.add_section()
        _add(table, audit.tiers, Row("all", audit.windows), foreign)
    return Group(table, *(text(escaped(note)) for note in _notes(audit)))


def _add(table: Table, tiers: Sequence[TierKey], row: Row, foreign: bool) -> None:
    cells: list[RenderableType] = [row.label]
    for tier in tiers:
        if tier.tier == PRODUCER:
            cells.append(f"{row.attempted(tier):,}")
        state = row.state(tier)
        cells.append(text(f"{row.records(tier):,}", "" if state is State.COMPLETE else _STYLES[state]))
    if foreign:
        cells.append(f"{row.foreign():,}")
    cells.append(f"{max(row.size(tier) for tier in tiers) / 1e6:,.1f}")
    cells.append(text(row.completeness(), _STYLES[row.state()]))
    table.add_row(*cells)


def _notes(audit: TopicAudit) -> list[str]:
    notes = [f"! {problem.tier}: {problem.kind}: {problem.text}" for problem in audit.problems]
    notes += [f"! producer: clock: {clock.text}" for clock in audit.clocks]
    notes += [f"! {line}" for line in losses(audit)]
    notes += remarks(audit)
    notes += [f"settled by {by.who} on {iso(by.time_ms)}: {by.why}" for by in audit.settled]
    notes += [f"(settled) {problem.tier}: {problem.kind}: {problem.text}" for problem in audit.closed]
    if len(audit.topic_ids) > 1:
        notes.append(
            f"topic {audit.topic} was deleted and created again: counts are of {len(audit.topic_ids)} topics of this "
            f"name, each compared by itself: {', '.join(audit.topic_ids)}"
        )
    if not audit.windows:
        notes.append(f"! nothing has been counted for topic {audit.topic} in what was asked for")
    if audit.live_producers:
        notes.append(f"running producers: {', '.join(audit.live_producers)}")
    notes += _latencies(audit)
    mark = "none" if audit.watermark_ms is None else iso(audit.watermark_ms)
    return [*notes, f"complete up to (watermark): {mark}"]


def remarks(audit: TopicAudit) -> list[str]:
    """Returns what is compared and holds nothing, what is not compared any more, and what is left out (docs/audit.md,
    R2, R5, R6 and R22)."""
    found = []
    for tier in audit.tiers:
        if tier not in audit.expected:
            state = Row("", audit.windows).state(tier)
            found.append(f"{tier} is {state}: it is not expected (audit.expect), so it holds nothing back")
    for ended in audit.ended:
        what = f"{ended.tier}, lake {ended.lake}," if ended.lake else str(ended.tier)
        by = f"ended by {ended.who} on {iso(ended.time_ms)}: " if ended.who else ""
        found.append(f"{what} is not compared any more: {by}{ended.why}")
    if audit.left_out_ms is not None:
        until = iso(audit.left_out_ms)
        found.append(f"windows before {until} are left out: older events were deleted (audit.retention.ms)")
    return found


def lags(audit: TopicAudit, logs: Mapping[Place, LogEnd]) -> dict[str, int | None]:
    """Returns by tier how many records the log holds beyond the tier's counts; None if no broker reports the end of a
    log. Producers have none: they are the reference.
    """
    found: dict[str, int | None] = {}
    for tier in audit.tiers:
        if tier.tier == PRODUCER:
            continue
        counts = audit.counts[tier]
        left = 0
        for place, log in logs.items():
            end = counts.ends.get(place, counts.begins.get(place, log.start))
            left += max(log.end - max(end, log.start), 0)
        found[str(tier)] = None if any(log.end < 0 for log in logs.values()) or not logs else left
    return found


def _latencies(audit: TopicAudit) -> Iterator[str]:
    for tier in audit.tiers:
        found = [(name, audit.latency(tier, quantile)) for name, quantile in QUANTILES.items()]
        said = [f"{name} {duration(age.least_s)} to {duration(age.most_s)}" for name, age in found if age is not None]
        if said:
            yield f"from record time to the count at {tier}: {', '.join(said)}"


def duration(seconds: int) -> str:
    """Returns the duration in the largest unit that gives two or more."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds} s"


def as_json(audits: Iterable[TopicAudit], span: Span, unreadable: Sequence[str]) -> dict[str, Any]:
    """Returns the report for programs; instants are in ms since the epoch."""
    return {"unreadable": list(unreadable), "topics": [_topic_json(audit, span) for audit in audits]}


def _topic_json(audit: TopicAudit, span: Span) -> dict[str, Any]:
    return {
        "topic": audit.topic,
        "window_ms": audit.window_ms,
        "complete": audit.complete,
        "lowest": _number(audit.lowest()),
        "watermark_ms": audit.watermark_ms,
        "live_producers": list(audit.live_producers),
        "topic_ids": list(audit.topic_ids),
        "latency_s": {
            str(tier): {name: audit.latency(tier, quantile) for name, quantile in QUANTILES.items()}
            for tier in audit.tiers
        },
        "problems": list(map(_problem_json, audit.problems)),
        "losses": list(losses(audit)),
        "clocks": [{**clock._asdict(), "text": clock.text} for clock in audit.clocks],
        "settled": [
            {"who": by.who, "why": by.why, "time_ms": by.time_ms, "counts": len(by.counts)} for by in audit.settled
        ],
        "settled_problems": list(map(_problem_json, audit.closed)),
        "expected": [str(tier) for tier in audit.tiers if tier in audit.expected],
        "ended": [{**ended._asdict(), "tier": str(ended.tier)} for ended in audit.ended],
        "remarks": remarks(audit),
        "left_out_ms": audit.left_out_ms,
        "rows": [
            {
                "label": row.label,
                "state": row.state(),
                "complete": _number(lowest(row.cells())),
                "tiers": {str(tier): _tier_json(row, tier) for tier in audit.tiers},
            }
            for row in rows(audit, span)
        ],
    }


def _problem_json(problem: Problem) -> dict[str, Any]:
    windows = None if problem.windows is None else sorted(problem.windows)
    return {"kind": problem.kind, "tier": str(problem.tier), "text": problem.text, "windows": windows}


def _number(ratio: float | None) -> float | None:
    """Returns the ratio, or None for infinity, which JSON lacks; the state is `duplicated` if records were counted and
    none expected.
    """
    return None if ratio == float("inf") else ratio


def _tier_json(row: Row, tier: TierKey) -> dict[str, Any]:
    said: dict[str, Any] = {"records": row.records(tier), "bytes": row.size(tier), "state": row.state(tier)}
    if tier.tier == BROKER:
        said["not_audited"] = sum(cell.foreign for cell in row.cells(tier))
    return said | ({"attempted": row.attempted(tier)} if tier.tier == PRODUCER else {})


def print_report(
    console: Console,
    audits: Sequence[TopicAudit],
    span: Span | None,
    unreadable: Sequence[str],
    logs: Mapping[str, Mapping[Place, LogEnd]] | None = None,
) -> None:
    """Prints all topics, each by the span or, without one, by that which gives few rows; which tiers are behind the
    ends of its `logs`, if they are known; then records that are not events."""
    for audit in audits:
        console.print(render(audit, span or few_rows(audit)))
        for tier, behind in lags(audit, (logs or {}).get(audit.topic, {})).items():
            if behind:
                line = f"{tier} is {behind:,} records behind the end of the log: its windows are late, not missing"
                console.print(text(escaped(line)))
    for line in unreadable:
        console.print(text(escaped(f"! unreadable: {line}")))
    if not audits:
        console.print("! nothing has been counted yet")
