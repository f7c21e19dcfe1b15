"""Maps keys to their last offsets in bounded memory. Compaction uses it to decide which records to keep.

A key is stored as a 16-byte hash (MD5, as in Kafka's cleaner), so its length does not matter. Two keys with the same
hash would count as one; with a billion keys the probability of one such pair is about 1 in 10^20.
"""

from __future__ import annotations

from hashlib import md5
from typing import Final

ENTRY_BYTES: Final = 200
"""Bytes of memory for one key: the hash (49), the offset (32) and the entry in the table, which takes twice the space
while the table grows."""


class OffsetMap:
    """Holds at most `memory_bytes / ENTRY_BYTES` keys, but at least one. `first`: the first offset to be mapped."""

    def __init__(self, memory_bytes: int, first: int) -> None:
        self._end = first
        self._capacity = max(1, memory_bytes // ENTRY_BYTES)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def end(self) -> int:
        """All records before this offset are in the map."""
        return self._end

    def complete(self, end: int) -> None:
        """Sets `end`, because no record between the last `put` and that offset has a key."""
        self._end = end

    def put(self, key: bytes, offset: int) -> bool:
        """Records that `key` was last written at `offset`. Returns False, and records nothing, if the map is full."""
        digest = md5(key, usedforsecurity=False).digest()
        if len(self._offsets) >= self._capacity and digest not in self._offsets:
            return False
        self._offsets[digest] = offset
        self._end = offset + 1
        return True

    def covers(self, offset: int) -> bool:
        """True if the map has all records up to and including `offset`."""
        return offset < self._end

    def superseded(self, key: bytes, offset: int) -> bool:
        """True if the key was written again after `offset`."""
        return self._offsets.get(md5(key, usedforsecurity=False).digest(), -1) > offset
