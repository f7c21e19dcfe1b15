"""Commands that keep a server running in the foreground until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequestedError(Exception):
    """SIGTERM or SIGINT came."""


def raise_when_told_to_stop() -> None:
    """From now on SIGTERM and SIGINT raise `StopRequestedError` in the main thread."""
    signal.signal(signal.SIGTERM, _request_stop)
    signal.signal(signal.SIGINT, _request_stop)


def _request_stop(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as `signal` calls it
    raise StopRequestedError
