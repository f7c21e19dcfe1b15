"""One replica of a partition and its role: leader, follower or neither (Kafka's `Partition`). docs/replication.md,
R1."""

from __future__ import annotations

from typing import Generic, TypeVar

from ..errors import BrokerError, ErrorCode
from ..records.partition import TopicPartition, counted
from .delayed_produce import DelayedProduces
from .follower import PartitionFollower
from .leader import PartitionLeader, ReplicationSettings
from .partition_state import NO_EPOCH, NO_LEADER, PartitionState
from .registrations import BrokerRegistration
from .replica_log import ReplicaLog

W = TypeVar("W")


def leads(state: PartitionState, broker_id: int, registration: BrokerRegistration | None) -> bool:
    """Returns True if the state names the broker under its present registration `own` (R1).

    A broker that has registered again does not lead by the state that it finds, and one whose data id is not that in
    the ISR has lost records.
    """
    return (
        state.leader == broker_id
        and registration is not None
        and registration.epoch == state.leader_broker_epoch
        and broker_id in state.isr
        and registration.data_id == state.data_ids[broker_id]
    )


class Partition(Generic[W]):
    """Follows the metadata: changes role, and completes the waiting Produce requests. `W` is the type of a waiting
    request.

    All calls on one thread.
    """

    def __init__(
        self, broker_id: int, log: ReplicaLog, replicas: tuple[int, ...], settings: ReplicationSettings
    ) -> None:
        self.broker_id = broker_id
        self.log = log
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = None
        self.state: PartitionState | None = None
        self.version = -1
        self._replicas = replicas
        self._settings = settings
        self._delayed: DelayedProduces[W] = DelayedProduces()
        self.left_epoch = NO_EPOCH
        """The newest leader epoch in which this replica has led and has stopped. It may not lead in that epoch again,
        nor in an older one: a state that names it there needs a new epoch."""
        log.rest()

    @property
    def replicas(self) -> tuple[int, ...]:
        """The brokers that have the partition, in order of preference."""
        return self._replicas

    def reconfigure(self, replicas: tuple[int, ...], settings: ReplicationSettings) -> None:
        """Sets the replicas (a reassignment changes them) and the settings. The leader uses them from the next
        `on_metadata` on, whose state belongs to these replicas."""
        self._replicas = replicas
        self._settings = settings

    def rest(self) -> list[W]:
        """Takes no role until the next metadata: the log accepts no append. Returns the waiting requests, which fail
        with NOT_LEADER_OR_FOLLOWER."""
        failed = self._stop_leading()
        self._rest()
        return failed

    def forget_metadata(self) -> list[W]:
        """Rests, and accepts metadata of any version next: versions start again after a restore from an older backup.
        Returns what `rest` returns."""
        failed = self.rest()
        self.state, self.version = None, -1
        return failed

    def on_metadata(
        self, state: PartitionState, version: int, own: BrokerRegistration | None, now_ms: float
    ) -> list[W]:
        """Takes the role that `state` gives; returns the waiting requests that fail with NOT_LEADER_OR_FOLLOWER.

        `own` is this broker's live registration, None if it has none. Metadata older than the last are ignored.
        """
        if version < self.version:
            return []
        self.state, self.version = state, version
        if leads(state, self.broker_id, own) and state.leader_epoch > self.left_epoch:
            return self._lead(state, version, now_ms)
        failed = self._stop_leading()
        if own is None or state.leader in (NO_LEADER, self.broker_id):
            self._rest()
        elif self.follower is None or self.follower.leader_epoch != state.leader_epoch:
            self.follower = PartitionFollower(
                self.broker_id,
                self.log,
                state.leader,
                state.leader_epoch,
                compares_epochs=bool(state.mirror) or state.promoted_epoch != NO_EPOCH,
            )
        return failed

    def _lead(self, state: PartitionState, version: int, now_ms: float) -> list[W]:
        if self.leader is not None and self.leader.epoch == state.leader_epoch:
            self.leader.on_state(state, version, self._replicas, self._settings)
            return []
        failed = self._stop_leading()
        self.follower = None
        self.leader = PartitionLeader(self.broker_id, self.log, self._replicas, self._settings, state, version, now_ms)
        self.leader.advance_high_watermark()
        return failed

    def _stop_leading(self) -> list[W]:
        """Stops leading. The leader epoch is never led again: its proposals would be forgotten, and might still be
        written."""
        if self.leader is None:
            return []
        self.left_epoch = self.leader.epoch
        self.leader.resign()
        self.leader = None
        return self._delayed.take_all()

    def _rest(self) -> None:
        self.follower = None
        self.log.rest()

    # -- Produce -------------------------------------------------------------------------------------------------

    def refusal(self, name: TopicPartition) -> BrokerError | None:
        """Returns why records with acks=all are refused now; None if they are accepted. `name`: for the message."""
        leader = self.leader
        if leader is None:
            return BrokerError(ErrorCode.not_leader_or_follower, f"{name}: this broker does not lead it")
        if not leader.is_under_min_isr:
            return None
        said = (
            f"{counted(len(leader.state.isr), 'replica')} in sync, min.insync.replicas is {leader.min_insync_replicas}"
        )
        return BrokerError(ErrorCode.not_enough_replicas, f"{name}: {said}")

    def appended(self, leader_epoch: int, end_offset: int, waiter: W) -> bool:
        """Adds a waiter for records up to `end_offset`, appended under `leader_epoch` or recognised as a retry's.

        A retry waits like the first attempt. Returns False if this replica no longer leads in that epoch.
        """
        leader = self.leader
        if leader is None or leader.epoch != leader_epoch:
            return False
        self._delayed.add(end_offset, waiter)
        if not leader.waits_for_others:
            leader.advance_high_watermark()
        return True

    @property
    def delayed(self) -> DelayedProduces[W]:
        """The requests that wait for the high watermark."""
        return self._delayed

    def take_committed(self) -> tuple[list[W], ErrorCode]:
        """Returns the requests whose records are committed, and the error code for them:
        NOT_ENOUGH_REPLICAS_AFTER_APPEND if the ISR has fallen below the minimum meanwhile.
        """
        done = self._delayed.take_committed(self.log.high_watermark)
        if done and self.leader is not None and self.leader.is_under_min_isr:
            return done, ErrorCode.not_enough_replicas_after_append
        return done, ErrorCode.none
