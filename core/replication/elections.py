"""The controller's election rule: chooses a partition's leader from its state, the live brokers and their data
(docs/replication.md, R7 and R8).

A pure function of what was read. Its result is written on condition that nothing has changed since (`MetadataChange`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .partition_state import NO_EPOCH, NO_LEADER, PartitionState, next_elr
from .registrations import BrokerRegistration, Registrations, Standing, standing


@dataclass(frozen=True, slots=True)
class RecoveredEnd:
    """The end of a replica's log, from `/brokers/recovered/<id>`. While the partition has no leader, all replicas but
    sound members report it.

    `last_epoch` is the epoch of the last record, `NO_EPOCH` if there is none. All records below `high_watermark` are
    committed; others may be, too. The report counts only with the state's leader epoch and the replica's newest data
    id: under an earlier epoch the replica may have followed a leader since, so that its log was longer or shorter.
    """

    leader_epoch: int
    data_id: str
    last_epoch: int
    end_offset: int
    high_watermark: int = 0


def elect(
    state: PartitionState,
    replicas: Sequence[int],
    registrations: Registrations,
    recovered: Mapping[int, RecoveredEnd],
    min_insync_replicas: int,
    controller_epoch: int,
    *,
    unclean: bool = False,
) -> PartitionState | None:
    """Returns the state that the controller of this epoch should write; None if nothing changes.

    `replicas` in order of preference. `unclean`: `unclean.leader.election.enable`, or ElectLeaders(UNCLEAN).
    """
    standings = {member: standing(registrations.get(member), state.data_ids.get(member)) for member in state.members}
    trusted = [member for member, found in standings.items() if found in (Standing.SOUND, Standing.ABSENT)]
    if not trusted:
        elected = _without_trusted_members(state, standings, replicas, registrations, recovered)
    else:
        elected = _among_trusted_members(state, trusted, standings, replicas, registrations, min_insync_replicas)
    if elected.leader == NO_LEADER and unclean:
        elected = _unclean(elected, replicas, registrations, recovered)
    return None if elected == state else replace(elected, controller_epoch=controller_epoch)


def _among_trusted_members(
    state: PartitionState,
    trusted: list[int],
    standings: Mapping[int, Standing],
    replicas: Sequence[int],
    registrations: Registrations,
    min_insync_replicas: int,
) -> PartitionState:
    """Elects a live sound member if there is one; doubtful and new members then leave the ISR.

    Until then no member leaves: an absent member that is presumed sound may come back doubtful, and then a doubtful one
    may have more records. So may a live one, whose session has outlived its power: while the ISR is below the minimum,
    doubtful members are in the ELR, too.
    """
    sound = [member for member in trusted if standings[member] is Standing.SOUND]
    live = _prefer_staying([member for member in state.isr if member in sound], registrations)
    live = _prefer_with_room(live, state, registrations, min_insync_replicas)
    if not live:
        live_elr = _prefer_staying([member for member in state.elr if member in sound], registrations)
        live_elr = [member for member in live_elr if not registrations[member].full] or live_elr
        live = [member for member in replicas if member in live_elr][:1]
    if not live:
        return _without_leader(state)
    not_new = [member for member in state.members if standings[member] is not Standing.NEW]
    removed = [member for member in state.isr if member in not_new and member not in live]
    elr = [member for member in state.elr if member in not_new]
    leader = state.leader
    if leader not in live or not _leads_under_its_registration(state, registrations[leader]):
        leader = next(member for member in replicas if member in live)
    return _changed(
        state,
        leader,
        registrations[leader].epoch,
        tuple(live),
        next_elr(tuple(live), elr, removed, min_insync_replicas),
        state.data_ids,
    )


def has_live_leader(state: PartitionState, registrations: Registrations) -> bool:
    """Returns True if the leader is registered and has not registered again since it was elected."""
    leader = registrations.get(state.leader)
    return leader is not None and _leads_under_its_registration(state, leader)


def _leads_under_its_registration(state: PartitionState, registration: BrokerRegistration) -> bool:
    """Returns False after a restart of the leader, which is a new registration and needs a new leader epoch (R8)."""
    return registration.epoch == state.leader_broker_epoch


def _prefer_staying(live: list[int], registrations: Registrations) -> list[int]:
    """Leaves out brokers that are leaving, if others remain."""
    return [member for member in live if not registrations[member].leaving] or live


def _prefer_with_room(
    live: list[int], state: PartitionState, registrations: Registrations, min_insync_replicas: int
) -> list[int]:
    """Leaves out members whose disk is full, if others have space: each record would wait for them.

    A leader with a full disk stays while fewer others than the minimum have space. Another leader could not accept
    acks=all either, and would not show the last committed records, since it does not know that they are committed.
    """
    room = [member for member in live if not registrations[member].full]
    leader = state.leader
    if (
        0 < len(room) < min_insync_replicas
        and leader in live
        and leader not in room
        and _leads_under_its_registration(state, registrations[leader])
    ):
        return [member for member in live if member == leader or member in room]
    return room or live


def _without_trusted_members(
    state: PartitionState,
    standings: Mapping[int, Standing],
    replicas: Sequence[int],
    registrations: Registrations,
    recovered: Mapping[int, RecoveredEnd],
) -> PartitionState:
    """Elects when no member is sound and none is absent, as after a power loss of all.

    First the partition loses its leader, which ends all appends; then every member reports where its log ends; then the
    member with the largest (last epoch, end) leads. Of all records that any member still has, it has those that were
    committed. A new member has lost everything: the others then cannot prove that they lack nothing, unless there is
    no record left on any replica. If no member has a record, they have lost those that a live replica knows to be
    committed: then none leads either. The only replica leads at once, whatever it has.
    """
    if len(replicas) == 1 and state.members == tuple(replicas):
        return _alone(state, registrations[replicas[0]])
    if state.leader != NO_LEADER:
        return _without_leader(state)
    lost = any(found is Standing.NEW for found in standings.values())
    if lost and any(replica not in registrations for replica in replicas):
        return state
    compared = replicas if lost else state.members
    if awaited_ends(state, compared, registrations, recovered):
        return state
    leader = _furthest({replica: recovered[replica] for replica in compared})
    if lost or recovered[leader].last_epoch == NO_EPOCH:
        live = [replica for replica in replicas if replica in registrations]
        if awaited_ends(state, live, registrations, recovered):
            return state
        ends = {each: recovered[each] for each in live}
        if all(end.last_epoch == NO_EPOCH for end in ends.values()):
            leader = _furthest(ends)
        elif lost or max(end.high_watermark for end in ends.values()) > recovered[leader].end_offset:
            return state
    return _alone(state, registrations[leader])


def _without_leader(state: PartitionState) -> PartitionState:
    return _changed(state, NO_LEADER, NO_EPOCH, state.isr, state.elr, state.data_ids)


def awaited_ends(
    state: PartitionState,
    replicas: Sequence[int],
    registrations: Registrations,
    recovered: Mapping[int, RecoveredEnd],
) -> list[int]:
    """Returns the live replicas that have not reported yet where their log ends."""
    live = {replica: registrations[replica] for replica in replicas if replica in registrations}
    ends = {replica: recovered.get(replica) for replica in live}
    return [replica for replica, end in ends.items() if end is None or not _counts(end, state, live[replica])]


def _furthest(ends: Mapping[int, RecoveredEnd]) -> int:
    """Returns the replica with the largest (last epoch, end), the first of several.

    A log whose records were all deleted has no last epoch. It begins where records were committed and deleted, so it
    leads if it ends behind the best of the others: their offsets up to there must not be given to other records.
    """
    without_records = [member for member, end in ends.items() if end.last_epoch == NO_EPOCH]
    with_records = [member for member in ends if member not in without_records]
    best = max(with_records, key=lambda member: (ends[member].last_epoch, ends[member].end_offset), default=None)
    empty = max(without_records, key=lambda member: ends[member].end_offset, default=None)
    if best is None or (empty is not None and ends[empty].end_offset > ends[best].end_offset):
        assert empty is not None
        return empty
    return best


def _counts(end: RecoveredEnd, state: PartitionState, registration: BrokerRegistration) -> bool:
    return (end.leader_epoch, end.data_id) == (state.leader_epoch, registration.data_id)


def _unclean(
    state: PartitionState,
    replicas: Sequence[int],
    registrations: Registrations,
    recovered: Mapping[int, RecoveredEnd],
) -> PartitionState:
    """Elects a live replica that may lack committed records, which are then lost: the one whose log ends furthest, once
    all live replicas have reported, as KIP-966's unclean recovery does. If several logs end there, members of the state
    come first, then replicas that can store records. A single live replica leads at once."""
    live = [replica for replica in dict.fromkeys((*state.members, *replicas)) if replica in registrations]
    live.sort(key=lambda replica: (replica not in state.members, not registrations[replica].takes_records))
    if len(live) == 1:
        return _alone(state, registrations[live[0]])
    if not live or awaited_ends(state, live, registrations, recovered):
        return state
    return _alone(state, registrations[_furthest({replica: recovered[replica] for replica in live})])


def _alone(state: PartitionState, registration: BrokerRegistration) -> PartitionState:
    member = registration.broker_id
    return _changed(state, member, registration.epoch, (member,), (), {member: registration.data_id})


def _changed(
    state: PartitionState,
    leader: int,
    leader_broker_epoch: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    data_ids: Mapping[int, str],
) -> PartitionState:
    """Returns the changed state. Another leader, or another registration of the leader, starts a new leader epoch."""
    same = (leader, leader_broker_epoch) == (state.leader, state.leader_broker_epoch)
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch if same else state.leader_epoch + 1,
        leader_broker_epoch=leader_broker_epoch,
        isr=isr,
        elr=elr,
        data_ids={member: data_ids[member] for member in isr + elr},
    )
