"""Step 4: the load job runs beside everything else, is killed once between staging and publishing, and is restarted."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..flights import TOPIC
from ..lake import lake_files
from ..processes import KLAMM, Child, DemoError, Processes
from ..workspace import Workspace

SINK = "lake"
EVERY = "2s"
END_S = 120.0


@dataclass(frozen=True)
class Range:
    """Offsets of one partition, from `start` up to `end`."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class Published:
    """A visible load, from its `_offsets.json`; and the number of days with rows."""

    number: int
    rows: int
    files: int
    created_ms: int
    days: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Run:
    """One run of the job, as it reports it; instants in seconds since the epoch."""

    status: str
    from_s: float
    to_s: float
    load: int | None
    error: str | None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Run:
        started = datetime.fromisoformat(said["started"]).timestamp()
        load = next((topic["load"] for topic in said["topics"]), None)
        return cls(said["status"], started, started + said["seconds"], load, said.get("error"))


class PeriodicLoad:
    """`klamm load --every`, one process; `runs` are its completed runs."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self.runs: list[Run] = []

    def has_died(self) -> bool:
        """Returns True if it was ended by kill -9; raises `DemoError` if a run failed, or it has ended otherwise."""
        self.take_runs()
        return self._child.process.poll() == -signal.SIGKILL

    def take_runs(self) -> list[Run]:
        """Returns the runs that ended since the last call; raises `DemoError` if one failed, or the process ended by
        itself.
        """
        said = [line for line in self._child.output().splitlines(keepends=True) if line.startswith("{")]
        new = [Run.of(json.loads(line)) for line in said[len(self.runs) :] if line.endswith("\n")]
        self.runs += new
        for run in new:
            if run.status == "failed":
                raise DemoError(f"a run of {self._child.name} failed: {run.error} (see its log)")
        if self._child.process.poll() not in (None, -signal.SIGKILL):
            raise self._child.failed()
        return new

    def clear(self) -> None:
        """Kills the remaining processes of a killed driver, such as its JVM."""
        self._child.signal(signal.SIGKILL)

    def stop(self) -> None:
        """Sends SIGTERM to the driver and not to its JVM: the driver ends after its current run."""
        self._child.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Waits for the end after `stop`. Raises `DemoError` if the process does not end in time, or fails."""
        self._child.succeed(END_S)


class Loads:
    """Starts the job, and finds its published loads by reading the lake, not from the job's output."""

    def __init__(self, workspace: Workspace, processes: Processes) -> None:
        self._workspace = workspace
        self._processes = processes
        self._started = 0
        self._lake = lake_files(workspace)
        self.published: list[Published] = []

    def start(self, environment: Mapping[str, str] | None = None) -> PeriodicLoad:
        self._started += 1
        command = [*KLAMM, "load", SINK, "--every", EVERY, "--json", "--config", str(self._workspace.offline)]
        return PeriodicLoad(self._processes.start(f"load-{self._started}", command, environment))

    def start_doomed(self) -> PeriodicLoad:
        """Starts a job that dies between staging and publishing its second load, at its own fault point."""
        return self.start({"KLAMM_FAULTS": "load.staged@2=kill"})

    def staged(self) -> int:
        """Returns how many staging directories there are."""
        return len(self._lake.folders(f"{TOPIC}/_staging"))

    def rows(self) -> int:
        """Returns the rows of all loads that were visible at the last `find`."""
        return sum(load.rows for load in self.published)

    def find(self) -> list[Published]:
        """Returns the loads that have become visible, in their order."""
        known = {load.number for load in self.published}
        new = []
        for name in sorted(self._lake.folders(TOPIC)):
            if name.startswith("load=") and int(name.removeprefix("load=")) not in known:
                new.append(self._read(f"{TOPIC}/{name}"))
        self.published += new
        return new

    def _read(self, path: str) -> Published:
        said = json.loads(self._lake.read(f"{path}/_offsets.json"))
        days = sum(folder.startswith("dt=") for folder in self._lake.folders(path))
        ranges = [Range(int(number), part["from"], part["to"]) for number, part in said["partitions"].items()]
        ranges.sort(key=lambda each: each.partition)
        return Published(said["load"], said["rows"], said["files"], said["created_ms"], days, tuple(ranges))
