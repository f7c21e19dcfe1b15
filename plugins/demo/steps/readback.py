"""Step 6: the lake, read back with Spark."""

from __future__ import annotations

import sys
from collections import Counter

from ..processes import Child, Processes
from ..workspace import Workspace

READ_S = 600.0


class Readback:
    """Counts each flight in the lake, by the flight's own key; starts when it is created."""

    def __init__(self, workspace: Workspace, processes: Processes) -> None:
        self._keys = workspace.root / "lake-keys.txt"
        command = [sys.executable, "-m", "klamm.plugins.demo.reading", str(workspace.lake), str(self._keys)]
        self._child: Child = processes.start("readback", command)
        self._child.end_input()

    def keys(self) -> Counter[str]:
        """Waits for the count and returns it; raises `DemoError` if it failed."""
        self._child.succeed(READ_S)
        return Counter(self._keys.read_text().split())
