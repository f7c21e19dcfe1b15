"""`python -m klammbench`: runs the shapes, writes the page, prints the targets. Exits with 1 if a measurement
failed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

from klammbench import report
from klammbench.harness import BusyError, about, alone, end_on_signals, ignore_signals
from klammbench.paths import DOCS, RESULTS, SYSTEM_DATA, VAR
from klammbench.pool import Pool
from klammbench.results import Store
from klammbench.rounds import Runner
from klammbench.shapes import SHAPES, SHARES
from klammbench.systems import SYSTEMS
from klammbench.systems.base import remove

ROUNDS, QUICK_ROUNDS = 5, 2
MINUTES, QUICK_MINUTES = 80, 13.5
"""Planned duration of a run of all shapes, in minutes. On a machine where it would take longer, shapes get fewer rounds
and the report says so.
"""


def main() -> int:
    given = _arguments()
    end_on_signals()
    wanted = list(SHAPES) if given.only is None else given.only.split(",")
    if unknown := [name for name in wanted if name not in SHAPES]:
        print(f"no shape {', '.join(unknown)}; there are {', '.join(SHAPES)}", file=sys.stderr)
        return 2
    store = Store(RESULTS, quick=given.quick)
    if not given.report:
        rounds = given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS)
        try:
            with alone():
                _run(wanted, store, quick=given.quick, rounds=rounds)
        except BusyError as error:
            print(error, file=sys.stderr)
            return 2
    return 1 if report.write(store, SHAPES, VAR / "quick" if given.quick else DOCS, wanted) else 0


def _run(wanted: list[str], store: Store, *, quick: bool, rounds: int) -> None:
    remove(SYSTEM_DATA)  # a killed run may have left files
    pool = Pool(SYSTEMS, SYSTEM_DATA)
    runner = Runner(pool, store, lambda line: print(line, flush=True))
    try:
        _run_all(wanted, runner, quick=quick, rounds=rounds)
    except BaseException:
        print("ending what was started", flush=True)
        raise
    finally:
        ignore_signals()
        pool.close()
        remove(SYSTEM_DATA)


def _run_all(wanted: list[str], runner: Runner, *, quick: bool, rounds: int) -> None:
    started = time.monotonic()
    names = [name for name in SHAPES if name in wanted]
    minutes = (QUICK_MINUTES if quick else MINUTES) if names == list(SHAPES) else math.inf
    for place, name in enumerate(names):
        begin = time.monotonic()
        share = SHARES[name] / sum(SHARES[other] for other in names[place:])
        seconds = (started + minutes * 60 - begin) * share
        print(f"== ({name}) {SHAPES[name].TITLE}", flush=True)
        try:
            runner.run(SHAPES[name], quick=quick, rounds=rounds, about=about(quick=quick), seconds=seconds)
        except Exception as error:
            # Left without its last line, the shape counts as cut off in the report.
            print(f"({name}) was cut off: {type(error).__name__}: {error}", flush=True)
        now = time.monotonic()
        print(f"== ({name}) took {now - begin:.0f} s; {(now - started) / 60:.1f} minutes so far", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="klammbench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cells and rounds, under 15 minutes")
    parser.add_argument("--only", help="comma-separated letters of shapes; the last results of the others are kept")
    parser.add_argument("--rounds", type=int, help=f"instead of {ROUNDS}, or {QUICK_ROUNDS} with --quick")
    report.add_report_argument(parser, report.BENCHMARKS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
