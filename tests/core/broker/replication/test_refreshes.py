"""Refreshes of the roles do not pile up while the coordination is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.core.broker.replication import role_changes
from klamm.core.broker.replication.role_changes import RoleChanges
from klamm.core.cluster.image import EMPTY_IMAGE
from klamm.core.cluster.tree.steps import Steps, run_steps
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.interfaces.coordination import CoordinationUnavailableError
from klamm.core.records.partition import TopicPartition

LOOKS = 20
OFFLINE = SimpleNamespace(
    name=TopicPartition("t", 0), key=("t", 0), is_offline=True, partition=SimpleNamespace(state=None), leader=None
)


class Away:
    """A coordination that answers when `back` is set, and then with an error unless `works`."""

    broker_id, own_registration, image = 0, None, EMPTY_IMAGE

    def __init__(self, *, works: bool) -> None:
        self.node = self
        self.back = asyncio.Event()
        self.attempts = 0
        self._works = works

    def run(self, steps: Steps[Any]) -> Any:
        return run_steps(cast(Any, None), steps)

    def report_recovered(self, _: object) -> Steps[None]:
        """Nothing is reported."""
        yield from ()

    def report_offline(self, _: object) -> Steps[None]:
        yield from ()
        if not self._works:
            raise CoordinationUnavailableError("planted")

    async def coordination(self, call: Callable[..., Any], *args: Any) -> Any:
        """As `Workers.coordination`."""
        self.attempts += 1
        await self.back.wait()
        return call(*args)


class NoneLed(SimpleNamespace):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def made(away: Away) -> RoleChanges:
    partitions = NoneLed(replicas=lambda: [OFFLINE], replica=lambda _: None)
    return RoleChanges(
        lambda: BrokerConfig(broker_id=0), cast(Any, away), cast(Any, None), cast(Any, partitions), cast(Any, None),
        cast(Any, away), lambda *_: False, lambda: None,
    )  # fmt: skip


async def look(roles: RoleChanges) -> None:
    """As each look at the followers."""
    for _ in range(LOOKS):
        if roles.has_news():
            roles.refresh_soon()
        await asyncio.sleep(0)


async def ended(roles: RoleChanges) -> None:
    while roles._tasks:
        await asyncio.gather(*roles._tasks)


def test_one_refresh_waits_while_another_runs() -> None:
    async def main() -> None:
        away = Away(works=True)
        roles = made(away)
        await look(roles)
        assert len(roles._tasks) == 2
        away.back.set()
        await ended(roles)
        assert away.attempts == 1, "the second one has nothing to report"
        assert not roles.has_news()

    asyncio.run(main())


def test_one_retry_is_due_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        away = Away(works=False)
        away.back.set()
        roles = made(away)
        due: list[asyncio.TimerHandle] = []
        loop = asyncio.get_running_loop()

        def noted(delay_s: float, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
            due.append(loop.call_later(delay_s, callback, *args))
            return due[-1]

        roles._loop = cast(Any, SimpleNamespace(create_task=loop.create_task, time=loop.time, call_later=noted))
        monkeypatch.setattr(role_changes, "_RETRY_S", 3600.0)
        await look(roles)
        await ended(roles)
        assert away.attempts > 1
        assert len(due) == 1

    asyncio.run(main())
