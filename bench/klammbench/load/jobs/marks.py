"""Writes the times of a program's steps to a file: by name, seconds since its process was started."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Marks:
    """The file is written at each mark, so that it also shows how far a killed program came."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin = _started()
        self.seconds: dict[str, float] = {}
        self.facts: dict[str, float] = {}

    def mark(self, name: str) -> None:
        """Records the time of `name`; only the first call for a name counts."""
        self.seconds.setdefault(name, time.clock_gettime(time.CLOCK_BOOTTIME) - self._begin)
        self._write()

    def fact(self, name: str, value: float) -> None:
        self.facts[name] = value
        self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps({"seconds": self.seconds, "facts": self.facts}))


def _started() -> float:
    """Returns when this process was started, in seconds of CLOCK_BOOTTIME, in steps of 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
