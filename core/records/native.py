"""The functions of the compiled module, or of its twin in Python where there is none: chosen once, here.

The compiled module is built when klamm is installed and a C compiler is there. `KLAMM_PURE=1` in the environment
leaves it aside. Both give the same bytes and the same errors; `IMPLEMENTATION` says which one runs.
"""

from __future__ import annotations

import os
from typing import Final

from . import fallback as pure

__all__ = [
    "IMPLEMENTATION",
    "chain",
    "columns",
    "crc32c",
    "encode_columns",
    "encode_records",
    "lists",
    "partitions",
    "plain_produce",
    "produced",
    "seal",
    "tally",
    "validate",
    "window_counts",
]


def _chosen() -> str:
    if os.environ.get("KLAMM_PURE") == "1":
        return "pure"
    try:
        import klamm.core.records._native  # noqa: F401
    except ImportError:  # installed without a compiler
        return "pure"
    return "native"


IMPLEMENTATION: Final = _chosen()
"""`native` or `pure`."""

crc32c, chain, lists, columns = pure.crc32c, pure.chain, pure.lists, pure.columns
encode_records, encode_columns, seal, partitions = pure.encode_records, pure.encode_columns, pure.seal, pure.partitions
plain_produce, produced, validate = pure.plain_produce, pure.produced, pure.validate
tally, window_counts = pure.tally, pure.window_counts

if IMPLEMENTATION == "native":
    from . import _native

    crc32c, chain, lists, columns = _native.crc32c, _native.chain, _native.lists, _native.columns
    encode_records, encode_columns = _native.encode_records, _native.encode_columns
    seal, partitions = _native.seal, _native.partitions
    plain_produce, produced = _native.plain_produce, _native.produced
    validate = getattr(_native, "validate", pure.validate)  # a checkout whose module was built before it had this one
    window_counts = getattr(_native, "window_counts", pure.window_counts)  # or these
    tally = getattr(_native, "tally", pure.tally)
