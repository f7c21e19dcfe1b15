"""Planted bugs, one for each rule of the protocol. Each must be caught: by random schedules, or by its own script.

`rule` is the number in docs/replication.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from klamm.core.broker.replication import roles
from klamm.core.broker.replication.full_disk import RegisteredDisk
from klamm.core.broker.replication.log_reports import Ends, LogReports
from klamm.core.broker.replication.roles import Member, Refreshing, Roles
from klamm.core.cluster import change_writer, image_reader, node, reassignment, restored
from klamm.core.cluster.brokers import reports
from klamm.core.cluster.brokers.incarnations import evict_operations
from klamm.core.cluster.brokers.registration import Registration
from klamm.core.cluster.change_writer import ChangeWriter, Plan
from klamm.core.cluster.changes import change_operations, controller_guard
from klamm.core.cluster.control import controller, leadership, tasks
from klamm.core.cluster.control.cold_start import ColdStart
from klamm.core.cluster.control.controller import Controller
from klamm.core.cluster.control.leadership import Terms
from klamm.core.cluster.control.tasks import ControllerTasks
from klamm.core.cluster.image import BrokerNode, ClusterImage
from klamm.core.cluster.image_reader import image_steps
from klamm.core.cluster.node import ClusterNode
from klamm.core.cluster.reassignment import Reassigned, ReplicaAssignment
from klamm.core.cluster.tree.nodes import BrokerIdNode
from klamm.core.cluster.tree.paths import LAST_CHANGE
from klamm.core.cluster.tree.steps import Steps
from klamm.core.errors import LogEndMovedError
from klamm.core.interfaces.coordination import ANY_VERSION, Check, Operation, Set, Stat
from klamm.core.log import data_ids
from klamm.core.log.data_ids import DataIdentity, identity_at_start
from klamm.core.records.offset_and_epoch import OffsetAndEpoch
from klamm.core.records.partition import TopicPartition
from klamm.core.replication import elections, partition, partition_state
from klamm.core.replication.delayed_produce import DelayedProduces
from klamm.core.replication.follower import FetchResult, PartitionFollower
from klamm.core.replication.leader import IsrProposal, PartitionLeader, ProposalOutcome
from klamm.core.replication.partition import Partition
from klamm.core.replication.partition_state import NO_EPOCH, PartitionState
from klamm.core.replication.registrations import BrokerRegistration, Registrations, Standing
from klamm.core.replication.replica_fetch import ReplicaFetch, ReplicaFetchData

from .broker import Waiter
from .memory_log import MemoryLog
from .runner import Mutation

Proposals = Sequence[tuple[TopicPartition, IsrProposal]]
Begun = Mapping[TopicPartition, int]


# -- the leader --------------------------------------------------------------------------------------------------

_propose: Final = PartitionLeader._propose
_on_outcome: Final = PartitionLeader.on_outcome
_check_divergence: Final = PartitionLeader._check_divergence
_may_join: Final = PartitionLeader._may_join


def _high_watermark_of(leader: PartitionLeader) -> int:
    return leader._log.high_watermark


def _look_at_the_stored_isr(leader: PartitionLeader) -> None:
    leader._maximal_isr = frozenset(leader.state.isr)
    leader._others = tuple(leader._maximal_isr - {leader.broker_id})


def _not_refused(_: PartitionLeader, __: ReplicaFetch) -> None:
    return None


def _propose_and_believe(leader: PartitionLeader, proposal: IsrProposal) -> None:
    _propose(leader, proposal)
    leader.state = proposal.state
    leader._cache_isr()


def _advance_whatever_the_isr(leader: PartitionLeader) -> bool:
    ends = [leader._followers[member].log_end_offset for member in leader._maximal_isr if member != leader.broker_id]
    return leader._log.advance_high_watermark(min([leader._log.reported_end_offset, *ends]))


def _always_registered(_: PartitionLeader, __: ReplicaFetch, ___: BrokerRegistration | None) -> bool:
    return True


def _may_join_under_any_epoch(leader: PartitionLeader, registration: BrokerRegistration, now_ms: float) -> bool:
    follower = leader._followers.get(registration.broker_id)
    return (
        follower is not None
        and registration.broker_id not in leader.state.isr
        and registration.takes_records
        and follower.is_caught_up(leader._log.log_end_offset, now_ms, leader._settings.replica_lag_time_max_ms)
        and follower.log_end_offset >= leader._least_end_to_join
    )


def _may_join_though_leaving(leader: PartitionLeader, registration: BrokerRegistration, now_ms: float) -> bool:
    return _may_join(leader, replace(registration, leaving=False), now_ms)


def _forget_when_not_answered(leader: PartitionLeader, proposal: IsrProposal, outcome: ProposalOutcome) -> None:
    _on_outcome(leader, proposal, ProposalOutcome.REFUSED if outcome is ProposalOutcome.UNKNOWN else outcome)


def _stay(_: PartitionLeader) -> None:
    return None


def _diverging_with_watermark(leader: PartitionLeader, fetch: ReplicaFetch) -> ReplicaFetchData | None:
    answer = _check_divergence(leader, fetch)
    return None if answer is None else answer._replace(high_watermark=leader._log.high_watermark)


# -- the follower ------------------------------------------------------------------------------------------------

_on_answer: Final = PartitionFollower.on_answer


def _truncate_whenever_told(follower: PartitionFollower, fetch: ReplicaFetch, answer: ReplicaFetchData) -> FetchResult:
    if answer.diverging_epoch is not None and answer.error is ErrorCode.none:
        return follower._diverged(answer.diverging_epoch)
    return _on_answer(follower, fetch, answer)


def _watermark_then_truncate(follower: PartitionFollower, fetch: ReplicaFetch, answer: ReplicaFetchData) -> FetchResult:
    if answer.diverging_epoch is not None and follower._is_current(fetch):
        follower._log.advance_high_watermark(answer.high_watermark)
    return _on_answer(follower, fetch, answer)


def _watermark_then_start(follower: PartitionFollower, answer: ReplicaFetchData) -> None:
    follower._log.advance_high_watermark(answer.high_watermark)
    follower._log.advance_log_start(answer.log_start_offset)


def _always_in_role(_: MemoryLog, __: tuple[str, int], ___: int | None = None) -> None:
    return None


_truncate_to: Final = MemoryLog.truncate_to


def _truncate_only_records(log: MemoryLog, offset: int, leader_epoch: int, term: int | None = None) -> None:
    if offset < log.log_end_offset:
        _truncate_to(log, offset, leader_epoch, term)


# -- states and elections ----------------------------------------------------------------------------------------

_changed: Final = elections._changed
_among: Final = elections._among_trusted_members


def _is_under_min_isr_by_count(self: PartitionLeader) -> bool:
    return len(self.state.isr) < self.min_insync_replicas


def _elr_whatever_the_isr(isr: tuple[int, ...], elr: Sequence[int], removed: Sequence[int], _: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(member for member in (*elr, *removed) if member not in isr))


def _leads_by_name(state: PartitionState, broker_id: int, registration: BrokerRegistration | None) -> bool:
    return registration is not None and state.leader == broker_id


def _leads_under_any_data(state: PartitionState, broker_id: int, registration: BrokerRegistration | None) -> bool:
    return registration is not None and state.leader == broker_id and registration.epoch == state.leader_broker_epoch


def _sound_if_live(registration: BrokerRegistration | None, _: str | None) -> Standing:
    return Standing.ABSENT if registration is None else Standing.SOUND


def _changed_in_the_same_epoch(
    state: PartitionState, leader: int, leader_broker_epoch: int, *rest: object
) -> PartitionState:
    changed = _changed(state, leader, leader_broker_epoch, *rest)  # type: ignore[arg-type]
    return replace(changed, leader_epoch=state.leader_epoch) if leader == state.leader else changed


def _doubtful_leave_early(state: PartitionState, trusted: list[int], *rest: object) -> PartitionState:
    after = _among(state, trusted, *rest)  # type: ignore[arg-type]
    if after.leader >= 0:
        return after
    isr = tuple(member for member in state.isr if member in trusted)
    elr = tuple(member for member in state.elr if member in trusted)
    isr, elr = (isr, elr) if isr else (elr[:1], elr[1:])
    return replace(after, isr=isr, elr=elr, data_ids={member: state.data_ids[member] for member in isr + elr})


def _only_trusted_enter_the_elr(state: PartitionState, trusted: list[int], *rest: object) -> PartitionState:
    after = _among(state, trusted, *rest)  # type: ignore[arg-type]
    if after.leader < 0:
        return after
    elr = tuple(member for member in after.elr if member in trusted)
    return replace(after, elr=elr, data_ids={member: after.data_ids[member] for member in after.isr + elr})


def _keep_data_id(
    found: DataIdentity | None, boot_id: str, new_id: Callable[[], str], *, recovery_cut: bool, named: Collection[str]
) -> DataIdentity:
    if found is None:
        return identity_at_start(found, boot_id, new_id, recovery_cut=recovery_cut, named=named)
    return DataIdentity(found.data_ids, boot_id)


def _keep_the_latest_data_ids(
    found: DataIdentity | None, boot_id: str, new_id: Callable[[], str], *, recovery_cut: bool, named: Collection[str]
) -> DataIdentity:
    return identity_at_start(found, boot_id, new_id, recovery_cut=recovery_cut, named=())


# -- Produce and the coordination --------------------------------------------------------------------------------


def _retry_is_done(replica: Partition[Waiter], leader_epoch: int, end_offset: int, waiter: Waiter) -> bool:
    if replica.leader is None or replica.leader.epoch != leader_epoch:
        return False
    waiting: DelayedProduces[Waiter] = replica._delayed
    waiting.add(end_offset if end_offset == replica.log.log_end_offset else 0, waiter)
    replica.leader.advance_high_watermark()
    return True


def _unversioned(*arguments: object, **more: object) -> list[Operation]:
    operations = change_operations(*arguments, **more)  # type: ignore[arg-type]
    return [replace(operation, version=ANY_VERSION) if isinstance(operation, Set) else operation
            for operation in operations if not operation.path.startswith(LAST_CHANGE)]  # fmt: skip


def _registrations_first(previous: ClusterImage | None = None) -> Steps[ClusterImage]:
    early = yield from image_steps(previous)
    return replace((yield from image_steps(previous)), brokers=early.brokers)


def _change_whatever_is_there(of: Registration, _: BrokerIdNode, wanted: BrokerIdNode, __: Stat) -> list[Operation]:
    return [Set(of._path, wanted.encode())]


def _never_lacks(*_: object) -> Steps[bool]:
    yield from ()
    return False


def _held_never(_: ColdStart) -> int:
    return NO_EPOCH


def _no_guard(*_: object) -> list[Operation]:
    return []


# -- the cluster's node ------------------------------------------------------------------------------------------

_attempt: Final = ChangeWriter.attempt


def _proposed_on_whatever_is_read(of: ClusterNode, proposals: Proposals) -> Steps[list[ProposalOutcome]]:
    outcome = yield from of._write(of.image, [each for each in proposals if of.image.partition(each[0]) is not None])
    yield from of.read()
    return [outcome for _ in proposals]


def _unanswered_is_refused(
    writer: ChangeWriter, guard: Sequence[Operation], image: ClusterImage, plan: Plan
) -> Steps[ProposalOutcome]:
    outcome = yield from _attempt(writer, guard, image, plan)
    return ProposalOutcome.REFUSED if outcome is ProposalOutcome.UNKNOWN else outcome


def _published_with_another_image_only(of: ClusterNode, *, changed: bool) -> Steps[None]:
    yield from ()
    if changed:
        of._on_news()


def _caught_up_unregistered(of: ClusterNode) -> Steps[None]:
    if of._expired or of.own_registration is not None:
        yield from _catch_up(of)
        return
    yield from of.read()
    if (yield from of.controller.elect()):
        yield from of._control(of.image)


_catch_up: Final = ClusterNode.catch_up


# -- the controller ----------------------------------------------------------------------------------------------


def _never_waits(*_: object) -> bool:
    return False


def _over_by_any_change(of: ColdStart, version: int, by: str, _: int | None) -> None:
    if of._first is not None and version > of._first and not by.startswith(of._writer):
        of._over = True


def _held_for_the_absent_only(
    state: PartitionState, replicas: Sequence[int], registrations: Registrations, terms: Terms
) -> bool:
    if state.leader_broker_epoch >= terms.held_below:
        return False
    return any(replica not in registrations for replica in replicas)


def _evicted_by_a_backup(of: ControllerTasks, evicted: BrokerNode) -> Steps[None]:
    def plan(image: ClusterImage) -> Steps[Plan | None]:
        found = image.registrations.get(evicted.id)
        if found is None or found.incarnation != evicted.registration.incarnation:
            return None
        changed = yield from of._first_elections(image, set(image.brokers) - {evicted.id})
        return Plan(changed, operations=evict_operations(found))

    yield from of._change(plan)


def _first_live_in_the_assignment(
    state: PartitionState, replicas: Sequence[int], registrations: Registrations, _: object
) -> PartitionState:
    live = [replica for replica in replicas if replica in registrations]
    return elections._alone(state, registrations[live[0]]) if live else state


def _lease_ended_whichever_it_is(of: Controller, refused: bool = False) -> Steps[Sequence[Operation]]:
    lease = of.lease
    if lease is None:
        raise of._not_controller()
    if refused and (yield from of._read_lease()).version != lease.version:
        of._lease = None
        raise of._not_controller()
    return controller_guard(lease.version)


def _as_if_it_had_room(of: RegisteredDisk) -> None:
    of._full = False


def _none_over(*_: object) -> None:
    return None


def _none_doubted(*_: object) -> dict[TopicPartition, PartitionState]:
    return {}


# -- roles -------------------------------------------------------------------------------------------------------

_refresh: Final = Roles.refresh


class _Unrestored:
    """A member that does not know of a restore."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._read: ClusterImage | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    @property
    def image(self) -> ClusterImage:
        found = self._member.image
        if found.restored is None:
            return found
        without = replace(found, restored=None)
        if self._read != without:
            self._read = without
        assert self._read is not None
        return self._read


