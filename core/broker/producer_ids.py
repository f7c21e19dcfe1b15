"""Producer ids (KIP-98): handed out one by one from blocks that the coordination gives, never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from .workers import Workers


class ProducerIds:
    """`allocate` blocks and returns a new block; what is left of a block at shutdown is never used."""

    def __init__(self, allocate: Callable[[], range], workers: Workers) -> None:
        self._allocate = allocate
        self._workers = workers
        self._block: Iterator[int] = iter(())
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """`CoordinationError` when the block is used up and the coordination is away."""
        async with self._lock:
            for producer_id in self._block:
                return producer_id
            self._block = iter(await self._workers.coordination(self._allocate))
            return next(self._block)
