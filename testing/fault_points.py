"""Installs a hook at the fault points of this process (`klamm.plugin.fault_point`) for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from klamm.core import faults
from klamm.core.faults import FaultHook

__all__ = ["FaultHook", "fault_hook"]


@contextmanager
def fault_hook(hook: FaultHook) -> Iterator[None]:
    """Calls `hook` with the name of every fault point that this process passes, on all threads."""
    faults.install(hook)
    try:
        yield
    finally:
        faults.install(None)