def _roles_by_a_backup(of: Roles[Any]) -> Refreshing:
    if not isinstance(of._member, _Unrestored):
        of._member = _Unrestored(of._member)
    return _refresh(of)


def _never_raised(of: Roles[Any]) -> Steps[bool]:
    yield from ()
    return not of._over


def _reported_by_the_attempt(
    of: LogReports, incarnation: str, recovered: Ends, offline: frozenset[TopicPartition]
) -> Steps[None]:
    of._incarnation, of._recovered, of._offline = incarnation, recovered, offline
    yield from of._reporter.report_recovered(recovered)


def _unguarded(_: str) -> Steps[Operation]:
    yield from ()
    return Check("/")


# -- reassignments -----------------------------------------------------------------------------------------------

_restricted: Final = reassignment._restricted


def _restricted_in_the_same_epoch(
    before: ReplicaAssignment,
    after: ReplicaAssignment,
    state: PartitionState,
    registrations: Registrations,
    min_insync_replicas: int,
) -> PartitionState | None:
    changed = _restricted(before, after, state, registrations, min_insync_replicas)
    if changed is None or (changed.leader, changed.leader_broker_epoch) != (state.leader, state.leader_broker_epoch):
        return changed
    return replace(changed, leader_epoch=state.leader_epoch)


