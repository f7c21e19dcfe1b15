"""Writes the page and prints the lines: `docs/benchmarks.md` for full runs, `var/bench/quick/benchmarks.md` for quick
ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from klammbench import chart
from klammbench.metric import Metric
from klammbench.results import ShapeResults, Store
from klammbench.shapes.base import Shape
from klammbench.table import KAFKAS, Table
from klammbench.targets import Target


@dataclass(frozen=True, slots=True)
class Page:
    """`name` is the file's; `command` makes the figures of the shape whose letter it is given. Ratios are to the better
    of the `rivals`, under the heading `compared`.
    """

    name: str
    template: Path
    command: str
    rivals: Sequence[str]
    compared: str
    rounds: int
    """Rounds of a full run."""
    has_chart: bool


BENCHMARKS = Page(
    "benchmarks", Path(__file__).with_name("page.md"), "make bench ONLY={}", KAFKAS, "Klamm / better Kafka", 5, True
)


def add_report_argument(parser: argparse.ArgumentParser, page: Page) -> None:
    """Adds `--report`, with or without the value 1. Any other value is refused: the page is not a choice."""

    def switch(text: str) -> bool:
        if text != "1":
            raise argparse.ArgumentTypeError(
                f"{text!r} is not 1: the page cannot be chosen; right is REPORT=1, which writes docs/{page.name}.md"
            )
        return True

    parser.add_argument(
        "--report",
        nargs="?",
        const=True,
        default=False,
        type=switch,
        metavar="1",
        help="measure nothing; write the page from the last results",
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """One shape with its results."""

    shape: Shape
    results: ShapeResults
    table: Table
    targets: Sequence[Target]


def write(
    store: Store,
    shapes: Mapping[str, Shape],
    folder: Path,
    wanted: Collection[str] | None = None,
    page: Page = BENCHMARKS,
) -> list[str]:
    """Writes the page and the chart into `folder` and prints failures and target lines. Returns the failures; if
    `wanted` names shapes (those run now), only theirs.
    """
    measured = [found for shape in shapes.values() if (found := _measured(store, shape, page))]
    failed = {found.shape.NAME: _failures(found) for found in measured}
    failures = [line for lines in failed.values() for line in lines]
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"{page.name}.svg"
    drawn = page.has_chart and chart.write([(found.shape, found.table) for found in measured], picture)
    text = folder / f"{page.name}.md"
    text.write_text(
        _text(page, measured, failures, chart=picture.name if drawn else None, gaps=_gaps(page, measured, shapes))
    )
    print(f"\n{text} is written")
    for failure in failures:
        print(f"failed: {failure}")
    for found in measured:
        for target in found.targets:
            print("\n".join(target.lines()))
    return [line for name, lines in failed.items() if wanted is None or name in wanted for line in lines]


def _text(
    page: Page, measured: Sequence[Measured], failures: Sequence[str], chart: str | None, gaps: Sequence[str]
) -> str:
    targets = [target for found in measured for target in found.targets]
    short = [target for target in targets if not target.met]
    parts = {
        "MISSED": "\n".join([_missed(short, failures) if measured else "Nothing has been measured yet.", *gaps]),
        "TARGETS": _targets(targets),
        "CHART": f"![How many times as good as the better Kafka]({chart})" if chart else "",
        "SHAPES": "\n".join(_section(page, found) for found in measured),
        "RUN": _runs(measured),
    }
    return Template(page.template.read_text()).substitute(parts)


def _measured(store: Store, shape: Shape, page: Page) -> Measured | None:
    results = store.load(shape.NAME)
    if results is None:
        return None
    table = Table(results.rows, shape.METRICS, page.rivals)
    return Measured(shape, results, table, shape.targets(table))


def _gaps(page: Page, measured: Sequence[Measured], shapes: Mapping[str, Shape]) -> list[str]:
    """Returns lines that say why this page is not the result of one complete run."""
    lines = []
    there = {found.shape.NAME for found in measured}
    if measured and (absent := [name for name in shapes if name not in there]):
        lines.append(f"Not measured: shapes {', '.join(absent)}.")
    for found in measured:
        if found.table.rounds() < page.rounds:
            lines.append(f"({found.shape.NAME}) has {found.table.rounds()} rounds, fewer than {page.rounds}.")
    if len({found.results.about["commit"] for found in measured}) > 1:
        lines.append("The shapes are not all of one commit: see the end of the page.")
    return ["", *(f"- {line}" for line in lines)] if lines else []


def _failures(found: Measured) -> list[str]:
    lines = [f"({found.shape.NAME}) {line}" for line in found.table.failures()]
    if found.results.about["finished_in_s"] is None:
        lines.append(f"({found.shape.NAME}) was cut off")
    return lines


def _missed(short: Sequence[Target], failures: Sequence[str]) -> str:
    lines = []
    if failures:
        lines += ["## Measurements that failed", "", *(f"- {line}" for line in failures), ""]
    lines += ["## Missed targets", ""]
    lines += [f"- `{target.line()}`{_remarks(target)}" for target in short] or ["None."]
    return "\n".join(lines)


def _targets(targets: Sequence[Target]) -> str:
    return "\n".join(f"- `{target.line()}`{_remarks(target)}" for target in targets)


def _remarks(target: Target) -> str:
    below = "; ".join(line.strip() for line in target.lines()[1:])
    return f": {below}" if below else ""


def _section(page: Page, found: Measured) -> str:
    """Returns the shape's section: a heading and one table per metric, with cells down and systems across."""
    shape, table = found.shape, found.table
    summary = " ".join((shape.__doc__ or "").split()).removeprefix(f"({shape.NAME}) ")
    lines = [f"## ({shape.NAME}) {shape.TITLE}", "", summary, ""]
    about = found.results.about
    took = f"; {about['finished_in_s']:.0f} s for {table.rounds()} rounds" if about["finished_in_s"] else ""
    lines += [f"`{page.command.format(shape.NAME)}` makes these figures{took}.", ""]
    for name, metric in shape.METRICS.items():
        lines += _metric_table(page, table, name, metric)
    return "\n".join(lines)


