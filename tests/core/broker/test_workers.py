from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from klamm.core.broker.workers import Workers


def test_what_follows_a_call_follows_though_nobody_waits_for_it_any_more() -> None:
    """A client that is gone has its batch appended all the same, and followers and consumers must be told."""
    begun, ends, then = threading.Event(), threading.Event(), asyncio.Event()
    results: list[int] = []

    def call(number: int) -> int:
        begun.set()
        ends.wait(10)
        return number

    def told(result: int) -> None:
        results.append(result)
        then.set()

    async def main() -> None:
        workers = Workers(1)
        waiting = asyncio.get_running_loop().create_task(workers.disk_then(told, call, 7))
        await asyncio.to_thread(begun.wait, 10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        ends.set()
        await asyncio.wait_for(then.wait(), 10)
        workers.close()

    asyncio.run(main())
    assert results == [7]


def test_what_follows_a_call_comes_before_its_caller_goes_on() -> None:
    order: list[str] = []

    async def main() -> None:
        workers = Workers(1)
        assert await workers.disk_then(lambda _: order.append("then"), lambda: 1) == 1
        order.append("caller")
        with pytest.raises(ValueError, match="wrong"):
            await workers.disk_then(lambda _: order.append("never"), int, "wrong")
        workers.close()

    asyncio.run(main())
    assert order == ["then", "caller"]


class Decompressed(bytearray):
    """Can be referenced weakly."""


def test_what_a_call_held_when_it_failed_is_freed_without_a_garbage_collection() -> None:
    """Each refused batch of 64 MiB stayed until the next collection of the oldest generation."""
    held: list[weakref.ref[Decompressed]] = []

    def call() -> None:
        records = Decompressed(1)
        held.append(weakref.ref(records))
        raise ValueError("refused")

    async def main() -> None:
        workers = Workers(1)
        with pytest.raises(ValueError, match="refused"):
            await workers.disk_then(lambda _: None, call)
        workers.close()

    gc.disable()
    try:
        asyncio.run(main())
        assert held[0]() is None
    finally:
        gc.enable()
