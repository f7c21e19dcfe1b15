"""When Python collects garbage in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["late_first_collection", "no_collections"]

_FIRST: Final = 100_000
"""More objects than a command makes that sends a broker one request: 60,000 to 90,000, most of them of its modules."""


@contextmanager
def no_collections() -> Iterator[None]:
    """A context for imports, in which no garbage is collected. Almost none of the 57,000 objects that a broker's
    modules make is garbage, but Python's own thresholds scan them again and again (40 ms of 280)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def late_first_collection() -> None:
    """Postpones the first collection of this process until it has made 100,000 objects; from then on the thresholds
    are as before."""
    usual = gc.get_threshold()

    def restore(phase: str, info: dict[str, Any]) -> None:  # noqa: ARG001
        gc.callbacks.remove(restore)
        gc.set_threshold(*usual)

    gc.callbacks.append(restore)
    gc.set_threshold(_FIRST)
