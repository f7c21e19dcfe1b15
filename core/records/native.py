"""The functions of the compiled module, or of its equal in Python (`fallback`) where there is none: chosen once, here.

The compiled module is built when klamm is installed and a C compiler is there. With `KLAMM_FALLBACK=1` in the
environment it is not used. Both give the same bytes and the same errors; `IMPLEMENTATION` says which one runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from . import fallback

__all__ = [
    "IMPLEMENTATION",
    "chain",
    "columns",
    "compiled",
    "crc32c",
    "encode_columns",
    "encode_records",
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

F = TypeVar("F", bound=Callable[..., Any])


def _chosen() -> str:
    if os.environ.get("KLAMM_FALLBACK") == "1":
        return "fallback"
    try:
        import klamm.core.records._native  # noqa: F401
    except ImportError:  # installed without a compiler
        return "fallback"
    return "native"


IMPLEMENTATION: Final = _chosen()
"""`native` or `fallback`."""

if IMPLEMENTATION == "native":
    from . import _native as _module
else:
    _module = None  # type: ignore[assignment]


def compiled(name: str, otherwise: F, /) -> F:
    """The compiled function of this name; `otherwise`, its equal in Python, where there is no compiled module or it was
    built before it had this function."""
    return cast("F", getattr(_module, name, otherwise))


crc32c = compiled("crc32c", fallback.crc32c)
chain = compiled("chain", fallback.chain)
pieces = compiled("pieces", fallback.pieces)
lists = compiled("lists", fallback.lists)
columns = compiled("columns", fallback.columns)
encode_records = compiled("encode_records", fallback.encode_records)
encode_columns = compiled("encode_columns", fallback.encode_columns)
seal = compiled("seal", fallback.seal)
partitions = compiled("partitions", fallback.partitions)
validate = compiled("validate", fallback.validate)
tally = compiled("tally", fallback.tally)
int64s = compiled("int64s", fallback.int64s)
sizes = compiled("sizes", fallback.sizes)
lengths = compiled("lengths", fallback.lengths)
window_counts = compiled("window_counts", fallback.window_counts)
