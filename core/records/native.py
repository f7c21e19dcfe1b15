"""The functions of the compiled module, or of its equal in Python (`fallback`) where there is none: chosen once, here.

The compiled module is built when klamm is installed and a C compiler is there. With `KLAMM_FALLBACK=1` in the
environment it is not used, and one of an older build that lacks a function is not either. Both give the same bytes and
the same errors; `IMPLEMENTATION` says which one runs. The other one is not loaded, which saves memory in every broker.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = [
    "IMPLEMENTATION",
    "add_headers",
    "chain",
    "columns",
    "crc32c",
    "encode_columns",
    "encode_records",
    "first_headers",
    "int64s",
    "lengths",
    "lists",
    "partitions",
    "pieces",
    "seal",
    "sizes",
    "tally",
    "validate",
    "window_counts",
]

_PRODUCE: Final = ("read_fast_produce_request", "write_fast_produce_response")
"""What `protocol.produce.fast_path` takes from the compiled module."""


def _chosen() -> str:
    if os.environ.get("KLAMM_FALLBACK") == "1":
        return "fallback"
    try:
        from . import _native
    except ImportError:  # installed without a compiler
        return "fallback"
    return "native" if all(hasattr(_native, name) for name in (*__all__[1:], *_PRODUCE)) else "fallback"


IMPLEMENTATION: Final = _chosen()
"""`native` or `fallback`."""

if IMPLEMENTATION == "native":
    from ._native import (
        add_headers,
        chain,
        columns,
        crc32c,
        encode_columns,
        encode_records,
        first_headers,
        int64s,
        lengths,
        lists,
        partitions,
        pieces,
        seal,
        sizes,
        tally,
        validate,
        window_counts,
    )
else:
    from .fallback import (
        add_headers,
        chain,
        columns,
        crc32c,
        encode_columns,
        encode_records,
        first_headers,
        int64s,
        lengths,
        lists,
        partitions,
        pieces,
        seal,
        sizes,
        tally,
        validate,
        window_counts,
    )
