"""The condition that a broker leads a partition in one leader epoch, for transactions of the coordination.

A coordinator acquires a group's protocol lock in a transaction that checks the version of the partition's state. In
that version it is the leader, so a deposed coordinator cannot take the lock from its successor. With the store
`coordination` its commits check the version too: nothing is appended to the partition's log there, so no leader epoch
fences them. Each change of the state, even of the in-sync replicas alone, has a new version: the state is then read
again.
"""

from __future__ import annotations

from ...cluster.tree import paths
from ...errors import BrokerError, ErrorCode
from ...interfaces.coordination import Check, Coordination, NoNodeError
from ...records.partition import TopicPartition
from ...replication.partition_state import PartitionState


class LeaderFence:
    """`read` and `confirmed` block."""

    def __init__(
        self, coordination: Coordination, broker_id: int, partition: TopicPartition, leader_epoch: int
    ) -> None:
        self._coordination = coordination
        self._broker_id = broker_id
        self._partition = partition
        self._path = paths.partition_state(*partition)
        self._leader_epoch = leader_epoch
        self._version = -1

    @property
    def check(self) -> Check:
        """The check that this broker leads and the state has not changed since it was last read."""
        return Check(self._path, self._version)

    def read(self) -> bool:
        """Reads the state; returns whether this broker leads in the epoch."""
        try:
            data, stat = self._coordination.get(self._path)
        except NoNodeError:
            return False
        state = PartitionState.decode(self._path, data)
        if (state.leader, state.leader_epoch) != (self._broker_id, self._leader_epoch):
            return False
        self._version = stat.version
        return True

    def confirmed(self) -> Check:
        """Reads the state and returns the check. Raises `BrokerError` NOT_COORDINATOR if this broker does not lead."""
        if not self.read():
            said = f"{self._partition} is not led by broker {self._broker_id} in epoch {self._leader_epoch} any more"
            raise BrokerError(ErrorCode.not_coordinator, said)
        return self.check
