"""Moves the wall clock of a running process; its monotonic clock and its waits are not affected.

libfaketime 0.9.10 cannot do this to a driver: with FAKETIME_DONT_FAKE_MONOTONIC Python 3.11's `time.sleep` ends in
EINVAL, and the timed waits of a JVM return at once, so that it spins.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

TOOLS = ("gcc=gcc",)
_SOURCE = Path(__file__).with_suffix(".c")


class SkewedClock:
    """The wall clock of the processes that are started with `environment`. `folder` holds its files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._library = folder / "skewed_clock.so"
        self._file = folder / "clock.ahead"
        self.ahead_s = 0
        """The seconds by which this clock is ahead of the true one."""
        self.set(0)
        command = ("gcc", "-O2", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE), "-ldl")
        subprocess.run(command, check=True)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "KLAMM_CLOCK_AHEAD": str(self._file)}

    def set(self, ahead_s: int) -> None:
        """Sets the clock to `ahead_s` seconds ahead of the true time, at once."""
        self.ahead_s = ahead_s
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write((ahead_s * 1_000_000_000).to_bytes(8, "little", signed=True))
