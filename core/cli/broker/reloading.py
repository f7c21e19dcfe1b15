"""Makes a broker on this host reload its file, and reads the outcome."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from ...broker.dynamic_config.reload import OUTCOME, ReloadOutcome, read_outcome
from ...errors import KlammError
from ...log.log_directory import holder
from .background import signal_broker

_TIMEOUT_S = 30.0


def reload_broker(directory: Path) -> ReloadOutcome:
    """Sends SIGHUP to the process that holds the log directory and returns the outcome. Raises `KlammError` if there is
    no such process, or it does not write an outcome in time."""
    process = holder(directory)
    if process is None:
        raise KlammError(f"no broker runs on {directory}, so none can reload its file")
    before = _version(directory)
    signal_broker(process, directory, signal.SIGHUP)
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        if _version(directory) != before and (outcome := read_outcome(directory)) is not None:
            return outcome
        time.sleep(0.02)
    raise KlammError(f"the broker (process {process}) did not report an outcome within {_TIMEOUT_S:.0f} s: see its log")


def _version(directory: Path) -> tuple[int, int]:
    try:
        found = (directory / OUTCOME).stat()
    except OSError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)
