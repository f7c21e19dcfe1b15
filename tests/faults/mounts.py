"""A small file system in the process's own mount namespace: it disappears when the process and its children have
ended.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x0002_0000, 0x1000_0000
_MNT_DETACH = 2
_MS_REC, _MS_PRIVATE = 0x4000, 0x4_0000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """Mounts a tmpfs of that size on `folder`, visible to this process and its children. Needs root, or a kernel that
    gives users namespaces; else raises `OSError`.
    """
    flags, uid, gid = _CLONE_NEWNS, os.getuid(), os.getgid()
    if uid:
        flags |= _CLONE_NEWUSER
    _check(_libc.unshare(flags), "unshare")
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate /")
    _check(_libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=%dm" % megabytes), f"mount {folder}")
    try:
        yield
    finally:
        _check(_libc.umount2(os.fsencode(folder), _MNT_DETACH), f"umount {folder}")


def _check(status: int, what: str) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
