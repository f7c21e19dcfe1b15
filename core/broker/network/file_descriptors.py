"""File descriptors: raises the limit as far as the system allows, and divides it between connections and logs.

A soft limit of 1,024 is common and is meant for programs that use select(); a broker raises it to the hard limit, as
the JVM does.
"""

from __future__ import annotations

import logging
import resource

_LEAST_OTHERS = 256
_OTHERS = 128
_LEAST_SEGMENTS = 64
_MOST_SEGMENTS = 16_384
_FEW = 1_024
_log = logging.getLogger(__name__)


def take_all() -> None:
    """Raises this process's soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_connections() -> int:
    """Returns the number of descriptors for connections: three quarters of the limit, but at least 256 are left for
    the rest."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(hard - max(hard // 4, _LEAST_OTHERS), 1) if hard != resource.RLIM_INFINITY else 2**31 - 1


def for_logs() -> int:
    """Returns the number of segment files that all logs together may have open: what connections leave, less 128 for
    everything else; at least 64 and at most 16,384."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return _MOST_SEGMENTS
    if hard < _FEW:
        _log.warning("the limit of open files (ulimit -Hn) is %d: connections and segment files have to share it", hard)
    return min(max(hard // 4 - _OTHERS, _LEAST_SEGMENTS), _MOST_SEGMENTS)
