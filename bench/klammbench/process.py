"""What processes cost, from /proc: CPU seconds and memory of whole trees."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """`root` and all below it that are alive."""
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
    """User and system time so far, of all threads, 10 ms steps; a process that has ended counts nothing."""
    return sum((int(f[11]) + int(f[12])) * _TICK_S for pid in pids if (f := _stat(pid)))


def cpu_kernel(pids: Iterable[int]) -> float:
    """As `cpu_seconds`, the system time alone."""
    return sum(int(f[12]) * _TICK_S for pid in pids if (f := _stat(pid)))


def cpu_exact(pids: Iterable[int]) -> float:
    """As `cpu_seconds`, in nanosecond steps, of the threads that are alive: for what costs little."""
    total = 0
    for pid in pids:
        for task in (_PROC / str(pid) / "task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread has ended
    return total / 1e9


def pss_bytes(pids: Iterable[int]) -> int:
    """Proportional set size: shared pages are divided among those who share them. A process that has ended has none."""
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
    """What they have read so far that the page cache did not have."""
    total = 0
    for pid in pids:
        fields = dict(line.split(": ") for line in (_PROC / str(pid) / "io").read_text().splitlines())
        total += int(fields["read_bytes"])
    return total


def disk_bytes(folder: Path) -> int:
    """Blocks that the files below `folder` take on disk (sparse and preallocated parts as the system counts them)."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(directory) / name).stat().st_blocks * 512
            except FileNotFoundError:
                continue  # deleted meanwhile
    return total


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name (so 0 is the state, 1 the parent); None when it has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields
