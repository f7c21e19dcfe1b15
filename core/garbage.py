"""When Python looks for garbage in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

__all__ = ["late_first_collection", "no_collections"]

_FIRST: Final = 100_000
"""More objects than a command makes that asks a broker one question: most are 60,000 to 90,000, of its modules."""


@contextmanager
def no_collections() -> Iterator[None]:
    """Use it while modules are imported: next to none of the 57,000 objects that a broker's modules make is garbage,
    but with Python's own thresholds they are scanned again and again (40 ms of 280)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def late_first_collection() -> None:
    """Puts the first collection of this process off until it has made 100,000 objects; the thresholds are as before
    from then on."""
    usual = gc.get_threshold()

    def restore(phase: str, info: dict[str, Any]) -> None:  # noqa: ARG001
        gc.callbacks.remove(restore)
        gc.set_threshold(*usual)

    gc.callbacks.append(restore)
    gc.set_threshold(_FIRST)
