"""Writes the figures of a run into a page of the docs, between its two markers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import Campaign, Result
from klammtest.pages.figures import commit, machine, write_between_markers


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
    all figures, then what each campaign does.
    """
    write_between_markers(page, target, figures(campaigns, rows, options, seconds))


def figures(campaigns: Mapping[str, Campaign], rows: list[Row], options: argparse.Namespace, seconds: float) -> str:
    rows = sorted(rows, key=lambda row: (row.result.passed, row.name))
    failed = [row for row in rows if not row.result.passed]
    left_out = sorted(campaigns.keys() - {row.name for row in rows})
    lines = [f"- **{row.name} failed**: {_what_failed(row.result)}" for row in failed]
    lines += [f"- **not run**: {', '.join(left_out)}"] if left_out else []
    lines += [] if lines else [f"All {len(rows)} campaigns passed."]
    short = ", SHORT (`QUICK=1`)" if options.quick else ""
    lines += [
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC{commit()}, seed {options.seed}{short}, {seconds:.0f} s in all, on "
        f"{machine()}.",
        "",
        "| campaign | injected | wanted | acknowledged | lost | corrupt-served | further | s |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for row in rows:
        r = row.result
        further = ", ".join(f"{figure} {n}" for figure, n in r.figures.items())
        lines.append(
            f"| {row.name} | {r.injected:,} | {r.wanted:,} | {r.acknowledged:,} | {r.lost} | {r.corrupt_served} "
            f"| {further} | {row.seconds:.0f} |"
        )
    lines.append("")
    for row in rows:
        c = campaigns[row.name]
        lines += [f"**{c.name}** injects {c.injects}. Asserted: {c.asserts}. Planted with `PLANT=1`: {c.plants}.", ""]
    return "\n".join(lines).rstrip()


def _what_failed(result: Result) -> str:
    few = [f"{result.injected:,} faults injected of {result.wanted:,}"] if result.injected < result.wanted else []
    first = [" ".join(problem.split())[:300] for problem in result.problems[:1]]
    more = [f"{result.problem_count - 1} more"] if result.problem_count > 1 else []
    return "; ".join(few + first + more)
