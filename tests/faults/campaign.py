"""`make faults`: runs campaigns that inject faults into logs and brokers, and checks what survives.

Every campaign prints one line, and an indented one with further figures and its seconds:

    campaign NAME injected N acknowledged N lost N corrupt-served N

The exit status is 1 if a campaign fails; the command that replays it is printed, with the seed and, if the failure
belongs to one injection, its number. With `--plant` each campaign plants an anomaly of its own kind and must fail: exit
1 if each of them was found, 3 if one was not. Exit 2, before anything runs, if `--report` names no page with the
target's markers; also if the page could not be written at the end.

Two campaigns run at a time, beside a third that mostly waits, each in a process of its own; those that measure times
run alone. `--loads` runs the campaigns of loads into HDFS instead (`make faults-load`), one after the other in one
process, because they share an HDFS, a broker and drivers. `--cluster` runs those of three brokers that replicate
(`make faults-cluster`), two at a time, each in a process of its own; `--mirror` those of a cluster that mirrors another
one (`make faults-mirror`). `--jobs` is another number of campaigns at a time:
those of a cluster mostly wait.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TextIO

import psutil

from harness import Campaign, Kept, Result, Run, all_campaigns
from klammtest.pages.figures import report_failure, report_page
from logs.template import scratch
from report import Row, write_report

AT_A_TIME = 2
LIMIT_S = 3_600.0
"""Limit for one campaign, in seconds; each has shorter limits of its own."""
SOAK, SOAK_S = "soak", 8 * 3_600.0
"""The campaign that is bounded by time, and its longest time where `--soak` gives none, in seconds."""
_POLL_S = 0.1
_PATIENCE_S = 20.0
"""How long terminated campaigns may take to close what they have started."""
LONGEST_FIRST = ("soak", "fuzz-decoder", "fuzz-captures", "kill9-klamm", "kill9-confluent-kafka", "kill-at-fault-point")
WAITING = (
    "clock-jump-process",
    "offset-store-kill",
    "fsync-eio-syscall",
    "disk-full",
    "paused-coordinator",
    "paused-broker",
    "deleted-kill",
    "audit-kill",
    "restored-log",
    "two-brokers",
)
"""Campaigns that mostly wait (for brokers, retention, time-outs); the longest first."""
ALONE = ("connections",)
KINDS = {"loads": "faults-load", "cluster": "faults-cluster", "mirror": "faults-mirror"}
"""Packages of further campaigns, which are options too, with their make target."""


def in_this_process(campaign: Campaign, run: Run) -> Result:
    """Runs one campaign. A campaign that raises has failed, and its kept objects are closed. A replay wants one
    injection only.
    """
    try:
        result = campaign.run(run)
    except Exception:
        result = Result(wanted=1)
        result.break_off(traceback.format_exc())
        run.kept.close()
    if run.only is not None:
        result.wanted = min(result.wanted, 1)
    return result


def in_its_own(name: str, options: argparse.Namespace) -> tuple[Result, float]:
    """Runs a campaign in its own process; returns its result and its duration in seconds."""
    ((_, result, seconds),) = in_one_process([name], options)
    return result, seconds


def in_one_process(names: Sequence[str], options: argparse.Namespace) -> Iterator[tuple[str, Result, float]]:
    """Yields name, result and seconds of each campaign as they end: one after another in one process, and in a new
    process after a campaign that ended the process.
    """
    left = list(names)
    while left:
        command = [sys.executable, __file__, *left, "--child", "--seed", str(options.seed)]
        command += ["--quick"] * options.quick + ["--plant"] * options.plant
        command += [f"--{kind}" for kind in KINDS if getattr(options, kind)]
        command += [] if options.at is None else ["--at", str(options.at)]
        command += [] if options.soak is None else ["--soak", str(options.soak)]
        with tempfile.NamedTemporaryFile() as said, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(command, stdout=said, stderr=err)
            with Path(said.name).open() as out:  # a second file object: its position is not that of the writing process
                for result, seconds in _results_of(process, out, _limit_s(left, options)):
                    yield left.pop(0), result, seconds
            if left:
                err.seek(0)
                result = Result(wanted=1)
                result.break_off(f"the campaign's process died, exit code {process.returncode}: {err.read()[-2_000:]}")
                yield left.pop(0), result, 0.0


def _limit_s(names: Sequence[str], options: argparse.Namespace) -> float:
    """Returns the limit for each of these campaigns, in seconds."""
    return LIMIT_S + (max(SOAK_S, 60 * (options.soak or 0)) if SOAK in names else 0.0)


def _results_of(process: subprocess.Popen[bytes], out: TextIO, limit_s: float) -> Iterator[tuple[Result, float]]:
    """Yields the results that a child prints, until it ends, or is killed because a campaign takes too long."""
    began, unread = time.monotonic(), ""
    while True:
        ended = process.poll() is not None
        while (unread := unread + out.readline()).endswith("\n"):
            if unread.startswith("{"):
                yield Result(**json.loads(unread)), time.monotonic() - began
                began = time.monotonic()
            unread = ""
        if ended:
            return
        if time.monotonic() - began > limit_s:
            _end(process)
        time.sleep(_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and all that it has started, brokers included."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for one in started:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def _terminated(number: int, _: object) -> None:
    """Ends the children, which close what they have started, and then this process, whose threads wait for them."""
    started = psutil.Process().children(recursive=True)
    for one in psutil.Process().children():
        one.terminate()
    for one in psutil.wait_procs(started, timeout=_PATIENCE_S)[1]:
        one.kill()
    os._exit(128 + number)


def child(names: Sequence[str], options: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    known = all_campaigns(_package(options), names)
    with tempfile.TemporaryDirectory(prefix="klamm-faults-", dir=scratch()) as folder:
        kept = Kept(Path(folder, "kept"))
        try:
            for name in names:
                own = Path(folder, name)
                own.mkdir()
                soak_s = None if options.soak is None else 60 * options.soak
                run = Run(name, options.seed, options.quick, options.plant, own, kept, options.at, soak_s)
                result = in_this_process(known[name], run)
                shutil.rmtree(own)
                print(json.dumps(asdict(result)), flush=True)
        finally:
            kept.close()
    return 0


def say(name: str, result: Result, seconds: float, options: argparse.Namespace) -> None:
    """Prints the campaign's line, its figures and problems, and the command that replays it."""
    further = "".join(f"{figure} {n} " for figure, n in result.figures.items())
    print(f"{result.line(name)}\n  {further}seconds {seconds:.0f}", flush=True)
    if options.plant:
        print(f"  plant {'found' if result.found else 'NOT FOUND: this campaign is blind to it'}", flush=True)
        for problem in result.problems[:1]:
            print(f"  {problem.strip().splitlines()[-1]}", flush=True)
        return
    if result.passed:
        return
    if result.injected < result.wanted:
        print(f"  {result.injected} faults injected, {result.wanted} wanted")
    for problem in result.problems:
        print(f"  {problem}")
    if result.problem_count > len(result.problems):
        print(f"  and {result.problem_count - len(result.problems)} more")
    short = " QUICK=1" if options.quick else ""
    print(
        f"  replay: make {_target(options)} ONLY={name} SEED={options.seed}{short} (AT=n for the injection n alone)",
        flush=True,
    )


