"""The last offset of each key, in bounded memory. Compaction decides by it which records stay.

Keys are kept as 16-byte hashes (MD5, as Kafka's cleaner), so that their length does not matter. Two keys with the same
hash would count as one; at a billion keys the odds of one such pair are 1 in 10^20.
"""

from __future__ import annotations

from hashlib import md5
from typing import Final

ENTRY_BYTES: Final = 200
"""Bytes of memory for one key: hash (49), offset (32) and its place in the table, which is twice its size while it
grows."""


class OffsetMap:
    """Holds at most `memory_bytes / ENTRY_BYTES` keys, at least one."""

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
        """Sets `end`: no record between the last one that was `put` and `end` has a key."""
        self._end = end

    def put(self, key: bytes, offset: int) -> bool:
        """Records that `key` was last written at `offset`. Returns False, and records nothing, if there is no room."""
        digest = md5(key, usedforsecurity=False).digest()
        if len(self._offsets) >= self._capacity and digest not in self._offsets:
            return False
        self._offsets[digest] = offset
        self._end = offset + 1
        return True

    def covers(self, offset: int) -> bool:
        return offset < self._end

    def superseded(self, key: bytes, offset: int) -> bool:
        """Whether the key was written again after `offset`."""
        return self._offsets.get(md5(key, usedforsecurity=False).digest(), -1) > offset
