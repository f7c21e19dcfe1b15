"""Computes how long a broker's session is certain to be alive; used while the coordination does not answer.

A session ends one time-out after its last contact with the coordination, and others may then take over its paths.
The last contact of a connected session is at most two thirds of the time-out ago, so the session lives for another
third of it. A process that was stopped for longer than that (SIGSTOP, a frozen container) may have lost its session
without knowing it: then only a new connection, or a transaction made since, shows that it is alive.
"""

from __future__ import annotations

from collections.abc import Callable

from ...interfaces.coordination import SessionEvent


class SessionContact:
    """`event` and `heard` may be called on any thread; call `tick` several times in a third of the time-out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._timeout_s = 0.0
        self._event = SessionEvent.CONNECTED
        self._looked = self._lives_until = clock()

    def start(self, session_timeout_s: float) -> None:
        """Starts with a session that is connected now."""
        self._timeout_s = session_timeout_s
        self.heard(self._clock() - session_timeout_s / 3)

    @property
    def expired(self) -> bool:
        """True if the session has ended, and there is no new one."""
        return self._event is SessionEvent.EXPIRED

    @property
    def unavailable(self) -> bool:
        """True if the coordination does not answer now; the session may be alive."""
        return self._event is SessionEvent.SUSPENDED

    @property
    def certain(self) -> bool:
        """True if the session cannot have ended yet."""
        return not self.expired and self._clock() <= self._lives_until

    def event(self, event: SessionEvent) -> None:
        self._event = event
        if event is SessionEvent.CONNECTED:
            self._looked = self._clock()
            self.tick()

    def tick(self) -> None:
        now = self._clock()
        third_s = self._timeout_s / 3
        if self._event is SessionEvent.CONNECTED and now - self._looked <= third_s:
            self._looked = now
            self._lives_until = max(self._lives_until, now + third_s)

    def heard(self, asked_s: float) -> None:
        """Records that the session's transaction which started at `asked_s` was carried out (see
        `Coordination.transaction`)."""
        self._looked = max(self._looked, asked_s)
        self._lives_until = max(self._lives_until, asked_s + self._timeout_s * 2 / 3)
