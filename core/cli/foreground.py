"""For commands that run a server in the foreground until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
from types import FrameType

__all__ = ["StopRequestedError", "raise_on_stop_signals"]


class StopRequestedError(Exception):
    """SIGTERM or SIGINT was received."""


def raise_on_stop_signals() -> None:
    """Makes SIGTERM and SIGINT raise `StopRequestedError` in the main thread from now on."""
    signal.signal(signal.SIGTERM, _request_stop)
    signal.signal(signal.SIGINT, _request_stop)


def _request_stop(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as `signal` calls it
    raise StopRequestedError
