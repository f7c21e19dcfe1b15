"""Chooses a record's partition: by Kafka's murmur2 of the key, sticky without a key, or by the user's callable."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

from ...errors import ConfigError
from ...records.murmur2 import murmur2

Partitioner = Callable[[str, "bytes | None", "bytes | None", int], int]
"""(topic, key, value, number of partitions) → a partition from 0; key and value serialized."""


@lru_cache(maxsize=1 << 16)
def key_hash(key: bytes) -> int:
    """Returns `toPositive(murmur2(key))`: the sign bit is cleared, it is not the absolute value. Results are cached,
    since keys repeat.
    """
    return murmur2(key) & 0x7FFFFFFF


def load_partitioner(name: str) -> Partitioner | None:
    """Returns None for `murmur2`, the built-in one; otherwise the `module:callable` that the configuration names."""
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
