"""When a program did what: seconds since its process was started, by name, in a file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Marks:
    """Written at each mark: a program that dies has told how far it came."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin = _started()
        self.seconds: dict[str, float] = {}
        self.facts: dict[str, float] = {}

    def mark(self, name: str) -> None:
        """The first time counts."""
        self.seconds.setdefault(name, time.clock_gettime(time.CLOCK_BOOTTIME) - self._begin)
        self._write()

    def fact(self, name: str, value: float) -> None:
        self.facts[name] = value
        self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps({"seconds": self.seconds, "facts": self.facts}))


def _started() -> float:
    """When this process was started, by the clock since the machine's start; to 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
