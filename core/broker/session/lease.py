"""Decides whether this broker may acknowledge: only while, by the monotonic clock, its registration cannot have
ended.

A process that was stopped for longer than its session time-out (SIGSTOP, a frozen container) does not know it when
it continues, and finds requests waiting; another broker may have its id by then. So a deadline is moved forward
while the event loop runs, and requests are compared with it: after the deadline nothing is acknowledged before the
coordination has confirmed that this broker is still registered.

The last contact of a connected session with the coordination is at most two thirds of the time-out ago, so the loop
may stop for one third of it. While the coordination is known to be unavailable, partitions continue to be served
(design D5), and the loop may stop for a whole time-out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic_ns
from typing import Final

from ...errors import KlammError, describe_error
from ...interfaces.coordination import SessionEvent

log = logging.getLogger(__name__)

WAIT_S: Final = 15.0
"""Seconds for which a request waits for the registration to be checked; then its connection is closed."""
_CHECKS: Final = 12  # checks in a session time-out
_LEAST_CHECK_S: Final = 0.05
_RETRY_S: Final = 0.1
_SECOND_NS: Final = 1_000_000_000


class Lease:
    """Belongs to the event loop, except for `session`. `confirm` asks the coordination whether this broker is
    registered: it returns the epoch of its registration, or None while it is not registered; raises `CoordinationError`
    without an answer.
    """

    def __init__(
        self,
        session_timeout_s: float,
        confirm: Callable[[], Awaitable[int | None]],
        clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._confirm = confirm
        self._clock_ns = clock_ns
        self._check_s = max(session_timeout_s / _CHECKS, _LEAST_CHECK_S)
        self._timeout_ns = int(session_timeout_s * _SECOND_NS)
        self._standstill_ns = max(self._timeout_ns // 3, int(2 * self._check_s * _SECOND_NS))
        self._connected = True
        self._expiries = 0
        self._epoch = -1
        self._valid = asyncio.Event()
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self.deadline_ns = 0
        """The deadline in `monotonic_ns`: after it nothing may be acknowledged until `confirmed` returns an epoch."""

    def start(self) -> None:
        """Starts the first check."""
        self._task = self._loop.create_task(self._watch())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def session(self, event: SessionEvent) -> None:
        """Handles an event of the session with the coordination; called on any thread."""
        if event is SessionEvent.EXPIRED:
            self._expiries += 1
            self.deadline_ns = 0
        self._loop.call_soon_threadsafe(self._session, event)

    def _session(self, event: SessionEvent) -> None:
        self._connected = event is not SessionEvent.SUSPENDED
        if event is SessionEvent.EXPIRED:
            self._wake.set()

    def _move(self, deadline_ns: int, expiries: int) -> bool:
        """Moves the deadline, unless another session has expired since `expiries` were counted."""
        self.deadline_ns = deadline_ns
        if self._expiries != expiries:
            self.deadline_ns = 0
        return self._expiries == expiries

    async def confirmed(self) -> int | None:
        """Returns the epoch of the registration that is valid now, after a check if needed; None if there was no answer
        in `WAIT_S`.
        """
        if self._clock_ns() > self.deadline_ns:
            self._lapse()
        try:
            async with asyncio.timeout(WAIT_S):
                await self._valid.wait()
        except TimeoutError:
            return None
        return self._epoch

    @property
    def epoch(self) -> int:
        """The epoch of the registration that was confirmed last."""
        return self._epoch

    def _lapse(self) -> None:
        """Requests a check, because the loop was stopped, or the session has ended."""
        self._valid.clear()
        self._wake.set()

    async def _watch(self) -> None:
        while True:
            expiries, now = self._expiries, self._clock_ns()
            if now > self.deadline_ns or not self._valid.is_set():
                await self._ask()
            else:
                stand = self._standstill_ns if self._connected else self._timeout_ns
                self._move(max(self.deadline_ns, now + stand), expiries)
            self._wake.clear()
            try:
                async with asyncio.timeout(self._check_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _ask(self) -> None:
        """Asks repeatedly, until the coordination has confirmed that this broker is registered."""
        self._valid.clear()
        if self._epoch >= 0:
            log.info("the event loop was stopped, or the session ended: checking the registration of this broker")
        while True:
            expiries, asked = self._expiries, self._clock_ns()
            epoch = await self._answer()
            # A transaction started at `asked` shows that the session lives for two thirds of its time-out from then on.
            if epoch is not None and self._clock_ns() <= asked + self._timeout_ns // 3:
                self._epoch = epoch
                if self._move(asked + self._timeout_ns * 2 // 3, expiries):
                    self._valid.set()
                    return
            await asyncio.sleep(_RETRY_S)

    async def _answer(self) -> int | None:
        try:
            return await self._confirm()
        except KlammError as error:
            log.info("the registration is not confirmed yet: %s", error)
        except Exception as error:  # it must continue to ask, or nothing would ever be acknowledged again
            log.error("the registration is not confirmed: unexpected %s", describe_error(error))
        return None
