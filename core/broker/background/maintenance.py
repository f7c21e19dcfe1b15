"""Periodic work of a broker: retention, flushes, forgetting idle producers, expiring old offsets.

Each job runs on a worker thread, one at a time; one that fails is logged in one line and retried at the next interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...errors import KlammError, describe_error

log = logging.getLogger(__name__)


class BrokerMaintenance:
    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, interval_s: float, what: str, run: Callable[[], Awaitable[object]]) -> None:
        """Runs the job repeatedly, with `interval_s` seconds between the end of one run and the start of the next."""
        self._tasks.append(asyncio.get_running_loop().create_task(_repeat(interval_s, what, run)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _repeat(interval_s: float, what: str, run: Callable[[], Awaitable[object]]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        try:
            await run()
        except KlammError as error:
            log.warning("%s: %s", what, error)
        except Exception as error:  # the broker continues to serve, whatever happens to its maintenance
            log.error("%s: unexpected %s", what, describe_error(error))
