"""What the sessions of the embedded coordination make of clocks: of one that is set, and of a start of the
host."""

from __future__ import annotations

import time

import pytest

from klamm.core.interfaces.coordination import SessionEvent
from klamm.plugins.coordination.embedded.coordination import EmbeddedCoordination
from klamm.plugins.coordination.embedded.tree import Clocks
from klamm.testing.contracts import SessionEvents
from klammtest.waiting import eventually
from klammtest.zookeeper import EmbeddedCase

DAY_S = 86_400.0
SESSION_MS = 3_000


class SetClock:
    """The wall clock, which can be set."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


def stop_heartbeats(coordination: EmbeddedCoordination) -> None:
    """As `kill -9` does; the session stays in the file."""
    coordination._stop_threads()


@pytest.mark.parametrize("ahead_s", [30.0, DAY_S, -DAY_S])
def test_a_clock_that_is_set_ends_no_session(embedded_case: EmbeddedCase, ahead_s: float) -> None:
    clock = SetClock()
    members = [embedded_case.make(SESSION_MS, Clocks(clock)) for _ in range(3)]
    events = [SessionEvents(member) for member in members]
    for number, member in enumerate(members):
        member.start()
        member.create(f"/member-{number}", ephemeral=True)
    clock.ahead_s = ahead_s
    time.sleep(SESSION_MS / 1000 * 2)
    assert all(SessionEvent.EXPIRED not in seen.seen for seen in events)
    assert members[0].children("/") == ["member-0", "member-1", "member-2"]
    created = members[0].create("/now")
    assert abs(created.ctime_ms / 1000 - clock()) < 60


def test_a_dead_process_is_gone_in_time_though_the_clock_was_set_back(embedded_case: EmbeddedCase) -> None:
    clock = SetClock()
    dead, live = (embedded_case.make(SESSION_MS, Clocks(clock)) for _ in range(2))
    for member in (dead, live):
        member.start()
    dead.create("/of-the-dead", ephemeral=True)
    stop_heartbeats(dead)
    clock.ahead_s = -DAY_S
    eventually(lambda: live.exists("/of-the-dead") is None, "the dead process's session has ended")


@pytest.mark.parametrize(("before_s", "after_s"), [(5_000.0, 20.0), (20.0, 5_000.0)])
def test_sessions_of_before_the_hosts_start_are_over(
    embedded_case: EmbeddedCase, before_s: float, after_s: float
) -> None:
    """The monotonic clock begins at 0 again."""
    begun = time.monotonic()
    before = embedded_case.make(60_000, Clocks(monotonic=lambda: time.monotonic() - begun + before_s))
    before.start()
    before.create("/before", ephemeral=True)
    stop_heartbeats(before)
    after = embedded_case.make(60_000, Clocks(monotonic=lambda: time.monotonic() - begun + after_s))
    after.start()
    assert after.exists("/before") is None
