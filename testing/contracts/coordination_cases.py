"""The environment of a coordination's suites: a tree with sessions, and listeners that record their events."""

from __future__ import annotations

import threading
import time
from typing import Protocol

import pytest

from klamm.core.interfaces.coordination import Coordination, SessionEvent
from klamm.testing.waiting import PATIENCE_S, eventually

__all__ = ["CoordinationSuite", "CoordinationUnderTest", "SessionEvents", "WatchSignal"]


class CoordinationUnderTest(Protocol):
    """An empty tree, and sessions on it."""

    def make(self, session_timeout_ms: int = 10_000) -> Coordination:
        """Returns a coordination on the tree that is not started."""
        ...

    def open(self, session_timeout_ms: int = 10_000) -> Coordination:
        """Returns a started coordination on the tree."""
        ...

    def expire(self, coordination: Coordination) -> None:
        """Ends a session without its client, as the service does; its ephemeral paths have been deleted when this
        returns.
        """
        ...


class SessionEvents:
    """A session listener that keeps its events."""

    def __init__(self, coordination: Coordination) -> None:
        self.seen: list[SessionEvent] = []
        coordination.on_session(self.seen.append)

    def wait_for(self, event: SessionEvent) -> None:
        eventually(lambda: event in self.seen, f"{event} among {self.seen}")


class WatchSignal:
    """A watch callback that counts; `wait_for_more` waits for a call after `mark`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0
        self._marked = 0

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def mark(self) -> None:
        """Waits for calls caused by earlier changes, and ignores them."""
        time.sleep(0.15)
        self._marked = self.count

    def wait_for_more(self, timeout_s: float = PATIENCE_S) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count > self._marked, timeout_s), "the watch was not called"


class CoordinationSuite:
    """The fixtures of a coordination's suites; define `coordination_case`."""

    @pytest.fixture
    def coordination_case(self) -> CoordinationUnderTest:
        suite = type(self).__name__
        raise NotImplementedError(f"{suite} needs a fixture `coordination_case` (a `CoordinationUnderTest`)")

    @pytest.fixture
    def coordination(self, coordination_case: CoordinationUnderTest) -> Coordination:
        """Returns a started coordination."""
        return coordination_case.open()
