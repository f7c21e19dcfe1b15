"""Which partition a record goes to: Kafka's murmur2 of the key, sticky without a key, or a callable of the user's."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from struct import Struct

from klamm.core.errors import ConfigError

Partitioner = Callable[[str, "bytes | None", "bytes | None", int], int]
"""(topic, key, value, number of partitions) → a partition from 0; key and value serialized."""

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_WORD = Struct("<I")


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


@lru_cache(maxsize=1 << 16)
def key_hash(key: bytes) -> int:
    """`toPositive(murmur2(key))`: the sign bit cleared, not the absolute value. Keys come again: remembered."""
    return murmur2(key) & 0x7FFFFFFF


def load_partitioner(name: str) -> Partitioner | None:
    """None for `murmur2`, the built-in one; otherwise the `module:callable` that the configuration names."""
    if name == "murmur2":
        return None
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"producer.partitioner: {name!r} is neither murmur2 nor module:callable")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"producer.partitioner: cannot load {name!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"producer.partitioner: {name!r} is not callable")
    chosen: Partitioner = found
    return chosen