def _cancelled_at_once(
    assignment: ReplicaAssignment, state: PartitionState, registrations: Registrations, _: int
) -> Reassigned:
    return reassignment.cancelled(assignment, state, registrations, 1)


# -- conditional appends -----------------------------------------------------------------------------------------


def _any_end(*_: object) -> bool:
    return True


def _same_offset(expected: OffsetAndEpoch, end: OffsetAndEpoch) -> bool:
    return expected.offset == end.offset


def _ends_at_watermark(log: MemoryLog, expected: OffsetAndEpoch) -> None:
    if expected.offset != log.high_watermark:
        raise LogEndMovedError(f"{log.name}: {expected}")


MUTATIONS: Final = {
    mutation.name: mutation
    for mutation in (
        Mutation(
            "joins-before-epoch-start", "R4", "a follower joins the ISR before it has reached the epoch's start",
            ((PartitionLeader, "_least_end_to_join", property(_high_watermark_of)),),
        ),
        Mutation(
            "stored-isr", "R2", "the high watermark is that of the stored ISR, not the maximal one",
            ((PartitionLeader, "_cache_isr", _look_at_the_stored_isr),),
        ),
        Mutation(
            "fetch-epoch-unchecked", "R3", "the leader counts a Fetch of another leader epoch",
            ((PartitionLeader, "_check_epoch", _not_refused),),
        ),
        Mutation(
            "no-divergence-check", "R3", "the leader counts a Fetch whose log diverges",
            ((PartitionLeader, "_check_divergence", _not_refused),),
        ),
        Mutation(
            "truncation-keeps-epochs", "R9", "truncate_to(log end) keeps the epochs that begin there",
            ((MemoryLog, "truncate_to", _truncate_only_records),),
        ),
        Mutation(
            "unversioned-state", "order of changes", "states are written whatever their version",
            ((change_writer, "change_operations", _unversioned),),
        ),
        Mutation(
            "elr-kept", "R6", "the ELR is kept though the watermark moves",
            (
                (partition_state, "next_elr", _elr_whatever_the_isr), (elections, "next_elr", _elr_whatever_the_isr),
                (PartitionLeader, "is_under_min_isr", property(_is_under_min_isr_by_count)),
            ),
        ),
        Mutation(
            "late-diverging-answer", "R9", "a diverging answer to an earlier request truncates",
            ((PartitionFollower, "on_answer", _truncate_whenever_told),),
        ),
        Mutation(
            "retry-acknowledged-early", "acks=all", "a retry is acknowledged before its records are committed",
            ((Partition, "appended", _retry_is_done),),
        ),
        Mutation(
            "shrink-believed", "R5", "a proposed ISR counts before it is stored",
            ((PartitionLeader, "_propose", _propose_and_believe),),
        ),
        Mutation(
            "lost-answer-forgotten", "R5", "a proposal whose write was not answered is dropped",
            ((PartitionLeader, "on_outcome", _forget_when_not_answered),),
        ),
        Mutation(
            "deposed-leader-commits", "R12", "the answer to a proposal moves the watermark of a deposed leader",
            ((PartitionLeader, "resign", _stay),),
        ),
        Mutation(
            "watermark-under-min-isr", "R2", "the high watermark rises while the ISR is below the minimum",
            ((PartitionLeader, "advance_high_watermark", _advance_whatever_the_isr),),
        ),
        Mutation(
            "power-loss-keeps-data-id", "data id", "a start after a power loss keeps the data id",
            ((data_ids, "identity_at_start", _keep_data_id),),
        ),
        Mutation(
            "old-data-id-forgotten", "data id", "a start keeps the latest data ids only, whatever the states name",
            ((data_ids, "identity_at_start", _keep_the_latest_data_ids),),
        ),
        Mutation(
            "watermark-before-truncation", "R9", "a follower takes the watermark of a diverging answer, then truncates",
            ((PartitionLeader, "_check_divergence", _diverging_with_watermark),
             (PartitionFollower, "on_answer", _watermark_then_truncate)),
        ),
        Mutation(
            "watermark-before-log-start", "R9", "a follower takes the leader's watermark before its log start",
            ((PartitionFollower, "_take_bounds", _watermark_then_start),),
        ),
        Mutation(
            "reborn-leads", "R1", "a broker leads because the state names it, under whatever registration",
            ((partition, "leads", _leads_by_name), (roles, "leads", _leads_by_name)),
        ),
        Mutation(
            "isr-by-broker-id", "R7", "a live member of the ISR is sound, whatever its data",
            ((elections, "standing", _sound_if_live), (partition, "leads", _leads_under_any_data),
             (roles, "leads", _leads_under_any_data)),
        ),
        Mutation(
            "doubtful-leave-early", "R7", "doubtful members leave while the others are absent",
            ((elections, "_among_trusted_members", _doubtful_leave_early),),
        ),
        Mutation(
            "doubtful-leave-for-the-dead", "R7", "doubtful members leave an ISR below the minimum",
            ((elections, "_among_trusted_members", _only_trusted_enter_the_elr),),
        ),
        Mutation(
            "broker-epoch-unchecked", "R3", "a Fetch of a follower's earlier registration counts",
            ((PartitionLeader, "_is_registered", _always_registered),
             (PartitionLeader, "_may_join", _may_join_under_any_epoch)),
        ),
        Mutation(
            "earlier-registration-counts", "R3", "a Fetch of a follower's earlier registration moves the watermark",
            ((PartitionLeader, "_is_registered", _always_registered),),
        ),
        Mutation(
            "earlier-registration-joins", "R4", "a follower joins by what its earlier registration fetched",
            ((PartitionLeader, "_may_join", _may_join_under_any_epoch),),
        ),
        Mutation(
            "leaving-joins", "R4", "a broker that is leaving joins the ISR",
            ((PartitionLeader, "_may_join", _may_join_though_leaving),),
            covered="it has what a member must have; the controller takes it out again, so that its shutdown is slower",
        ),
        Mutation(
            "registrations-first", "R10", "registrations are read before the states that are judged by them",
            ((node, "image_steps", _registrations_first),),
            covered="a registration may change between any read and the write; the state's version and R1 decide",
        ),
        Mutation(
            "role-unchecked", "R11", "the log stores an append of an epoch that its broker has left",
            ((MemoryLog, "_check_role", _always_in_role),),
        ),
        Mutation(
            "renewal-unchecked", "registrations", "a late renewal changes a later registration of the broker",
            ((Registration, "_changes", _change_whatever_is_there),),
        ),
        Mutation(
            "restart-in-same-epoch", "R8", "a leader that is back under a new registration keeps its epoch",
            ((elections, "_changed", _changed_in_the_same_epoch),),
        ),
        Mutation(
            "controller-epoch-unchecked", "guard", "a deposed controller's write is not refused",
            ((controller, "controller_guard", _no_guard),),
        ),
        Mutation(
            "restored-unchecked", "R13", "a broker takes a coordination that lacks what it has seen for the newest",
            ((restored, "lacks_change", _never_lacks), (node, "lacks_change", _never_lacks),
             (image_reader, "lacks_change", _never_lacks)),
        ),
        Mutation(
            "cold-start-elects", "R13", "the first broker of a cluster that starts elects by what it finds",
            ((ColdStart, "held_below", _held_never),),
        ),
        Mutation(
            "restored-while-they-run", "R13", "a broker that runs does not notice that the coordination went back",
            ((node, "lacks_change", _never_lacks), (image_reader, "lacks_change", _never_lacks)),
        ),
        Mutation(
            "removed-in-same-epoch", "R8", "a replica that is removed, and has deleted its log, ends no leader epoch",
            ((reassignment, "_restricted", _restricted_in_the_same_epoch),),
        ),
        Mutation(
            "cancelled-below-minimum", "R8", "a reassignment is cancelled though too few earlier replicas are in sync",
            ((tasks, "cancelled", _cancelled_at_once),),
        ),
        Mutation(
            "proposal-on-newer-image", "R5", "an ISR is written on another image than that it was proposed from",
            ((ClusterNode, "_propose", _proposed_on_whatever_is_read),),
        ),
        Mutation(
            "unanswered-write-refused", "R5", "a change that was not answered counts as refused",
            ((ChangeWriter, "attempt", _unanswered_is_refused),),
        ),
        Mutation(
            "report-by-the-attempt", "R7", "a report whose write was not answered is not written again",
            ((LogReports, "write", _reported_by_the_attempt),),
        ),
        Mutation(
            "report-of-the-dead", "R7", "a late write of a process that has ended replaces its successor's report",
            ((reports, "_begun", _unguarded),),
        ),
        Mutation(
            "left-epoch-kept", "R5", "a leader that has left its epoch begins no new one",
            ((Roles, "_raise_epochs", _never_raised),),
        ),
        Mutation(
            "metadata-not-forgotten", "R13", "replicas keep what they knew when the coordination went back",
            ((roles, "_went_back", _never_waits),),
        ),
        Mutation(
            "roles-by-a-backup", "R13", "the states of a backup give roles",
            ((Roles, "refresh", _roles_by_a_backup),),
        ),
        Mutation(
            "any-change-ends-cold-start", "R13", "a change by a broker that starts, too, ends the wait for the others",
            ((ColdStart, "saw", _over_by_any_change),),
        ),
        Mutation(
            "backup-registrations-count", "R13", "a registration that the backup has counts as a broker that is back",
            ((leadership, "is_held", _held_for_the_absent_only), (tasks, "is_held", _held_for_the_absent_only)),
        ),
        Mutation(
            "preferred-at-cold-start", "R13", "a preferred replica is elected while the cluster starts",
            ((ControllerTasks, "_waits", _never_waits),),
        ),
        Mutation(
            "evicted-by-a-backup", "R13", "an eviction elects by the states of a backup",
            ((ControllerTasks, "_evict", _evicted_by_a_backup),),
        ),
        Mutation(
            "unclean-by-assignment", "R7", "an unclean election takes the first live replica, not the longest log",
            ((elections, "_unclean", _first_live_in_the_assignment),),
        ),
        Mutation(
            "epoch-that-is-over", "R5", "a broker leads again in a leader epoch that its log or it has left",
            ((roles, "epoch_that_is_over", _none_over),),
        ),
        Mutation(
            "append-after-unchecked", "conditional appends", "a conditional append is stored wherever the log ends",
            ((OffsetAndEpoch, "is_end", _any_end),),
        ),
        Mutation(
            "append-after-any-epoch", "conditional appends", "the epoch before the end is not compared",
            ((OffsetAndEpoch, "is_end", _same_offset),),
        ),
        Mutation(
            "append-after-watermark", "conditional appends", "the high watermark is compared, not the log's end",
            ((MemoryLog, "_check_ends", _ends_at_watermark),),
        ),
        Mutation(
            "lease-of-since-ended", "guard", "a refused write ends a lease that was taken since in the same session",
            ((Controller, "guard", _lease_ended_whichever_it_is),),
            covered="the controller's next task finds no lease, and the broker is elected again",
        ),
        Mutation(
            "unanswered-disk-forgotten", "full disks", "a write that the disk has room, not answered, is not repeated",
            ((RegisteredDisk, "writing", _as_if_it_had_room),),
        ),
        Mutation(
            "evicted-stays-out", "registrations", "a broker whose registration was ended does not register again",
            ((ClusterNode, "catch_up", _caught_up_unregistered),),
        ),
        Mutation(
            "restored-not-doubted", "R13", "the states of a backup are not taken for doubted",
            ((tasks, "doubted", _none_doubted),),
        ),
        Mutation(
            "roles-not-taken-again", "roles", "a broker does not take its roles again with its registration alone",
            ((ClusterNode, "_publish", _published_with_another_image_only),),
        ),
    )
}  # fmt: skip
"""The mutations by name."""
