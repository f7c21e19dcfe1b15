"""When Python looks for garbage in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["rare_collections"]

_YOUNG = 10_000
_YOUNG_COLLECTIONS = 1_000


@contextmanager
def rare_collections() -> Iterator[None]:
    """Use it while modules are imported: next to none of the 57,000 objects that a broker's modules make is garbage,
    but with Python's own thresholds they are scanned again and again (40 ms of 280)."""
    usual = gc.get_threshold()
    gc.set_threshold(_YOUNG, _YOUNG_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
