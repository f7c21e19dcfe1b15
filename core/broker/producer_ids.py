"""Producer ids (KIP-98): returned one by one from blocks that the coordination allocates, and never reused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from .workers import Workers


class ProducerIds:
    """`allocate` blocks and returns a new block; the rest of a block is never used after a shutdown."""

    def __init__(self, allocate: Callable[[], range], workers: Workers) -> None:
        self._allocate = allocate
        self._workers = workers
        self._block: Iterator[int] = iter(())
        self._forgotten = 0
        self._lock = asyncio.Lock()

    def forget_block(self) -> None:
        """Takes the next id from a new block: a mirror was promoted, whose source may have given out the ids of the
        present one (docs/mirror.md, M12)."""
        self._block = iter(())
        self._forgotten += 1

    async def next(self) -> int:
        """Returns the next id. Raises `CoordinationError` if the block is used up and the coordination is
        unavailable.
        """
        async with self._lock:
            for producer_id in self._block:
                return producer_id
            forgotten = self._forgotten
            block = iter(await self._workers.coordination(self._allocate))
            if forgotten == self._forgotten:
                self._block = block
            return next(block)
