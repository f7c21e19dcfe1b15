"""Step 3: a registry group of three member processes, one of which is killed while it consumes."""

from __future__ import annotations

import signal
import sys
import time
from typing import NamedTuple

from ..processes import Child, Processes
from ..workspace import POSITION, Workspace

MEMBERS = 3
GROUP = "departures"
END_S = 60.0

Position = tuple[int, int]
"""(partition, offset)."""


class Taken(NamedTuple):
    """A member was assigned partitions; `at_s` since the epoch."""

    at_s: float
    member: str
    partitions: tuple[int, ...]


class Group:
    """A group of three members, one of which is killed."""

    def __init__(self, workspace: Workspace, processes: Processes) -> None:
        self._files = [workspace.seen(n) for n in range(MEMBERS)]
        self._taken = [workspace.taken(n) for n in range(MEMBERS)]
        self._members = [processes.start(f"member-{n}", _command(workspace, n)) for n in range(MEMBERS)]
        self._read = [0] * MEMBERS
        self._positions: set[Position] = set()
        self.killed: Child | None = None
        self._killed_at_s = 0.0

    def consumed(self) -> int:
        """Returns the distinct positions returned so far: records that a killed member had not committed are
        returned again."""
        for number, path in enumerate(self._files):
            if path.exists():
                with path.open("rb") as file:
                    file.seek(self._read[number])
                    new = file.read()
                whole = len(new) - len(new) % POSITION.size
                self._read[number] += whole
                self._positions.update(POSITION.iter_unpack(new[:whole]))
        return len(self._positions)

    def kill_one(self) -> str:
        """Kills the first member with -9; returns its name."""
        victim = self._members.pop(0)
        victim.kill()
        self.killed = victim
        self._killed_at_s = time.time()
        return victim.name

    def taken_over(self) -> list[Taken]:
        """Returns the partitions that the others were assigned after that, in the order of time."""
        found = []
        for number, path in enumerate(self._taken):
            for line in path.read_text().splitlines() if path.exists() else ():
                at_s, *partitions = line.split()
                found.append(Taken(float(at_s), f"member-{number}", tuple(map(int, partitions))))
        return sorted(each for each in found if self.killed is not None and each.at_s > self._killed_at_s)

    def check(self) -> None:
        for member in self._members:
            member.check()

    def finish(self) -> None:
        """Stops the members, which commit the records that they have consumed."""
        for member in self._members:
            member.signal(signal.SIGTERM)
        for member in self._members:
            member.succeed(END_S)


def _command(workspace: Workspace, number: int) -> list[str]:
    module = "klamm.plugins.demo.consuming"
    files = (str(workspace.seen(number)), str(workspace.taken(number)))
    return [sys.executable, "-m", module, str(workspace.config), GROUP, *files]
