"""Kills a broker of each cluster while producers send: a live leader, whose replicas are in sync again later, and the
broker that mirrors, which goes on where its log ends.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from .flights import TOPIC
from .report.timeline import MarkKind
from .steps.cluster import Brokers
from .steps.mirror import Mirror

KILL_MONTH, START_MONTH = 5, 9
"""The month that starts shortly before the kill, and the one before the restart."""
MIRROR_MONTH = 7
"""The month that starts shortly before the kill of the broker that mirrors."""


class _State(Enum):
    BEFORE = auto()
    DUE = auto()
    DEAD = auto()
    CATCHING_UP = auto()
    OVER = auto()


class Outage:
    """Kills a broker, and starts it again. `tell` prints a line and adds it to the timeline as a mark; `seconds`
    returns the seconds since the start of the run."""

    def __init__(self, brokers: Brokers, tell: Callable[[str, MarkKind], None], seconds: Callable[[], float]) -> None:
        self._brokers = brokers
        self._tell = tell
        self._seconds = seconds
        self._state = _State.BEFORE
        self._started_s = 0.0

    @property
    def over(self) -> bool:
        """True once all replicas are in sync again."""
        return self._state is _State.OVER

    def advance(self, months: int) -> None:
        """Does what is due after this number of months. Call it repeatedly; raises `DemoError` if a broker ends by
        itself, or a partition does not get a leader in time."""
        self._brokers.check()
        match self._state:
            case _State.BEFORE if months >= KILL_MONTH:
                self._state = _State.DUE  # with the next call: then the producers send
            case _State.DUE:
                self._kill()
                self._state = _State.DEAD
            case _State.DEAD if months >= START_MONTH:
                self._brokers.start_again()
                self._started_s = self._seconds()
                self._state = _State.CATCHING_UP
            case _State.CATCHING_UP if self._brokers.all_in_sync():
                took_s = self._seconds() - self._started_s
                self._tell(
                    f"{self._victim} is back: all replicas are in sync {took_s:.1f} s after its new start",
                    MarkKind.NEWS,
                )
                self._state = _State.OVER

    @property
    def _victim(self) -> str:
        assert self._brokers.killed is not None
        return f"broker {self._brokers.killed.broker}"

    def _kill(self) -> None:
        killed = self._brokers.kill_leader()
        from_s = self._seconds()
        led = " and ".join(map(str, killed.led))
        self._tell(f"{self._victim} is killed with -9 while it leads partitions {led} of {TOPIC}", MarkKind.KILL)
        self._brokers.await_new_leaders()
        took_s = self._seconds() - from_s
        self._tell(
            f"the other brokers lead them {took_s:.1f} s later; {self._victim} stays dead for now", MarkKind.NEWS
        )


class MirrorOutage:
    """Kills the broker that mirrors, and starts it again at once. The parameters are those of `Outage`."""

    def __init__(self, mirror: Mirror, tell: Callable[[str, MarkKind], None], seconds: Callable[[], float]) -> None:
        self._mirror = mirror
        self._tell = tell
        self._seconds = seconds
        self._state = _State.BEFORE
        self._killed_s = 0.0
        self._copied = 0

    @property
    def over(self) -> bool:
        """True once it has copied more."""
        return self._state is _State.OVER

    def advance(self, months: int) -> None:
        """Does what is due after this number of months. Call it repeatedly; raises `DemoError` if the broker ends by
        itself."""
        self._mirror.check()
        match self._state:
            case _State.BEFORE if months >= MIRROR_MONTH:
                self._state = _State.DUE
            case _State.DUE:
                self._mirror.kill()
                self._killed_s = self._seconds()
                self._copied = self._mirror.flights()
                self._tell(
                    f"the broker that mirrors is killed with -9 after {self._copied:,} flights, and started again",
                    MarkKind.KILL,
                )
                self._state = _State.CATCHING_UP
            case _State.CATCHING_UP if self._mirror.flights() > self._copied:
                took_s = self._seconds() - self._killed_s
                self._tell(f"it copies on at the end of its log {took_s:.1f} s after the kill", MarkKind.NEWS)
                self._state = _State.OVER
