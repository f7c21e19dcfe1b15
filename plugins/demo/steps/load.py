"""Step 4: the load job in increments, killed once between staging and publishing, and run again."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass

from klamm.plugins.demo.flights import TOPIC
from klamm.plugins.demo.lake import lake_files
from klamm.plugins.demo.processes import KLAMM, DemoError, Processes
from klamm.plugins.demo.workspace import Workspace

SINK = "lake"
LOAD_S = 600.0


@dataclass(frozen=True)
class Published:
    """A load that readers see, as its `_offsets.json` says."""

    number: int
    rows: int
    files: int


class Loads:
    """Runs `klamm load`, one at a time."""

    def __init__(self, workspace: Workspace, processes: Processes) -> None:
        self._workspace = workspace
        self._processes = processes
        self.started = 0
        self._lake = lake_files(workspace)
        self._published: list[Published] = []

    def run(self) -> Published:
        """One increment; `DemoError` when it fails or publishes nothing."""
        before = self._published
        self._start({})
        self._published = self._find()
        if len(self._published) != len(before) + 1:
            raise DemoError(f"load {self.started} published {len(self._published) - len(before)} loads, not one")
        return self._published[-1]

    def run_killed(self) -> int:
        """One increment that dies between staging and publishing (kill -9, at the job's own fault point); how many
        staging directories it leaves."""
        self._start({"KLAMM_FAULTS": "load.staged=kill"}, -signal.SIGKILL)
        if self._find() != self._published:
            raise DemoError("a load that was killed before publishing has published something")
        return len(self._lake.folders(f"{TOPIC}/_staging"))

    def rows(self) -> int:
        """Of all loads that were visible when the last one had ended."""
        return sum(load.rows for load in self._published)

    def _find(self) -> list[Published]:
        """The loads that are visible now, in their order."""
        found = []
        for name in sorted(self._lake.folders(TOPIC)):
            if name.startswith("load="):
                said = json.loads(self._lake.read(f"{TOPIC}/{name}/_offsets.json"))
                found.append(Published(said["load"], said["rows"], said["files"]))
        return found

    def _start(self, environment: dict[str, str], expected: int = 0) -> None:
        self.started += 1
        name = f"load-{self.started}"
        command = [*KLAMM, "load", SINK, "--config", str(self._workspace.config)]
        child = self._processes.run(name, command, LOAD_S, environment)
        child.signal(signal.SIGKILL)  # a killed driver may leave its JVM behind
        if child.process.returncode != expected:
            raise child.failed()
