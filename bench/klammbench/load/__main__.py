"""`python -m klammbench.load`: runs the cells, writes the page, prints the targets. Exits with 1 if a measurement
failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from klamm.core.errors import KlammError
from klammbench import report
from klammbench.harness import BusyError, about, alone, end_on_signals, ignore_signals
from klammbench.load.connector import find_connector
from klammbench.load.shape import CELLS, KLAMM, RIVALS, SPARK, UNCLUSTERED, Loader, LoadShape
from klammbench.load.site import Site
from klammbench.paths import DOCS, RESULTS, VAR
from klammbench.pool import Pool
from klammbench.results import Store
from klammbench.rounds import Runner
from klammbench.systems.base import remove

RECORDS, QUICK_RECORDS = 10_000_000, 1_000_000
ROUNDS, QUICK_ROUNDS = 3, 2
QUICK_S = 11 * 60.0
"""Seconds after which a quick run begins no further round."""
PAGE = report.Page(
    name="benchmarks-load",
    template=Path(__file__).with_name("page.md"),
    command="make bench-load",
    rivals=RIVALS,
    compared="Klamm / Spark",
    rounds=ROUNDS,
    has_chart=False,
)
_FOLDER = VAR / "load"


def main() -> int:
    given = _arguments()
    end_on_signals()
    only = tuple(given.only.split(",")) if given.only else ()
    if unknown := [name for name in only if name not in CELLS]:
        print(f"no cell {', '.join(unknown)}; there are {', '.join(CELLS)}", file=sys.stderr)
        return 2
    store = Store(RESULTS, quick=given.quick)
    if not given.report:
        records = given.records or (QUICK_RECORDS if given.quick else RECORDS)
        rounds = given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS)
        try:
            with alone():
                _run(store, only, records, rounds, quick=given.quick)
        except (BusyError, KlammError, RuntimeError) as error:
            print(f"bench-load: {error}", file=sys.stderr)
            return 2
    folder = VAR / "quick" if given.quick else DOCS
    return 1 if report.write(store, {LoadShape.NAME: LoadShape(None)}, folder, page=PAGE) else 0


def _run(store: Store, only: tuple[str, ...], records: int, rounds: int, *, quick: bool) -> None:
    began = time.monotonic()
    find_connector()
    remove(_FOLDER)  # a killed run may have left files
    try:
        print(f"starting a broker and an HDFS, and writing {records:,} records", flush=True)
        with Site(_FOLDER, records, with_hdfs=any("hdfs" in name for name in only or CELLS)) as site:
            print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
            pool = Pool(dict.fromkeys((KLAMM, SPARK, UNCLUSTERED), Loader), _FOLDER / "systems")
            runner = Runner(pool, store, lambda line: print(line, flush=True))
            seconds = QUICK_S - (time.monotonic() - began) if quick else float("inf")
            said = {**about(quick=quick), "records": records}
            runner.run(LoadShape(site, only), quick=quick, rounds=rounds, about=said, seconds=seconds)
            ignore_signals()
    finally:
        ignore_signals()
        remove(_FOLDER)
    print(f"all took {(time.monotonic() - began) / 60:.1f} minutes", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="klammbench.load", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RECORDS:,} records, {QUICK_ROUNDS} rounds")
    parser.add_argument("--only", help=f"comma-separated names from {', '.join(CELLS)}")
    parser.add_argument("--records", type=int, help=f"instead of {RECORDS:,}")
    parser.add_argument("--rounds", type=int, help=f"instead of {ROUNDS}, or {QUICK_ROUNDS} with --quick")
    report.add_report_argument(parser, PAGE)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
