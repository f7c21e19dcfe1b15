"""File descriptors: as many as the system allows, and how many of them connections may have.

A soft limit of 1,024 is common and is meant for programs that use select(); a broker takes all that it may, as the JVM
does.
"""

from __future__ import annotations

import resource

_LEAST_OTHERS = 256


def take_all() -> None:
    """Raise this process's soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_connections() -> int:
    """Three quarters of what there may be, at least 256 being left for logs and all else."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(hard - max(hard // 4, _LEAST_OTHERS), 1) if hard != resource.RLIM_INFINITY else 2**31 - 1
