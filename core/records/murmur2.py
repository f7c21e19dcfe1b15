"""Kafka's hash of keys."""

from __future__ import annotations

from struct import Struct
from typing import Final

_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C
_WORD: Final = Struct("<I")


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 (`Utils.murmur2`), as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for (k,) in _WORD.iter_unpack(data[:whole]):
        k = (k * _M) & _MASK
        k ^= k >> 24
        h = ((h * _M) & _MASK) ^ ((k * _M) & _MASK)
    tail = data[whole:]
    if tail:
        h = ((h ^ int.from_bytes(tail, "little")) * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)
