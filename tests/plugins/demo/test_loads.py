"""The demo's load job: what it says run by run, how it ends, and what is visible in the lake."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from klamm.plugins.demo.processes import DemoError, Processes
from klamm.plugins.demo.steps.load import Loads, PeriodicLoad, Range
from klamm.plugins.demo.workspace import Workspace

RUN = {"status": "loaded", "started": "2026-11-22T10:00:00.500+00:00", "seconds": 2.25}


def said(load: int | None = 1, **more: Any) -> str:
    return json.dumps({**RUN, "topics": [{"topic": "flights", "load": load}], **more})


def job(processes: Processes, *lines: str, end: str = "time.sleep(600)") -> PeriodicLoad:
    program = f"import os, sys, time; print({chr(10).join(lines)!r}, flush=True); {end}"
    child = processes.start("load", [sys.executable, "-c", program])
    child.end_input()
    return PeriodicLoad(child)


def until(found: Any) -> Any:
    for _ in range(3000):
        if value := found():
            return value
        signal.sigtimedwait([], 0.02)
    raise AssertionError("it did not come about")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.make(tmp_path)


def test_each_run_is_told_once(workspace: Workspace) -> None:
    with Processes(workspace.logs) as processes:
        loading = job(processes, "klamm: a warning", said(), said(None, status="empty"))
        until(lambda: loading.has_died() or len(loading.runs) == 2)  # a look may find the first line alone
        first, second = loading.runs
        assert (first.status, first.load, first.to_s - first.from_s) == ("loaded", 1, 2.25)
        assert (second.status, second.load) == ("empty", None)
        assert loading.take_runs() == []
        assert not loading.has_died()
        loading.stop()
        with pytest.raises(DemoError, match="load ended with status -15"):
            loading.end()


def test_a_job_that_is_killed_has_died_and_one_that_ends_otherwise_has_failed(workspace: Workspace) -> None:
    with Processes(workspace.logs) as processes:
        killed = job(processes, said(), end="os.kill(os.getpid(), 9)")
        until(killed.has_died)
        killed.clear()
        ended = job(processes, said(), end="sys.exit('no luck')")
        with pytest.raises(DemoError, match="load ended with status 1: no luck"):
            until(ended.has_died)


def test_a_run_that_failed_ends_the_demo(workspace: Workspace) -> None:
    with Processes(workspace.logs) as processes:
        loading = job(processes, said(None, status="failed", error="1 of 1 topics not loaded: flights"))
        with pytest.raises(DemoError, match="a run of load failed: 1 of 1 topics not loaded"):
            until(loading.take_runs)


def test_what_is_visible_is_read_from_the_lake(workspace: Workspace) -> None:
    with Processes(workspace.logs) as processes:
        loads = Loads(workspace, processes)
        assert (loads.find(), loads.rows(), loads.staged()) == ([], 0, 0)
        folder = Path(workspace.lake, "flights", "load=000001")
        for day in ("dt=2013-01-01", "dt=2013-01-02"):
            (folder / day).mkdir(parents=True)
        manifest = {"load": 1, "rows": 7, "files": 2, "created_ms": 5,
                    "partitions": {"1": {"from": 0, "to": 4}, "0": {"from": 0, "to": 3}}}  # fmt: skip
        (folder / "_offsets.json").write_text(json.dumps(manifest))
        (Path(workspace.lake) / "flights" / "_staging" / "half").mkdir(parents=True)
        [load] = loads.find()
        assert (load.number, load.rows, load.files, load.days) == (1, 7, 2, 2)
        assert load.ranges == (Range(0, 0, 3), Range(1, 0, 4))
        assert (loads.find(), loads.rows(), loads.staged()) == ([], 7, 1)
