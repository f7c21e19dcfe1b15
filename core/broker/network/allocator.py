"""Returns freed memory to the system.

glibc keeps the memory of large responses for reuse, up to 32 MiB a piece and in an arena for each thread; after many
slow readers that is as much as they held.
"""

from __future__ import annotations

import ctypes


def trim() -> bool:
    """Returns freed memory to the system; False if none was returned, or the C library cannot. Blocks for some ms per
    100 MiB."""
    call = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(call(0)) if call is not None else False
