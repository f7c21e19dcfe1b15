"""Step 1, beside the live cluster: the offline one, a broker that mirrors it. It is killed on the way, and started
again.

What it has copied is counted in its segments.
"""

from __future__ import annotations

from pathlib import Path

from klamm.core.records.header import iter_headers

from ..flights import TOPIC
from ..processes import KLAMM, Child, Processes, wait_for
from ..workspace import Workspace

START_S = 180.0
LINKS = ("live", "live-audit")
"""The links of `offline.yaml`."""
SCHEMAS = "_schemas"


class CopiedRecords:
    """The records in the segments of a topic that grow; reads only what is new."""

    def __init__(self, log: Path, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._read: dict[Path, int] = {}
        self._records = 0

    def count(self) -> int:
        for segment in self._log.glob(f"{self._topic}-*/*.log"):
            with segment.open("rb") as file:
                file.seek(self._read.setdefault(segment, 0))
                for _, header in iter_headers(file.read()):
                    self._read[segment] += header.size
                    self._records += 0 if header.is_control else header.record_count
        return self._records


class Mirror:
    """The offline broker, which starts at once."""

    def __init__(self, workspace: Workspace, processes: Processes) -> None:
        self._workspace = workspace
        self._processes = processes
        self._flights = CopiedRecords(workspace.mirror_log, TOPIC)
        self._schemas = CopiedRecords(workspace.mirror_log, SCHEMAS)
        self._creating: list[Child] = []
        self._broker = self._start("offline")

    def follow(self) -> None:
        """Runs `klamm mirror create` for each link, and returns at once."""
        for link in LINKS:
            command = [*KLAMM, "mirror", "create", link, "--config", str(self._workspace.offline)]
            child = self._processes.start(f"mirror-{link}", command)
            child.end_input()
            self._creating.append(child)

    def await_start(self) -> None:
        """Waits until the broker is ready. Raises `DemoError` if it ends, or is not in time."""
        wait_for(lambda: self.ready, "the start of the offline broker", START_S, self._broker)

    @property
    def ready(self) -> bool:
        return "klamm broker ready" in self._broker.output()

    def flights(self) -> int:
        """Returns how many flights have been copied."""
        return self._flights.count()

    def schemas(self) -> int:
        """Returns how many records of the topic of schemas have been copied."""
        return self._schemas.count()

    def kill(self) -> None:
        """Kills the broker with -9, and starts it again at once."""
        self._broker.kill()
        self._broker = self._start("offline-again")

    def check(self) -> None:
        """Raises `DemoError` if the broker has ended, or a link could not be created."""
        self._broker.check()
        for child in self._creating:
            if not child.running and child.process.returncode != 0:
                raise child.failed()

    def _start(self, name: str) -> Child:
        return self._processes.start(name, [*KLAMM, "broker", "--config", str(self._workspace.offline)])
