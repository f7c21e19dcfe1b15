"""Measures the cost of processes from /proc: CPU seconds and memory of whole process trees."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_CPUCLOCK_SCHED = 2


def tree(root: int) -> list[int]:
    """Returns the ids of `root` and all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        if _stat(pid):
            found.append(pid)
        waiting.extend(children.get(pid, ()))
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Returns user and system time so far, of all threads, those that have ended included, in steps of 1 ns; a process
    that has ended counts 0."""
    return sum(_cpu_seconds(pid) for pid in pids)


def _cpu_seconds(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)  # what clock_getcpuclockid(3) makes of a pid
    except OSError:
        return 0.0


def cpu_kernel(pids: Iterable[int]) -> float:
    """Returns the system time alone, in steps of 10 ms."""
    return sum(int(f[12]) * _TICK_S for pid in pids if (f := _stat(pid)))


def pss_bytes(pids: Iterable[int]) -> int:
    """Returns the proportional set size: a shared page is divided among its sharers. A process that has ended
    counts 0.
    """
    total = 0
    for pid in pids:
        try:
            text = (_PROC / str(pid) / "smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in text.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def bytes_from_disk(pids: Iterable[int]) -> int:
    """Returns the bytes that the processes have read from disk so far, because the page cache did not have them."""
    total = 0
    for pid in pids:
        fields = dict(line.split(": ") for line in (_PROC / str(pid) / "io").read_text().splitlines())
        total += int(fields["read_bytes"])
    return total


def disk_bytes(folder: Path) -> int:
    """Returns the disk space that the files below `folder` take (sparse and preallocated parts as the system counts
    them).
    """
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(directory) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue  # deleted since it was listed
    return total


def _stat(pid: int) -> list[str] | None:
    """Returns the fields of /proc/PID/stat after the name (0 is the state, 1 the parent); None if the process has
    ended.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields
