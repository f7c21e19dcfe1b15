"""Writes the figures of a run into a page of the docs, between its two markers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import Campaign, Result
from klammtest.pages.figures import commit, figures_in, machine, write_between_markers


@dataclass(frozen=True)
class Row:
    name: str
    result: Result
    seconds: float


def write_report(
    page: Path,
    target: str,
    campaigns: Mapping[str, Campaign],
    rows: list[Row],
    options: argparse.Namespace,
    seconds: float,
) -> None:
    """Writes between the page's markers of that make target: first the campaigns that failed and those not run, then
    all figures, then what each campaign does. Campaigns that passed in an earlier run, and were not run in this one,
    keep their figures: all of them in full take hours.
    """
    earlier = earlier_rows(figures_in(page, target))
    write_between_markers(page, target, figures(campaigns, rows, options, seconds, earlier))


_HEAD = (
    "| campaign | injected | wanted | acknowledged | lost | corrupt-served | further | s | run |",
    "|---|---:|---:|---:|---:|---:|---|---:|---|",
)
_COLUMNS = _HEAD[0].count("|")


def earlier_rows(text: str) -> dict[str, str]:
    """Returns the table's lines in an earlier report by campaign, without those of campaigns that failed."""
    found = {}
    for line in text.splitlines():
        if line.startswith("| ") and line.count("|") == _COLUMNS and line != _HEAD[0]:
            name = line.split("|")[1].strip()
            if f"**{name} failed**" not in text:
                found[name] = line
    return found


def figures(
    campaigns: Mapping[str, Campaign],
    rows: list[Row],
    options: argparse.Namespace,
    seconds: float,
    earlier: Mapping[str, str],
) -> str:
    rows = sorted(rows, key=lambda row: (row.result.passed, row.name))
    failed = [row for row in rows if not row.result.passed]
    run = {row.name for row in rows}
    kept = {name: line for name, line in earlier.items() if name in campaigns and name not in run}
    left_out = sorted(campaigns.keys() - run - kept.keys())
    lines = [f"- **{row.name} failed**: {_what_failed(row.result)}" for row in failed]
    lines += [f"- **not run**: {', '.join(left_out)}"] if left_out else []
    lines += [] if lines else [f"All {len(rows) + len(kept)} campaigns passed."]
    short = ", SHORT (`QUICK=1`)" if options.quick else ""
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    lines += [
        "",
        f"{now} UTC{commit()}, seed {options.seed}{short}, {len(rows)} campaigns in {seconds:.0f} s, on {machine()}."
        + (
            f" {len(kept)} campaigns were run earlier, each when its last column says; SHORT is `QUICK=1`."
            if kept
            else ""
        ),
        "",
        *_HEAD,
    ]
    for row in rows:
        r = row.result
        further = ", ".join(f"{figure} {n}" for figure, n in r.figures.items())
        lines.append(
            f"| {row.name} | {r.injected:,} | {r.wanted:,} | {r.acknowledged:,} | {r.lost} | {r.corrupt_served} "
            f"| {further} | {row.seconds:.0f} | {now}{commit()}{', SHORT' * options.quick} |"
        )
    lines += [kept[name] for name in sorted(kept)]
    lines.append("")
    for name in [*(row.name for row in rows), *sorted(kept)]:
        c = campaigns[name]
        lines += [f"**{c.name}** injects {c.injects}. Asserted: {c.asserts}. Planted with `PLANT=1`: {c.plants}.", ""]
    return "\n".join(lines).rstrip()


def _what_failed(result: Result) -> str:
    few = [f"{result.injected:,} faults injected of {result.wanted:,}"] if result.injected < result.wanted else []
    first = [" ".join(problem.split())[:300] for problem in result.problems[:1]]
    more = [f"{result.problem_count - 1} more"] if result.problem_count > 1 else []
    return "; ".join(few + first + more)
