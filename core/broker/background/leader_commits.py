"""The positions of services: stored only while this broker leads the partitions, in the leader epochs in which the
services have read them.

A broker that was cut off from the coordination may no longer lead a partition and not know it yet. So a commit of a
service has the guards of a group's commit: this broker is registered, each partition's state names it as the leader
in that epoch, and each topic has the id of the offset. While the coordination does not answer, a store that works
without it accepts a commit as long as the session cannot have ended: then no other broker leads the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ...cluster.changes import incarnation_path
from ...interfaces.coordination import (
    BadVersionError,
    Check,
    Coordination,
    CoordinationUnavailableError,
    NoNodeError,
)
from ...interfaces.offsets import CommittedOffset, OffsetStore
from ...records.partition import TopicPartition
from ..coordinator.guarded_commits import GuardedCommits
from ..coordinator.leader_fence import LeaderFence

log = logging.getLogger(__name__)
_ATTEMPTS = 5


class LeaderCommits:
    """Blocking; for one service at a time. `incarnation` names this broker's registration; it is empty without one."""

    def __init__(
        self,
        coordination: Coordination,
        store: OffsetStore,
        guarded: GuardedCommits,
        broker_id: int,
        incarnation: Callable[[], str],
    ) -> None:
        self._coordination = coordination
        self._store = store
        self._guarded = guarded
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._fences: dict[TopicPartition, tuple[int, LeaderFence]] = {}

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        leader_epochs: Mapping[TopicPartition, int],
    ) -> set[TopicPartition]:
        """See `klamm.core.interfaces.service.BrokerContext.commit`."""
        for _ in range(_ATTEMPTS):
            guards: list[Check] = []
            led = dict(offsets)
            if not self._guarded.coordination_unavailable:
                guards.append(self._registered())
                for partition in offsets:
                    check = self._check(partition, leader_epochs[partition])
                    if check is None:
                        del led[partition]
                    else:
                        guards.append(check)
            try:
                deleted = self._guarded.commit(self._store, group, led, guards) if led else set()
            except (BadVersionError, NoNodeError) as error:  # as after a change of in-sync replicas: read again
                log.debug("positions of %s: %s", group, error)
                self._fences.clear()
                continue
            return (offsets.keys() - led.keys()) | deleted
        raise CoordinationUnavailableError(f"the partitions of {group} kept changing during {_ATTEMPTS} commits")

    def _registered(self) -> Check:
        incarnation = self._incarnation()
        if not incarnation:
            raise CoordinationUnavailableError("this broker is not registered now")
        return Check(incarnation_path(incarnation))

    def _check(self, partition: TopicPartition, leader_epoch: int) -> Check | None:
        """Returns the check that this broker leads the partition in this epoch; None if it does not."""
        epoch, fence = self._fences.get(partition, (-1, None))
        if fence is None or epoch != leader_epoch:
            fence = LeaderFence(self._coordination, self._broker_id, partition, leader_epoch)
            if not fence.read():
                return None
            self._fences[partition] = (leader_epoch, fence)
        return fence.check
