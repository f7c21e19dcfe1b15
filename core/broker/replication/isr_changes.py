"""Writes the ISR changes of the partitions that this broker leads (Kafka's `AlterPartitionManager`).

Proposals are gathered for a moment, since a restarted broker catches up with many partitions at once, and written in
one transaction. The rules are those of `PartitionLeader`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ...cluster.cluster import Cluster
from ...errors import KlammError, describe_error
from ...replication.leader import ProposalOutcome
from ..metrics.counters import BrokerMetrics
from ..workers import Workers
from .isr_proposals import IsrProposals
from .partitions import Partitions
from .replica import Replica, monotonic_ms
from .role_changes import RoleChanges

log = logging.getLogger(__name__)

GATHERING_S: Final = 0.02
_BACK_OFF_S: Final = 0.1


class IsrChanges:
    """Belongs to the event loop."""

    def __init__(
        self,
        cluster: Cluster,
        partitions: Partitions,
        roles: RoleChanges,
        workers: Workers,
        metrics: BrokerMetrics,
        lag_time_max_ms: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._roles = roles
        self._workers = workers
        self._metrics = metrics
        self._lag_time_max_ms = lag_time_max_ms
        self._proposals: IsrProposals[Replica] = IsrProposals(roles, lambda name: partitions.find(*name))
        self._some = asyncio.Event()
        self._lateness_ms = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._write()), loop.create_task(self._review())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def caught_up(self, replica: Replica) -> None:
        """Called when a follower of the partition may join the ISR."""
        self._proposals.want(replica.name)
        self._some.set()

    async def _review(self) -> None:
        """Finds followers that have fallen behind, and proposals that are still open. A delay of this broker itself
        does not count as lag of the followers."""
        loop = asyncio.get_running_loop()
        while True:
            interval_s = max(min(self._lag_time_max_ms() / 2000, 1.0), 0.05)
            due = loop.time() + interval_s
            await asyncio.sleep(interval_s)
            self._lateness_ms = max(0.0, (loop.time() - due) * 1000)
            try:
                if self._roles.has_news():
                    self._roles.refresh_soon()
            except Exception as error:  # the followers are reviewed all the same
                log.exception("checking for offline logs failed, retrying: %s", describe_error(error))
            for replica in self._partitions:
                self._review_replica(replica)

    def _review_replica(self, replica: Replica) -> None:
        try:
            if self._proposals.review(replica, monotonic_ms(), self._lateness_ms):
                self._some.set()
        except Exception as error:  # the others are reviewed, or none of their dead followers would leave an ISR
            log.exception("%s: checking the followers failed, retrying: %s", replica.name, describe_error(error))

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._some.wait()
            due = loop.time() + GATHERING_S
            await asyncio.sleep(GATHERING_S)
            # After this broker has stood still this may run before `_review`, which would have noticed it.
            self._lateness_ms = max(self._lateness_ms, (loop.time() - due) * 1000)
            self._some.clear()
            try:
                again = await self._write_some()
            except KlammError as error:
                log.info("a change of in-sync replicas failed, retrying: %s", error)
                again = True
            except Exception as error:  # it must go on, or no ISR would ever change again
                log.exception("a change of in-sync replicas failed: %s", describe_error(error))
                again = True
            if again:
                await asyncio.sleep(_BACK_OFF_S)
                self._some.set()

    async def _write_some(self) -> bool:
        """Writes the proposals of at most 500 partitions; returns True if more are left."""
        made = self._proposals.make(monotonic_ms(), self._lateness_ms)
        if not made:
            return self._proposals.some
        asked = [(name, proposal) for name, proposal, _, _ in made]
        outcomes: list[ProposalOutcome] = [ProposalOutcome.UNKNOWN] * len(made)
        try:
            outcomes = await self._workers.coordination(self._cluster.propose, asked)
        finally:
            self._metrics.failed_isr_updates += sum(outcome is not ProposalOutcome.APPLIED for outcome in outcomes)
            self._proposals.written(made, outcomes)
        await self._roles.refresh()
        for (name, proposal), outcome in zip(asked, outcomes, strict=True):
            if outcome is ProposalOutcome.APPLIED:
                if proposal.added:
                    self._metrics.isr_expands += 1
                else:
                    self._metrics.isr_shrinks += 1
                log.info("%s: the in-sync replicas are %s", name, list(proposal.state.isr))
        return self._proposals.some
