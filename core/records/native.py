"""The functions of the compiled module, or of its equal in Python (`fallback`) if it is not available: chosen once,
here.

The compiled module is built when klamm is installed with a C compiler. It is not used with `KLAMM_FALLBACK=1` in the
environment, nor if it comes from an older build that lacks a function. Both return the same bytes and raise the same
errors; `IMPLEMENTATION` names the one in use. The other one is not loaded, which saves memory in every broker.
"""

# ruff: noqa: F403, F405
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
"""The functions of the compiled module that `protocol.produce.fast_path` uses."""


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
    from ._native import *
else:
    from .fallback import *