def _metric_table(page: Page, table: Table, name: str, metric: Metric) -> list[str]:
    systems = [s for s in table.systems() if any(table.values(cell, s, name) for cell in table.cells())]
    rated = metric.better is not None and table.ours in systems and any(rival in systems for rival in page.rivals)
    head = [metric.unit, *systems, *([page.compared] if rated else [])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    rows = 0
    for cell in table.cells():
        figures = [_figures(table, cell, system, name, metric) for system in systems]
        if not any(figures):
            continue
        if rated:
            ratio = table.ratio(cell, name, table.ours)
            figures.append("" if ratio is None else f"**{ratio:.2f}**")
        lines.append("| " + " | ".join([cell, *figures]) + " |")
        rows += 1
    return [*lines, ""] if rows else []


def _figures(table: Table, cell: str, system: str, name: str, metric: Metric) -> str:
    spread = table.spread(cell, system, name)
    if spread is None:
        return ""
    low, middle, high = (f"{x:,.{metric.digits}f}" for x in (spread.lowest, spread.median, spread.highest))
    return f"{middle} ({low}–{high})"


def _runs(measured: Sequence[Measured]) -> str:
    """Returns the tables about the runs: date, commit, duration and machine of each shape, and the systems with
    versions and settings.
    """
    abouts = [found.results.about for found in measured]
    lines = ["| shape | date | commit | rounds | seconds |", "|---|---|---|---|---|"]
    for found, about in zip(measured, abouts, strict=True):
        took = f"{about['finished_in_s']:.0f}" if about["finished_in_s"] else "cut off"
        lines.append(
            f"| ({found.shape.NAME}) | {about['date']} | {about['commit']} | {found.table.rounds()} | {took} |"
        )
    whole = sum(about["finished_in_s"] or 0 for about in abouts)
    lines += [f"| all | | | | {whole:.0f} ({whole / 60:.0f} minutes) |", ""]
    lines += [*dict.fromkeys(f"Machine: {about['machine']}" for about in abouts), ""]
    lines += dict.fromkeys(f"- {name}: {text}" for about in abouts for name, text in about["systems"].items())
    return "\n".join(lines)
