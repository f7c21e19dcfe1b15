"""The services beside a broker: the audit's, and those that `broker.services` names.

They are started in order once the broker serves, and stopped in the opposite order while it still does. Each call
has its own thread and a time limit: a service that blocks delays neither the broker's workers nor its shutdown.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...interfaces.service import Service, ServiceMetric

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Started:
    """A service, and its `start`, which may still run."""

    service: Service
    start: Future[None]


class BackgroundServices:
    """`start` and `stop` run on the event loop; `health` and `metrics` may be called from any thread. The limits are
    those of one service's `start` and `stop`.
    """

    def __init__(self, *, start_timeout_s: float = START_TIMEOUT_S, stop_timeout_s: float = STOP_TIMEOUT_S) -> None:
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._services: dict[str, _Started] = {}

    async def start(self, name: str, service: Service) -> None:
        """Starts the service. An error that it raises is passed to the caller; `stop` stops the service even then. One
        that has not returned in time is logged and not awaited; it is not healthy until it has returned.
        """
        while name in self._services:  # the same plugin may be configured twice
            name += "'"
        start = _on_thread(f"klamm-start-{name}", service.start)
        self._services[name] = _Started(service, start)
        if not await _returned(start, self._start_timeout_s):
            log.error("service %s has not started within %g s; the broker continues", name, self._start_timeout_s)
            start.add_done_callback(partial(_log_late, name))

    async def stop(self) -> None:
        """Stops all services, the last one first. One that raises, or has not stopped in time, is logged and does not
        keep the others from being stopped.
        """
        while self._services:
            name, started = self._services.popitem()
            try:
                stop = _on_thread(f"klamm-stop-{name}", started.service.stop)
                if not await _returned(stop, self._stop_timeout_s):
                    log.error(
                        "service %s has not stopped within %g s; the broker continues", name, self._stop_timeout_s
                    )
            except Exception:  # a third party's service may raise anything
                log.exception("service %s did not stop cleanly", name)

    def health(self) -> Mapping[str, str | None]:
        """Returns for each service None if it works, else one line about its problem."""
        return {name: _health(started) for name, started in list(self._services.items())}

    def metrics(self) -> Iterator[ServiceMetric]:
        """Yields the samples of all services; a service that raises has none."""
        for name, started in list(self._services.items()):
            try:
                yield from list(started.service.metrics())
            except Exception:  # a third party's service may raise anything; a scrape shows the rest
                log.exception("service %s: no metrics", name)


def _health(started: _Started) -> str | None:
    if not started.start.done():
        return "it has not started yet"
    failure = started.start.exception()
    if failure is not None:
        return f"it could not be started: {failure}"
    try:
        return started.service.health()
    except Exception as error:  # a third party's service may raise anything
        return repr(error)


def _log_late(name: str, start: Future[None]) -> None:
    error = start.exception()
    if error is None:
        log.info("service %s has started", name)
    else:
        log.error("service %s could not be started: %r", name, error)


def _on_thread(name: str, call: Callable[[], None]) -> Future[None]:
    """Runs the call on a daemon thread: one that never returns does not keep the process from ending."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            call()
        except BaseException as error:  # a third party's service may raise anything
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


async def _returned(call: Future[None], timeout_s: float) -> bool:
    """Returns True if the call has returned in time. Raises the error that it raised."""
    waiting = asyncio.wrap_future(call)
    try:
        done, _ = await asyncio.wait({waiting}, timeout=timeout_s)
    finally:
        waiting.cancel()  # so that a call that returns later does not use a loop that has ended
    if done:
        waiting.result()
    return bool(done)
