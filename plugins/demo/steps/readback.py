"""Step 6: the lake, read back with Spark."""

from __future__ import annotations

import sys
from collections import Counter

from klamm.plugins.demo.processes import Processes
from klamm.plugins.demo.workspace import Workspace

READ_S = 600.0


def lake_keys(workspace: Workspace, processes: Processes) -> Counter[str]:
    """How often the lake holds each flight, by the flight's own key."""
    keys = workspace.root / "lake-keys.txt"
    command = [sys.executable, "-m", "klamm.plugins.demo.reading", str(workspace.lake), str(keys)]
    reader = processes.run("readback", command, READ_S)
    if reader.process.returncode != 0:
        raise reader.failed()
    return Counter(keys.read_text().split())
