"""The reassignment of one partition to other replicas (KIP-455), as pure transitions.

States: stable → `begin` → reassigning → `completed` or `cancelled` → stable. While a reassignment is in progress the
partition has the old and the new replicas. It is complete when every added replica is in sync: one change then drops
the removed ones and, if one of them leads, moves the leader. Every transition is written on condition that nothing has
changed since it was computed (`MetadataChange`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ..errors import BrokerError, ErrorCode
from ..replication.partition_state import PartitionState, next_elr
from ..replication.registrations import Registrations, Standing, standing


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """Kafka's `ReplicaAssignment`: `replicas` are all that follow the leader now, in order of preference.

    `adding` are those that the partition did not have before the reassignment, `removing` those that it will not have
    after it. A replica is in both if it was added by a reassignment that was then replaced by another one.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        return tuple(replica for replica in self.replicas if replica not in self.adding)


@dataclass(frozen=True, slots=True)
class Reassigned:
    """The assignment and the state that one change writes together."""

    assignment: ReplicaAssignment
    state: PartitionState


def effective_min_isr(min_insync_replicas: int, assignment: ReplicaAssignment) -> int:
    """Returns `min.insync.replicas`, at most the number of replicas that the partition had before its reassignment: a
    topic whose replication factor grows accepts records as before until the added replicas are in sync (KIP-966).
    """
    return min(min_insync_replicas, len(assignment.origin))


def check_target(
    assignment: ReplicaAssignment, target: Sequence[int], live: Collection[int], *, may_change_factor: bool = True
) -> None:
    """Raises `BrokerError` INVALID_REPLICA_ASSIGNMENT if the partition cannot be reassigned to `target`, or
    INVALID_REPLICATION_FACTOR if the number of replicas would change although the request forbids it (KIP-860).

    A broker that is a replica already need not be live.
    """
    if not target:
        raise _wrong("the list of replicas is empty")
    twice = sorted({replica for replica in target if target.count(replica) > 1})
    if twice:
        raise _wrong(f"the list of replicas has broker {twice[0]} more than once")
    dead = sorted(replica for replica in target if replica not in live and replica not in assignment.replicas)
    if dead:
        known = ", ".join(map(str, sorted(live))) or "none"
        raise _wrong(f"broker{'s' * (len(dead) > 1)} {_listed(dead)} cannot be added: not live (live brokers: {known})")
    if not may_change_factor and len(target) != len(assignment.origin):
        raise BrokerError(
            ErrorCode.invalid_replication_factor,
            f"the replication factor would change from {len(assignment.origin)} to {len(target)}, "
            "which the request does not allow",
        )


def begin(assignment: ReplicaAssignment, target: Sequence[int]) -> ReplicaAssignment:
    """Returns the assignment with which a reassignment to `target` starts; it replaces one that is in progress.

    The state does not change: added replicas start to follow, and none leaves. With the same replicas in another order
    there is nothing to wait for.
    """
    leaving = [replica for replica in assignment.replicas if replica not in target]
    replicas = (*target, *leaving)
    origin = assignment.origin
    return ReplicaAssignment(replicas, tuple(r for r in replicas if r not in origin), tuple(leaving))


def completed(
    assignment: ReplicaAssignment, state: PartitionState, registrations: Registrations, min_insync_replicas: int
) -> Reassigned | None:
    """Returns the change that completes the reassignment; None while it must wait.

    It waits until every added replica is in sync, the target has as many in-sync replicas as the minimum requires, and
    one of them can lead.
    """
    if not assignment.is_reassigning:
        return None
    target = assignment.target
    stays = [member for member in state.isr if member in target]
    if not all(replica in stays for replica in target if replica in assignment.adding):
        return None
    after = ReplicaAssignment(target)
    if len(stays) < effective_min_isr(min_insync_replicas, after):
        return None
    changed = _restricted(assignment, after, state, registrations, min_insync_replicas)
    return None if changed is None else Reassigned(after, changed)


def cancelled(
    assignment: ReplicaAssignment, state: PartitionState, registrations: Registrations, min_insync_replicas: int
) -> Reassigned:
    """Returns the change that drops the added replicas.

    Raises `BrokerError` NO_REASSIGNMENT_IN_PROGRESS. Raises INVALID_REPLICA_ASSIGNMENT if none of the earlier replicas
    is in sync and can lead, since records would be lost, or if acknowledged records would be on fewer than
    `min.insync.replicas` of them. (Kafka checks the first only.)
    """
    if not assignment.is_reassigning:
        raise BrokerError(ErrorCode.no_reassignment_in_progress, "no reassignment of the partition is in progress")
    after = ReplicaAssignment(assignment.origin)
    changed = _restricted(assignment, after, state, registrations, min_insync_replicas)
    if changed is None:
        raise _wrong(
            f"the reassignment cannot be cancelled: of its earlier replicas {_listed(assignment.origin)} none is live "
            "and in sync, so records would be lost"
        )
    least = min(effective_min_isr(min_insync_replicas, after), len(state.members))
    if len(changed.members) < least:
        raise _wrong(
            f"the reassignment cannot be cancelled yet: of its earlier replicas {_listed(assignment.origin)} only "
            f"{_listed(changed.members)} has the acknowledged records, which must be on {least} (min.insync.replicas)"
        )
    return Reassigned(after, changed)


def _restricted(
    before: ReplicaAssignment,
    after: ReplicaAssignment,
    state: PartitionState,
    registrations: Registrations,
    min_insync_replicas: int,
) -> PartitionState | None:
    """Returns the state without the members that are not in `after`; None while none of the remaining can lead.

    Only a live and sound member leads, and without one no member leaves (docs/replication.md, R7). The members that
    leave do not enter the ELR: they are no replicas any more. A replica that leaves deletes its log, so a new leader
    epoch starts (R8).
    """
    isr = tuple(member for member in state.isr if member in after.replicas)
    able = [replica for replica in after.replicas if replica in isr and _is_sound(replica, state, registrations)]
    if not able:
        return None
    leader, drops = state.leader, not set(before.replicas) <= set(after.replicas)
    stays = leader in able and registrations[leader].epoch == state.leader_broker_epoch
    if not stays:
        leader = next((replica for replica in able if registrations[replica].takes_records), able[0])
    kept_elr = [member for member in state.elr if member in after.replicas]
    elr = next_elr(isr, kept_elr, (), effective_min_isr(min_insync_replicas, after))
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch if stays and not drops else state.leader_epoch + 1,
        leader_broker_epoch=registrations[leader].epoch,
        isr=isr,
        elr=elr,
        data_ids={member: state.data_ids[member] for member in isr + elr},
    )


def _is_sound(replica: int, state: PartitionState, registrations: Registrations) -> bool:
    return standing(registrations.get(replica), state.data_ids.get(replica)) is Standing.SOUND


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def _wrong(why: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_replica_assignment, why)
