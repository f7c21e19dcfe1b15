"""When followers leave the ISR: not for a pause of their leader, and also after a look at them failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication.isr_changes import IsrChanges
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.broker.replication.replica import Replica, monotonic_ms
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.leader import ProposalOutcome, ReplicationSettings
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klamm.core.replication.replica_fetch import ReplicaFetch
from klammtest.logs import batch, open_log
from klammtest.waiting import PATIENCE_S

LAG_MS = 1000.0
SETTINGS = ReplicationSettings(1, LAG_MS)
STATE = PartitionState(0, 3, 1, (0, 1), (), {0: "a", 1: "b"}, 0)
OWN = BrokerRegistration(0, 1, "here", ("a",))
FOLLOWER = BrokerRegistration(1, 2, "there", ("b",))


class AtOnce:
    """Worker threads that are this thread."""

    async def coordination(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)


def test_a_change_that_is_gathered_during_a_pause_drops_no_follower(tmp_path: Path) -> None:
    written: list[tuple[int, ...]] = []
    looks: list[None] = []

    def propose(proposals: Sequence[tuple[Any, Any]]) -> list[ProposalOutcome]:
        written.extend(proposal.state.isr for _, proposal in proposals)
        return [ProposalOutcome.REFUSED for _ in proposals]

    async def refresh() -> None:
        """The metadata stay as they are."""

    async def script() -> None:
        log = open_log(tmp_path)
        partitions, metrics = Partitions(BrokerMetrics()), BrokerMetrics()
        replica = Replica(0, log.tp, log, metrics.traffic("events"), (0, 1), SETTINGS)
        replica.on_metadata(STATE, 1, OWN, (0, 1), SETTINGS)
        partitions.put(replica)
        roles = SimpleNamespace(
            image=SimpleNamespace(version=1, registrations={0: OWN, 1: FOLLOWER}), has_taken=lambda _: True,
            has_news=lambda: bool(looks.append(None)), refresh=refresh, refresh_soon=lambda: None,
        )  # fmt: skip
        cluster, workers = cast(Any, SimpleNamespace(propose=propose)), cast(Any, AtOnce())
        changes = IsrChanges(cluster, partitions, cast(Any, roles), workers, metrics, lambda: LAG_MS)
        assert replica.leader is not None
        replica.leader.on_fetch(ReplicaFetch(1, 2, 3, 0, -1), FOLLOWER, monotonic_ms())
        replica.appended(100, log.append_as_leader(batch(), 3))  # the follower will fetch it at once
        changes.caught_up(replica)
        changes.start()
        for _ in range(3):
            await asyncio.sleep(0)
        time.sleep(2 * LAG_MS / 1000)
        while not looks:
            await asyncio.sleep(0)
        replica.leader.on_fetch(ReplicaFetch(1, 2, 3, 1, 3), FOLLOWER, monotonic_ms())
        for _ in range(10):
            await asyncio.sleep(0)
        await changes.stop()
        log.close()

    asyncio.run(script())
    assert written == []


def test_a_look_at_a_partition_that_fails_keeps_none_from_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[tuple[TopicPartition, tuple[int, ...]]] = []
    look = Replica.review_followers

    def propose(proposals: Sequence[tuple[Any, Any]]) -> list[ProposalOutcome]:
        dropped.extend((tp, proposal.state.isr) for tp, proposal in proposals)
        return [ProposalOutcome.REFUSED for _ in proposals]

    def failing(replica: Replica) -> None:
        if replica.name.partition == 0:
            raise RuntimeError("planted")
        look(replica)

    async def refresh() -> None:
        """The metadata stay as they are."""

    def said() -> list[str]:
        return [record.getMessage().partition(":")[0] for record in caplog.records if record.levelname == "ERROR"]

    async def script() -> None:
        partitions, metrics = Partitions(BrokerMetrics()), BrokerMetrics()
        logs = [open_log(tmp_path / str(number)) for number in (0, 1)]
        for number, log in enumerate(logs):
            name = TopicPartition("events", number)
            replica = Replica(0, name, log, metrics.traffic("events"), (0, 1), SETTINGS)
            replica.on_metadata(STATE, 1, OWN, (0, 1), SETTINGS)
            partitions.put(replica)
            replica.appended(100, log.append_as_leader(batch(), 3))
        roles = SimpleNamespace(
            image=SimpleNamespace(version=1, registrations={0: OWN, 1: FOLLOWER}), has_taken=lambda _: True,
            has_news=lambda: 1 / 0, refresh=refresh, refresh_soon=lambda: None,
        )  # fmt: skip
        cluster, workers = cast(Any, SimpleNamespace(propose=propose)), cast(Any, AtOnce())
        changes = IsrChanges(cluster, partitions, cast(Any, roles), workers, metrics, lambda: LAG_MS)
        monkeypatch.setattr(Replica, "review_followers", failing)
        changes.start()
        while not dropped or len(said()) < 3:
            await asyncio.sleep(0.01)
        await changes.stop()
        for log in logs:
            log.close()

    asyncio.run(asyncio.wait_for(script(), PATIENCE_S))
    assert dropped[0] == (TopicPartition("events", 1), (0,))
    assert set(said()) == {"events-0", "checking for offline logs failed, retrying"}
