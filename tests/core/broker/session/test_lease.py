"""The lease by itself: a clock and a coordination that the test moves."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

import pytest

from klamm.core.broker.session import lease as module
from klamm.core.broker.session.lease import Lease
from klamm.core.interfaces.coordination import CoordinationUnavailableError, SessionEvent

SECOND = 1_000_000_000
P = ParamSpec("P")


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


TIMEOUT_S = 6.0


class Registration:
    """The coordination's answer; `asked` counts the queries."""

    def __init__(self) -> None:
        self.epoch: int | None = 7
        self.away = False
        self.asked = 0

    async def __call__(self) -> int | None:
        self.asked += 1
        if self.away:
            raise CoordinationUnavailableError("away")
        return self.epoch


class Clock:
    def __init__(self) -> None:
        self.now_ns = SECOND

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)


async def started() -> tuple[Lease, Registration, Clock]:
    registration, clock = Registration(), Clock()
    lease = Lease(TIMEOUT_S, registration, clock)
    assert clock() > lease.deadline_ns, "nothing is acknowledged before the first answer"
    lease.start()
    assert await lease.confirmed() == 7
    assert clock() <= lease.deadline_ns
    return lease, registration, clock


@on_a_loop
async def test_a_standstill_is_asked_about() -> None:
    lease, registration, clock = await started()
    registration.epoch = None
    clock.advance(TIMEOUT_S + 1)
    assert clock() > lease.deadline_ns
    waiting = asyncio.create_task(lease.confirmed())
    while registration.asked < 3:
        await asyncio.sleep(0)
        lease._wake.set()
        await asyncio.sleep(0.01)
    assert not waiting.done()
    registration.epoch = 8
    assert await waiting == 8
    assert lease.epoch == 8
    assert clock() <= lease.deadline_ns
    lease.stop()


@on_a_loop
async def test_an_answer_counts_for_two_thirds_of_the_time_out() -> None:
    """etcd's sessions are renewed a third of the time-out before a transaction: one that stood still for longer than
    the rest acknowledged records while its id was taken."""
    lease, _, clock = await started()
    clock.advance(TIMEOUT_S * 0.7)
    assert clock() > lease.deadline_ns
    lease.stop()


@on_a_loop
async def test_an_expiry_is_asked_about_at_once() -> None:
    lease, registration, clock = await started()
    before = registration.asked
    lease.session(SessionEvent.EXPIRED)
    assert clock() > lease.deadline_ns
    assert await lease.confirmed() == 7
    assert registration.asked > before
    lease.stop()


@on_a_loop
async def test_who_gets_no_answer_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    lease, registration, clock = await started()
    registration.away = True
    clock.advance(TIMEOUT_S + 1)
    assert await lease.confirmed() is None
    registration.away = False
    monkeypatch.setattr(module, "WAIT_S", 20)
    assert await lease.confirmed() == 7
    lease.stop()


@on_a_loop
async def test_an_answer_that_took_too_long_says_nothing() -> None:
    """The session may have ended since it was asked for."""
    registration, clock = Registration(), Clock()
    slow = True

    async def answer() -> int | None:
        if slow:
            clock.advance(TIMEOUT_S)
        return await registration()

    lease = Lease(TIMEOUT_S, answer, clock)
    lease.start()
    while registration.asked < 2:
        await asyncio.sleep(0.01)
    assert clock() > lease.deadline_ns
    slow = False
    assert await lease.confirmed() == 7
    lease.stop()


@on_a_loop
async def test_while_the_coordination_is_away_a_shorter_standstill_is_allowed() -> None:
    lease, _, clock = await started()
    lease.session(SessionEvent.SUSPENDED)
    await asyncio.sleep(0)
    deadline = lease.deadline_ns
    clock.advance(1)
    lease._wake.set()
    while lease.deadline_ns == deadline:
        await asyncio.sleep(0)
    assert lease.deadline_ns == clock() + int(TIMEOUT_S * SECOND)
    lease.stop()