def run_all(names: list[str], options: argparse.Namespace) -> int:
    began = time.monotonic()
    print(f"{_target(options)}: seed {options.seed}, {len(names)} campaigns", flush=True)
    rows: list[Row] = []
    unwritten: str | None = None
    for name, result, seconds in _results(names, options):
        say(name, result, seconds, options)
        rows.append(Row(name, result, seconds))
        if options.report:  # after each campaign, so that an interrupted run reports its figures too
            unwritten = report_failure(partial(_report, rows, options, time.monotonic() - began))
    seconds = time.monotonic() - began
    bad = [r.name for r in rows if (not r.result.found if options.plant else not r.result.passed)]
    good, ill = ("plants found", "NOT FOUND") if options.plant else ("campaigns passed", "FAILED")
    print(
        f"{_target(options)}: {len(rows) - len(bad)} of {len(rows)} {good}" + f"; {ill}: {', '.join(bad)}" * bool(bad)
    )
    print(f"{_target(options)}: {seconds:.0f} s")
    if unwritten:
        print(f"{_target(options)}: {unwritten}", file=sys.stderr)
        return 2
    if options.plant:
        return 3 if bad else 1
    return 1 if bad else 0


def _report(rows: list[Row], options: argparse.Namespace, seconds: float) -> None:
    write_report(options.report, _target(options), all_campaigns(_package(options)), rows, options, seconds)


