"""A broker on a thread of the test's own process, for suites that need many, each on a coordination of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from klamm.core.broker.server import Broker
from klamm.core.config.settings import load_settings
from klamm.core.transport.interface import Accept

START_S = 120.0


@contextmanager
def broker_thread(
    folder: Path,
    coordination: Mapping[str, Any],
    broker_keys: Mapping[str, Any] | None = None,
    *,
    offsets: Mapping[str, Any] | None = None,
    audit: Mapping[str, Any] | None = None,
    plugins: Mapping[str, Any] | None = None,
    accept_missing_logs: bool = False,
    accepts: Mapping[str, Accept] | None = None,
) -> Iterator[Broker]:
    """Yields a broker that has joined the cluster, and stops it cleanly at the end. `broker_keys` override the
    defaults.
    """
    own = {"broker.id": 0, "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder / "data")}
    sections = {"broker": {**own, **(broker_keys or {})}, "coordination": dict(coordination)}
    more = {"offsets": offsets, "audit": audit, "plugins": plugins}
    settings = load_settings(sections | {name: dict(keys) for name, keys in more.items() if keys is not None})
    ready, failed = threading.Event(), list[BaseException]()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    broker: list[Broker] = []

    async def serve() -> None:
        broker.append(Broker(settings, accept_missing_logs=accept_missing_logs, accepts=accepts))
        try:
            await broker[0].start()
        except BaseException as error:
            failed.append(error)
            return
        finally:
            ready.set()
        await stop.wait()
        await broker[0].stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="broker")
    thread.start()
    try:
        assert ready.wait(START_S), "the broker was not ready in time"
        assert not failed, failed
        yield broker[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(START_S)
        loop.close()
