"""Finds the process that holds the write lock of an SQLite file in WAL mode, for error messages.

The lock is a POSIX lock on one byte of the `-shm` file, which the kernel lists in `/proc/locks` with its process. The
file itself is not opened here, since closing it would release this process's own locks on it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_WRITE_LOCK_BYTE: Final = 120  # UNIX_SHM_BASE + WAL_WRITE_LOCK of SQLite's os_unix.c and wal.c
_LONGEST: Final = 80
_STOPPED: Final = "Tt"


def write_lock_holder(database: Path, locks: Path = Path("/proc/locks")) -> str:
    """Returns a phrase such as `by process 4711 (python consumer.py), which is stopped: ...`."""
    pid = _holder(database, locks)
    if pid is None:
        return "by another process"
    if pid == os.getpid():
        return f"by this process, {pid}"
    if pid <= 0:
        return "by a process of another container"
    text = f"by process {pid}{_command(pid)}"
    if _state(pid) in _STOPPED:
        text += f", which is stopped: `kill -CONT {pid}` continues it, `kill -9 {pid}` ends it"
    return text


def _holder(database: Path, locks: Path) -> int | None:
    try:
        inode = database.with_name(database.name + "-shm").stat().st_ino
        lines = locks.read_text().splitlines()
    except OSError:
        return None  # not Linux, or the file does not exist any more
    for line in lines:
        fields = line.split()  # number: POSIX ADVISORY WRITE pid major:minor:inode first last
        if len(fields) == 8 and fields[1] in ("POSIX", "OFDLCK") and fields[3] == "WRITE":
            first, last = int(fields[6]), _last(fields[7])
            if int(fields[5].rpartition(":")[2]) == inode and first <= _WRITE_LOCK_BYTE <= last:
                return int(fields[4])
    return None


def _last(text: str) -> int:
    return 2**63 - 1 if text == "EOF" else int(text)


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    text = b" ".join(words).decode(errors="replace").strip()
    text = " ".join(text.split())
    return f" ({text[:_LONGEST]}{'…' if len(text) > _LONGEST else ''})" if text else ""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"
