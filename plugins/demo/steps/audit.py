"""Step 5: `klamm audit`, the table by month and tier, and the lowest completeness of all windows."""

from __future__ import annotations

import json

from klamm.plugins.demo.processes import KLAMM, DemoError, Processes
from klamm.plugins.demo.workspace import Workspace

AUDIT_S = 300.0


def audit_table(workspace: Workspace, processes: Processes, wait_s: float) -> str:
    """What `klamm audit --by month` prints; it asks again for up to `wait_s` until everything is complete."""
    command = [*KLAMM, "audit", "--by", "month", "--wait", str(wait_s), "--config", str(workspace.config)]
    child = processes.run("audit", command, AUDIT_S)
    if child.process.returncode not in (0, 1):
        raise child.failed()
    return child.output().rstrip()


def completeness(workspace: Workspace, processes: Processes) -> tuple[float | None, bool]:
    """The lowest ratio over all windows and tiers (None: one is unknown), and whether the audit finds all complete."""
    child = processes.run("audit-json", [*KLAMM, "audit", "--json", "--config", str(workspace.config)], AUDIT_S)
    try:
        [topic] = json.loads(child.output())["topics"]
    except ValueError as error:
        raise child.failed() from error
    lowest = topic["lowest"]
    if not (lowest is None or isinstance(lowest, float)):
        raise DemoError(f"`klamm audit --json` says {lowest!r} of completeness")
    return lowest, child.process.returncode == 0