def _results(names: list[str], options: argparse.Namespace) -> Iterator[tuple[str, Result, float]]:
    """Yields results as campaigns end; the longest start first, those that need the machine for themselves last."""
    if options.loads:
        yield from in_one_process(names, options)
        return
    order = LONGEST_FIRST + WAITING
    together = [name for name in names if name not in ALONE]
    together.sort(key=lambda n: order.index(n) if n in order else len(order))
    with ThreadPoolExecutor(options.jobs) as busy, ThreadPoolExecutor(1) as beside:
        running = {(beside if n in WAITING else busy).submit(in_its_own, n, options): n for n in together}
        for done in as_completed(running):
            yield running[done], *done.result()
    for name in names:
        if name in ALONE:
            yield name, *in_its_own(name, options)


def _package(options: argparse.Namespace) -> str:
    return next((f"{kind}.campaigns" for kind in KINDS if getattr(options, kind)), "campaigns")


def _target(options: argparse.Namespace) -> str:
    return next((target for kind, target in KINDS.items() if getattr(options, kind)), "faults")


def main() -> int:
    which = argparse.ArgumentParser(add_help=False)
    kinds = which.add_mutually_exclusive_group()
    kinds.add_argument("--loads", action="store_true", help="the campaigns of loads into HDFS")
    kinds.add_argument("--cluster", action="store_true", help="the campaigns of three brokers that replicate")
    kinds.add_argument("--mirror", action="store_true", help="the campaigns of a cluster that mirrors another one")
    kind = which.parse_known_args()[0]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[which]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="all by default")
    parser.add_argument("--quick", action="store_true", help="few injections, seconds")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--at", type=int, help="this injection alone")
    parser.add_argument("--jobs", type=int, default=AT_A_TIME, help="how many campaigns run at a time")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="how long the campaign soak injects faults")
    parser.add_argument("--plant", action="store_true", help="plant an anomaly in each: each must fail; few injections")
    page = report_page(_target(kind))
    parser.add_argument("--report", type=page, metavar="PAGE", help="write the figures into this page")
    parser.add_argument("--tools", action="store_true", help="name the system commands that they need, and end")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.soak is not None and not options.soak > 0:
        parser.error("--soak is a number of minutes, and positive")
    if options.jobs < 1:
        parser.error("--jobs is a number of campaigns, 1 or more")
    options.quick |= options.plant  # the plant is among the first injections
    known = all_campaigns(_package(options), options.names)
    for name in options.names:
        if name not in known:
            parser.error(f"no campaign {name!r}: there are {', '.join(known)}")
    names = options.names or list(known)
    if options.child:
        return child(names, options)
    if options.tools:
        print(" ".join(sorted({tool for name in names for tool in known[name].tools})))
        return 0
    signal.signal(signal.SIGTERM, _terminated)
    return run_all(names, options)


if __name__ == "__main__":
    sys.exit(main())
