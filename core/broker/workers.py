"""Worker threads for all calls that may block, so that the event loop never does.

There are separate pools, because an unavailable coordination blocks its callers for many seconds, during which the
disk must not wait, and a small read must not wait for hundreds of large ones. An offset store may be a client of
this same broker: if its calls used the threads of the coordination, the topic that the first of them creates could
never be created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from .append_placement import AppendPlacement

P = ParamSpec("P")
T = TypeVar("T")

_COORDINATION_THREADS = 4
_OFFSET_THREADS = 16
"""A commit to `__consumer_offsets` waits in its thread until all in-sync replicas have it; threads start on demand."""
_BULK_THREADS = 2
_VALIDATION_THREADS = 8
"""A validator may wait, for instance for a request to this broker, whose answer needs a thread of another pool."""


class Workers:
    """Pools of threads, one for each kind of call. `appends` decides which appends need a worker thread."""

    def __init__(self, disk_threads: int) -> None:
        self.appends = AppendPlacement(_call_later)
        self._disk = ThreadPoolExecutor(disk_threads, thread_name_prefix="klamm-disk")
        self._bulk = ThreadPoolExecutor(_BULK_THREADS, thread_name_prefix="klamm-bulk")
        self._coordination = ThreadPoolExecutor(_COORDINATION_THREADS, thread_name_prefix="klamm-coordination")
        self._offsets = ThreadPoolExecutor(_OFFSET_THREADS, thread_name_prefix="klamm-offsets")
        self._validation = ThreadPoolExecutor(_VALIDATION_THREADS, thread_name_prefix="klamm-validation")

    async def disk(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of a call that reads, writes or decompresses."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, lambda: call(*args, **kwargs))

    async def disk_then(
        self, then: Callable[[T], object], call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Like `disk`, and calls `then` with the result on the event loop, even if the caller is cancelled before."""
        return await _run_then(self._disk, then, lambda: call(*args, **kwargs))

    async def validation_then(
        self, then: Callable[[T], object], call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Like `disk_then`, for a call that validates a batch before it is appended."""
        return await _run_then(self._validation, then, lambda: call(*args, **kwargs))

    async def bulk(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of a call that reads large amounts."""
        return await asyncio.get_running_loop().run_in_executor(self._bulk, lambda: call(*args, **kwargs))

    async def coordination(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of a call that uses the coordination."""
        return await asyncio.get_running_loop().run_in_executor(self._coordination, lambda: call(*args, **kwargs))

    async def offsets(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns the result of a call of the offset store."""
        return await asyncio.get_running_loop().run_in_executor(self._offsets, lambda: call(*args, **kwargs))

    def close(self) -> None:
        """Waits for running calls."""
        self._validation.shutdown()
        self._disk.shutdown()
        self._bulk.shutdown()
        self._offsets.shutdown()
        self._coordination.shutdown()


async def _run_then(pool: ThreadPoolExecutor, then: Callable[[T], object], call: Callable[[], T]) -> T:
    def ended(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            then(done.result())

    running = asyncio.get_running_loop().run_in_executor(pool, call)
    running.add_done_callback(ended)
    try:
        return await asyncio.shield(running)
    finally:
        # An error's traceback holds this frame. If the frame held the error, both, and what the call has read or
        # decompressed, would stay until a garbage collection.
        del running


def _call_later(delay_s: float, callback: Callable[[], None], /) -> None:
    asyncio.get_running_loop().call_later(delay_s, callback)
