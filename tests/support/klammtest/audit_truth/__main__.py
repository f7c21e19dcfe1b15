"""`make audit-truth`: plants faults in seeded runs of each kind, and checks what the audit's report says about them.

    KIND runs N found N missed N false-alarms N

The exit status is 1 if a fault was missed or a report made a false statement; the command that replays such a run is
printed. `--plant` switches the comparison off (and for ordinary events hides who sent a record): each kind must then
fail, with exit 1 if each did and 3 if one did not. Exit 2, before anything runs, if `--report` names no page with the
target's markers; also if the page could not be written at the end.

`--histories` runs random histories in memory instead (`klammtest.audit_truth.histories`); `--plant` then plants a bug
for each rule of docs/audit.md, each of which they must find.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from klamm.plugins.audit import query
from klamm.plugins.audit.comparison.compare import TopicAudit, compare
from klamm.plugins.audit.comparison.tiers import State, WindowAudit
from klamm.plugins.audit.counting.batch_counts import BatchCounter
from klamm.plugins.audit.event import UNATTRIBUTED
from klammtest.audit_truth.cluster import TruthCluster, truth_cluster
from klammtest.audit_truth.histories.command import command
from klammtest.audit_truth.judging import Verdict, judge
from klammtest.audit_truth.kinds import KINDS, FaultKind, go
from klammtest.audit_truth.load import arrow_loads
from klammtest.audit_truth.page import TARGET, write_figures
from klammtest.audit_truth.pipeline import LIMIT_S, Pipeline
from klammtest.audit_truth.score import Run, Score
from klammtest.pages.figures import report_failure, report_page

AT_A_TIME = 4
"""Number of runs that share one broker at a time: they wait more than they work."""
A_BROKER = 25
"""Runs on one broker before a new one is started: each report reads the whole audit topic, which the runs share."""

PLANTED_S = 2.0


def run_kind(kind: FaultKind, seed: int, numbers: Sequence[int], folder: Path, limit_s: float = LIMIT_S) -> Score:
    """Makes the runs of one kind and prints its line. `limit_s`: see `Pipeline`."""
    score, began = Score(kind), time.monotonic()
    for first in range(0, len(numbers), A_BROKER):
        some = numbers[first : first + A_BROKER]
        with truth_cluster(folder / f"{kind.name}-{some[0]}") as cluster, ThreadPoolExecutor(AT_A_TIME) as pool:
            for run in pool.map(lambda number: _one(kind, seed, number, cluster, limit_s), some):
                score.add(run)
    score.seconds = time.monotonic() - began
    return score


def _one(kind: FaultKind, seed: int, number: int, cluster: TruthCluster, limit_s: float) -> Run:
    """Makes one run. An error of the run itself counts neither as found nor as correct."""
    chance = random.Random(f"{seed} {kind.name} {number}")
    pipeline = Pipeline(cluster, f"{kind.name}-{number:04d}", chance, limit_s)
    try:
        with pipeline:
            go(kind, pipeline)
            verdict = judge(pipeline)
    except Exception as error:
        verdict = Verdict(missed=[f"the run broke off: {error!r}"])
    verdict.alarms += pipeline.early
    if kind.plants and not verdict.found and not verdict.missed and not pipeline.harmless:
        verdict.missed.append("nothing was planted")
    return Run(number, tuple(pipeline.events), verdict, bool(kind.plants) and verdict.right)


@contextmanager
def planted(kind: FaultKind) -> Iterator[None]:
    """Switches the comparison off; for the kind without a fault, hides who sent each record."""
    if not kind.plants:
        with (
            mock.patch.object(BatchCounter, "_stated", return_value=None),
            mock.patch.object(BatchCounter, "_sender", return_value=UNATTRIBUTED),
        ):
            yield
        return

    def blind(*given: Any, **more: Any) -> list[TopicAudit]:
        return [_blind(audit) for audit in compare(*given, **more)]

    with mock.patch.object(query, "compare", blind):
        yield


def _blind(audit: TopicAudit) -> TopicAudit:
    windows = [
        WindowAudit(
            w.start_ms, {tier: replace(cell, ratio=1.0, state=State.COMPLETE) for tier, cell in w.cells.items()}
        )
        for w in audit.windows
    ]
    return replace(audit, windows=tuple(windows), problems=(), clocks=())


def main() -> int:
    parser = argparse.ArgumentParser(prog="audit_truth", description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"all by default: {', '.join(KINDS)}")
    parser.add_argument("--runs", type=int, default=100, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at", type=int, help="this run alone")
    parser.add_argument("--plant", action="store_true", help="switch the comparison off: each kind must fail")
    page = report_page(TARGET)
    parser.add_argument("--report", type=page, metavar="PAGE", help="write the figures into this page")
    parser.add_argument("--histories", type=int, metavar="N", help="N random histories in memory, instead of runs")
    options = parser.parse_args()
    if options.histories is not None:
        return command(options.histories, options.seed, options.at, plant=options.plant)
    if unknown := [name for name in options.kinds if name not in KINDS]:
        parser.error(f"no kind {', '.join(unknown)}: there are {', '.join(KINDS)}")
    logging.getLogger("klamm").setLevel(logging.CRITICAL)  # lost connections and deleted records are planted on purpose
    numbers = range(options.runs) if options.at is None else [options.at]
    scores = []
    with tempfile.TemporaryDirectory(prefix="klamm-truth-") as folder, arrow_loads():
        for kind in (KINDS[name] for name in options.kinds or KINDS):
            with planted(kind) if options.plant else nullcontext():
                score = run_kind(kind, options.seed, numbers, Path(folder), PLANTED_S if options.plant else LIMIT_S)
            scores.append(score)
            print(score.line(), flush=True)
            for text in [] if options.plant else score.wrong:
                print(f"  {text}")
            if not score.right and not options.plant:
                print(f"  replay: make audit-truth ONLY={kind.name} SEED={options.seed} AT=n", flush=True)
    if options.report:
        write = partial(write_figures, options.report, scores, options.seed)
        if unwritten := report_failure(write):
            print(f"{TARGET}: {unwritten}", file=sys.stderr)
            return 2
    if options.plant:
        return 3 if any(score.right for score in scores) else 1
    return 0 if all(score.right for score in scores) else 1


if __name__ == "__main__":
    sys.exit(main())
