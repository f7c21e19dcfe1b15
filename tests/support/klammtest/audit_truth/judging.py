"""Compares a report with the truth, cell by cell: faults found, faults missed, and false alarms."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from klamm.core.interfaces.audit import NO_WINDOW
from klamm.plugins.audit.comparison.report import as_json
from klamm.plugins.audit.comparison.tiers import State, TierKey
from klamm.plugins.audit.query import AuditQuery, AuditQueryRunner, audit_config
from klamm.plugins.audit.windows import Span
from klammtest.audit_truth.cluster import WINDOW_MS
from klammtest.audit_truth.pipeline import Pipeline, Problem
from klammtest.audit_truth.truth import LAKE, PRODUCER, Want

PAUSE_S = 0.1
CLOCK_MS = 60_000


@dataclass
class Verdict:
    """`found`: planted faults that the report names correctly, with the right numbers."""

    found: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.missed and not self.alarms


def judge(pipeline: Pipeline, *, live: bool = False) -> Verdict:
    """Repeats `klamm audit --by window --json` until the report agrees with the truth or the time is over.

    The first report may call counts unknown that become known later, but must not be wrong otherwise. `live`: a
    producer is still running, which holds the watermark back.
    """
    settings = pipeline.cluster.settings()
    expect = tuple(TierKey(*name.split("/")) for name in pipeline.tier_names.values() if "/" in name)
    query = AuditQuery(topics=(pipeline.topic,), expect=expect)
    runner = AuditQueryRunner(pipeline.client, audit_config(settings))
    deadline = time.monotonic() + pipeline.limit_s
    hasty: list[str] | None = None
    while True:
        pipeline.settle()
        answer = runner.ask(query)
        said = as_json(answer.audits, Span.WINDOW, answer.unreadable)
        verdict = compare(pipeline, said, answer.complete, live=live)
        hasty = _hasty(pipeline, said) if hasty is None else hasty
        if verdict.right or time.monotonic() > deadline:
            verdict.alarms += [f"at first: {text}" for text in hasty]
            return verdict
        time.sleep(PAUSE_S)


def _hasty(pipeline: Pipeline, said: Mapping[str, Any]) -> list[str]:
    """Returns the states of a first report that are neither correct nor unknown nor late."""
    rows = {row["label"]: row["tiers"] for topic in said["topics"] for row in topic["rows"]}
    wrong = []
    for start, cells in pipeline.truth.wants().items():
        label = Span.WINDOW.label(start)
        for tier, want in cells.items():
            state = rows.get(label, {}).get(pipeline.tier_names[tier], {}).get("state", State.UNKNOWN)
            known = start in pipeline.allowed.must_be_unknown.get(tier, ()) or state == want.state
            if not known and state not in (State.UNKNOWN, State.LATE):
                wrong.append(f"{tier} {label} is {state}, the truth is {want.state}")
    return wrong


def compare(pipeline: Pipeline, said: Mapping[str, Any], complete: bool, *, live: bool = False) -> Verdict:
    verdict, tiers = Verdict(), pipeline.tier_names
    if said["unreadable"] or len(said["topics"]) != 1:
        verdict.alarms.append(f"unreadable {said['unreadable']}, {len(said['topics'])} topics")
        return verdict
    [topic] = said["topics"]
    rows = {row["label"]: row for row in topic["rows"]}
    wants = pipeline.truth.wants()
    for start, cells in sorted(wants.items()):
        row = rows.pop(Span.WINDOW.label(start), None)
        for tier, want in cells.items():
            if tier == LAKE and pipeline.lake.untold:
                continue  # only the next load can know this
            _cell(pipeline, verdict, (start, tier), want, None if row is None else row["tiers"].get(tiers[tier]))
        if row is not None and not pipeline.lake.untold:
            _ratio(verdict, row, cells)
    for label, row in rows.items():
        if any(cell["records"] for cell in row["tiers"].values()):
            verdict.alarms.append(f"{label} is listed, but there are no records")
    _problems(pipeline, verdict, topic, tiers)
    _clocks(pipeline, verdict, topic)
    _whole(pipeline, verdict, topic, wants, complete)
    if not live:
        _watermark(pipeline, verdict, topic, wants)
    return verdict


def _cell(pipeline: Pipeline, verdict: Verdict, at: tuple[int, str], want: Want, got: Mapping[str, Any] | None) -> None:
    start, tier = at
    where = f"{tier} {Span.WINDOW.label(start)}"
    allowed = pipeline.allowed
    must, may = (start in given.get(tier, ()) for given in (allowed.must_be_unknown, allowed.unknown))
    state = None if got is None else got["state"]
    if must:
        (verdict.found if state == State.UNKNOWN else verdict.missed).append(f"{where} is {state}, wanted unknown")
        return
    told = None if got is None else _told(tier, got, pipeline.truth.stamped)
    truth = (want.records, None if pipeline.truth.stamped else want.attempted, want.foreign)
    late = (state, want.state, tier) == (State.LATE, State.MISSING, LAKE) and pipeline.truth.lake_may_lag(start)
    right = (state == want.state or late) and told == truth
    text = f"{where} is {state} {told}, the truth is {want.state} {truth}"
    if may and state == State.UNKNOWN:
        if want.state is not State.COMPLETE:
            verdict.found.append(text)
    elif want.state is not State.COMPLETE:
        (verdict.found if right else verdict.missed).append(text)
    elif not right:
        verdict.alarms.append(text)


def _told(tier: str, got: Mapping[str, Any], stamped: bool) -> tuple[int, int | None, int]:
    attempted = None if stamped else got.get("attempted", 0) if tier == PRODUCER else 0
    return got["records"], attempted, got.get("not_audited", 0)


def _ratio(verdict: Verdict, row: Mapping[str, Any], cells: Mapping[str, Want]) -> None:
    """Compares the completeness of the row with the truth, unless a count of the row is unknown."""
    if any(cell["state"] == State.UNKNOWN for cell in row["tiers"].values()):
        return
    lowest = min(want.ratio for tier, want in cells.items() if tier != PRODUCER)
    told = math.inf if row["complete"] is None else row["complete"]
    if not math.isclose(told, lowest):
        verdict.missed.append(f"{row['label']} is complete to {told}, the truth is {lowest}")


def _problems(pipeline: Pipeline, verdict: Verdict, topic: Mapping[str, Any], tiers: Mapping[str, str]) -> None:
    def fits(wanted: Problem, said: Mapping[str, Any]) -> bool:
        same = wanted.kind == said["kind"] and tiers[wanted.tier] == said["tier"]
        return bool(same and wanted.text in said["text"])

    for wanted in pipeline.allowed.problems:
        there = any(fits(wanted, said) for said in topic["problems"])
        (verdict.found if there else verdict.missed).append(f"problem {wanted.kind} at {wanted.tier}: {wanted.text}")
    known = [*pipeline.allowed.problems, *pipeline.allowed.may]
    for said in topic["problems"]:
        if not any(fits(wanted, said) for wanted in known):
            verdict.alarms.append(f"problem {said['kind']} at {said['tier']}: {said['text']}")


def _clocks(pipeline: Pipeline, verdict: Verdict, topic: Mapping[str, Any]) -> None:
    said = {clock["application"]: clock["ahead_ms"] for clock in topic["clocks"]}
    for application, ahead_ms in pipeline.allowed.clocks.items():
        text = f"the clock of {application} is {ahead_ms} ms ahead, the report says {said.get(application)}"
        right = abs(said.pop(application, 0) - ahead_ms) < CLOCK_MS
        (verdict.found if right else verdict.missed).append(text)
    verdict.alarms += [
        f"the clock of {application} is reported as {ms} ms ahead, which is not so" for application, ms in said.items()
    ]


def _incomplete(pipeline: Pipeline, wants: Mapping[int, Mapping[str, Want]]) -> list[int]:
    """Returns the windows that no report may call complete."""
    wrong = {s for s, cells in wants.items() if any(want.state is not State.COMPLETE for want in cells.values())}
    return sorted(wrong.union(*pipeline.allowed.must_be_unknown.values()))


def _whole(
    pipeline: Pipeline,
    verdict: Verdict,
    topic: Mapping[str, Any],
    wants: Mapping[int, Mapping[str, Want]],
    complete: bool,
) -> None:
    """Checks the topic, the exit status, and that the watermark stays before the first incomplete window."""
    wrong = _incomplete(pipeline, wants)
    mark = topic["watermark_ms"]
    first = min((start for start in wrong if start != NO_WINDOW), default=math.inf)
    if mark is not None and mark > first:
        verdict.missed.append(f"the watermark {mark} is beyond the window {first}, which is not complete")
    faulty = bool(wrong or pipeline.allowed.problems)
    if faulty and complete:
        verdict.missed.append("the topic is complete")
    if not faulty and not pipeline.allowed.unknown and not complete:
        verdict.alarms.append("the topic is not complete")
    if complete != topic["complete"]:
        verdict.alarms.append(f"the exit status says {complete}, the report {topic['complete']}")


def _watermark(
    pipeline: Pipeline, verdict: Verdict, topic: Mapping[str, Any], wants: Mapping[int, Mapping[str, Want]]
) -> None:
    """Checks that the watermark is as far as it can be.

    It is not checked where that position is not known: a window may be unknown, be the current one, or hold only
    records that the broker stamped with another time.
    """
    first = min((start for start in _incomplete(pipeline, wants) if start != NO_WINDOW), default=math.inf)
    before = [start for start in wants if start != NO_WINDOW and start < first]
    now_ms = time.time() * 1000
    if not before or pipeline.truth.stamped or pipeline.allowed.unknown or max(before) > now_ms - 86_400_000:
        return
    if topic["watermark_ms"] != max(before) + WINDOW_MS:
        verdict.alarms.append(f"the watermark is {topic['watermark_ms']}, wanted {max(before) + WINDOW_MS}")
