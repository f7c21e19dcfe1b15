"""The leader of a partition: ends of its followers, high watermark, proposals to change the ISR (docs/replication.md,
R2 to R6).

The leader alone proposes members; the controller removes dead ones. A proposal counts from the moment it is made until
the metadata of a later version is read: until then both sets, the stored and the proposed, hold the watermark back
(KIP-497's maximal ISR). A refusal ends it sooner; a lost answer does not.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from enum import Enum

from kio.schema.errors import ErrorCode

from .follower_state import UNKNOWN_OFFSET, FollowerState
from .histories import common_end, first_conflict, ranges_from
from .partition_state import NO_EPOCH, PartitionState, with_isr
from .registrations import BrokerRegistration, Registrations
from .replica_fetch import EpochEndOffset, ReplicaFetch, ReplicaFetchData
from .replica_log import ReplicaLog


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """`min_insync_replicas` is at most the replication factor (KIP-966's effective minimum)."""

    min_insync_replicas: int
    replica_lag_time_max_ms: float


class ProposalOutcome(Enum):
    """The outcome of writing a proposal."""

    APPLIED = "applied"
    """Written. It takes effect once the leader reads it back."""
    REFUSED = "refused"
    """Not written, and it never will be."""
    UNKNOWN = "unknown"
    """No answer: it was written, was not, or may still be."""


@dataclass(eq=False, slots=True)
class IsrProposal:
    """One attempt to change the ISR, to be written on condition that the metadata is still at `base_version`."""

    base_version: int
    state: PartitionState
    added: tuple[BrokerRegistration, ...]
    """The registrations of the members that it adds; the transaction checks their incarnations."""
    outcome: ProposalOutcome | None = field(default=None)
    """The outcome of the write; None while it is in flight."""
    may_be_written: bool = False
    """True if an earlier write of the same proposal was not answered."""


class PartitionLeader:
    """One partition's leader in one leader epoch. All calls on one thread; `now_ms` is monotonic."""

    def __init__(
        self,
        broker_id: int,
        log: ReplicaLog,
        replicas: tuple[int, ...],
        settings: ReplicationSettings,
        state: PartitionState,
        version: int,
        now_ms: float,
    ) -> None:
        """`state` names this broker as the leader, and its members are among `replicas`, which are in order of
        preference. `version` is the version of the metadata that contained `state`."""
        self.broker_id = broker_id
        self.epoch = state.leader_epoch
        self.state = state
        self.version = version
        self._log = log
        self._replicas = replicas
        self._settings = settings
        self._proposals: list[IsrProposal] = []
        self._cache_isr()
        self._resigned = False
        self._followers = {replica: FollowerState() for replica in replicas if replica != broker_id}
        for member in state.isr:
            if member in self._followers:
                self._followers[member].last_caught_up_ms = now_ms
        self.mirror_term = log.mirror(state.leader_epoch) if state.mirror else None
        """The term in which the log accepts the source's batches; None if clients write the partition."""
        if self.mirror_term is None:
            log.lead(state.leader_epoch)
        self.epoch_start_offset = log.log_end_offset

    # -- the high watermark --------------------------------------------------------------------------------------

    def _cache_isr(self) -> None:
        """Caches what appends need of the state and the proposals. Call it whenever one of them changes. The maximal
        ISR is the stored one and every set that was proposed since and may still be written."""
        self._maximal_isr = frozenset(self.state.isr).union(*(proposal.state.isr for proposal in self._proposals))
        self._others = tuple(self._maximal_isr - {self.broker_id})

    @property
    def min_insync_replicas(self) -> int:
        return self._settings.min_insync_replicas

    @property
    def is_under_min_isr(self) -> bool:
        """True while the high watermark must not rise (R2).

        It is also True while the state has eligible replicas. The state's writer had a higher minimum (a configuration
        that was lowered since, or another broker's default), and the eligible replicas have every committed record only
        as long as the watermark does not rise.
        """
        return len(self.state.isr) < self._settings.min_insync_replicas or bool(self.state.elr)

    @property
    def is_at_min_isr(self) -> bool:
        """True if one in-sync replica fewer would be too few."""
        return len(self.state.isr) == self._settings.min_insync_replicas

    @property
    def is_under_replicated(self) -> bool:
        """True if a replica is not in the stored ISR."""
        return len(self.state.isr) < len(self._replicas)

    def advance_high_watermark(self) -> bool:
        """Raises the high watermark to the end that every member of the maximal ISR has reached; returns True if
        consumers see more.
        """
        if self._resigned or self.is_under_min_isr:
            return False
        committed = self._log.reported_end_offset
        for member in self._others:
            committed = min(committed, self._followers[member].log_end_offset)
        return self._log.advance_high_watermark(committed)

    def follower_bounds(self, replica: int) -> tuple[int, int]:
        """Returns the log start and the log end offset that the follower has reported; -1 for one that it has not."""
        follower = self._followers.get(replica)
        return (-1, -1) if follower is None else (follower.log_start_offset, follower.log_end_offset)

    def low_watermark(self, live: Container[int]) -> int:
        """Returns the least log start offset of the replicas that are `live`, this one included (DeleteRecords); -1 if
        one of them has not reported its log start."""
        starts = [found.log_start_offset for replica, found in self._followers.items() if replica in live]
        return min((self._log.log_start_offset, *starts))

    @property
    def commits_alone(self) -> bool:
        """True if this broker's own append commits: the maximal ISR is this broker, and the minimum allows that."""
        return not self._resigned and not self._others and not self.is_under_min_isr

    @property
    def waits_for_others(self) -> bool:
        """True if another replica is in the maximal ISR. An append then commits nothing by itself: no follower has the
        new records, and earlier ends were taken into account when they were reported."""
        return bool(self._others)

    @property
    def has_proposals(self) -> bool:
        """True if an ISR has been proposed that may still be written."""
        return bool(self._proposals)

    def wants_member(self, replica: int, registration: BrokerRegistration | None, now_ms: float) -> bool:
        """Returns True if the follower, which has just fetched, may join the ISR."""
        return replica not in self.state.isr and registration is not None and self._may_join(registration, now_ms)

    def resign(self) -> None:
        """Stops leading: later events, such as the answer to a proposal, change nothing."""
        self._resigned = True

    @property
    def latest_offset_is_known(self) -> bool:
        """True if the watermark has passed the epoch's start; before that ListOffsets answers OFFSET_NOT_AVAILABLE
        (KIP-207).
        """
        return self._log.high_watermark >= self.epoch_start_offset

    def truncated(self) -> None:
        """Forgets the ends that followers have reported, after a mirror's log was truncated towards its source: what a
        follower had above the new end is not what will be stored there (docs/mirror.md, M6)."""
        for follower in self._followers.values():
            follower.log_end_offset = UNKNOWN_OFFSET
        self.epoch_start_offset = min(self.epoch_start_offset, self._log.log_end_offset)

    # -- followers -----------------------------------------------------------------------------------------------

    def on_fetch(
        self, fetch: ReplicaFetch, registration: BrokerRegistration | None, now_ms: float
    ) -> ReplicaFetchData | None:
        """Records the follower's end, which may raise the high watermark. Returns None if the caller is to read from
        `fetch_offset`, else the answer.

        `registration` is the follower's registration as this broker has read it.
        """
        if self._resigned:
            return ReplicaFetchData(ErrorCode.not_leader_or_follower)
        refused = self._check_epoch(fetch) or self._compare_epochs(fetch) or self._check_divergence(fetch)
        if refused is not None:
            return refused
        start, end = self._log.log_start_offset, self._log.log_end_offset
        if not start <= fetch.fetch_offset <= end or self._is_to_begin_here(fetch):
            return ReplicaFetchData(ErrorCode.offset_out_of_range, log_start_offset=start)
        follower = self._followers.get(fetch.replica_id)
        if follower is not None and self._is_registered(fetch, registration):
            follower.fetched(fetch, end, now_ms)
            self.advance_high_watermark()
        return None

    def _is_to_begin_here(self, fetch: ReplicaFetch) -> bool:
        """Returns True for a follower without a record that begins above this log's start. What lies below it would no
        longer be shown once it leads. A replica that may be elected keeps its end: what is committed depends on it."""
        may_be_elected = fetch.replica_id in self._maximal_isr or fetch.replica_id in self.state.elr
        if fetch.last_fetched_epoch != NO_EPOCH or may_be_elected:
            return False
        return fetch.fetch_offset > self._log.log_start_offset

    def _check_epoch(self, fetch: ReplicaFetch) -> ReplicaFetchData | None:
        if fetch.leader_epoch == self.epoch:
            return None
        fenced = fetch.leader_epoch < self.epoch
        return ReplicaFetchData(ErrorCode.fenced_leader_epoch if fenced else ErrorCode.unknown_leader_epoch)

    def _compare_epochs(self, fetch: ReplicaFetch) -> ReplicaFetchData | None:
        """Returns None unless the follower has sent its epochs, and has records that are of another history than those
        here; else the diverging answer, by which it truncates before the first of them (docs/mirror.md, M13)."""
        if not fetch.epoch_ranges or first_conflict(fetch.epoch_ranges, self._log.epoch_ranges(exact=False)) is None:
            return None
        theirs, ours = fetch.epoch_ranges, self._log.epoch_ranges(exact=True)
        if fetch.replica_id in self._maximal_isr:
            # Both have what was committed before this epoch. What differs below lies in gaps, and must not cost it.
            end = common_end(theirs, ours, self.epoch_start_offset)
            theirs, ours = ranges_from(end, theirs), ranges_from(end, ours)
        conflict = first_conflict(theirs, ours)
        if conflict is None:  # the follower's records lie in a gap of this log
            return None
        return ReplicaFetchData(diverging_epoch=EpochEndOffset(fetch.last_fetched_epoch, conflict))

    def _check_divergence(self, fetch: ReplicaFetch) -> ReplicaFetchData | None:
        """Returns None if the follower's log, up to its end, is a prefix of this one; else the diverging answer
        (KIP-595).
        """
        latest = self._log.leader_epoch
        if fetch.last_fetched_epoch == NO_EPOCH or (
            fetch.last_fetched_epoch == latest and fetch.fetch_offset <= self._log.log_end_offset
        ):
            return None
        epoch, end = self._log.end_offset_for_epoch(fetch.last_fetched_epoch)
        if epoch == fetch.last_fetched_epoch and end >= fetch.fetch_offset:
            return None
        if epoch == NO_EPOCH:  # later than any epoch of this log
            epoch, end = self._log.leader_epoch, self._log.log_end_offset
        if fetch.fetch_offset < self._log.log_start_offset:
            return ReplicaFetchData(ErrorCode.offset_out_of_range, log_start_offset=self._log.log_start_offset)
        return ReplicaFetchData(diverging_epoch=EpochEndOffset(epoch, end))

    def _is_registered(self, fetch: ReplicaFetch, registration: BrokerRegistration | None) -> bool:
        """Returns False for a Fetch of a follower's earlier registration, which does not show what the follower now has
        (KIP-903).
        """
        return registration is not None and registration.epoch == fetch.replica_epoch

    # -- the ISR -------------------------------------------------------------------------------------------------

    def next_proposal(
        self, registrations: Registrations, now_ms: float, lateness_ms: float = 0.0
    ) -> IsrProposal | None:
        """Returns the change of the ISR that is to be written now; the caller reports its outcome to `on_outcome`.

        `lateness_ms` is how late this broker's own timer is: its own pause must not count as lag of the followers. An
        attempt whose outcome is unknown is followed by another from the same base, with the stored ISR if no other
        change is wanted: once that is written, the version has moved, and the first attempt is decided.
        """
        if self._proposals and self._awaits_outcome():
            return None
        kept, added = self._wanted_members(registrations, now_ms, lateness_ms)
        if not added and len(kept) == len(self.state.isr) and not self._proposals:
            return None
        members = kept | {registration.broker_id for registration in added}
        isr = tuple(replica for replica in self._replicas if replica in members)
        data_ids = {registration.broker_id: registration.data_id for registration in added}
        proposed = with_isr(self.state, isr, data_ids, self._settings.min_insync_replicas)
        for again in self._proposals:
            if again.state == proposed:
                # A follower that has registered again since is checked by its new incarnation: under the old one the
                # write would be refused for ever.
                again.added, again.outcome = added, None
                return again
        proposal = IsrProposal(self.version, proposed, added)
        self._propose(proposal)
        return proposal

    def _wanted_members(
        self, registrations: Registrations, now_ms: float, lateness_ms: float
    ) -> tuple[set[int], tuple[BrokerRegistration, ...]]:
        """Returns the members that stay in the ISR, and the registrations of those that join."""
        max_lag_ms = self._settings.replica_lag_time_max_ms + max(lateness_ms, 0.0)
        end = self._log.log_end_offset
        kept = {
            member
            for member in self.state.isr
            if member == self.broker_id or self._followers[member].is_caught_up(end, now_ms, max_lag_ms)
        }
        outside = [replica for replica in self._replicas if replica not in self.state.isr and replica in registrations]
        added = [registrations[replica] for replica in outside if self._may_join(registrations[replica], now_ms)]
        return kept, tuple(added)

    def wants_change(self, registrations: Registrations, now_ms: float, lateness_ms: float) -> bool:
        """Returns True if `next_proposal` would return a proposal. Call it regularly: a follower at the log's end
        counts as caught up at the time of the call, since it need not fetch again before the next append."""
        end = self._log.log_end_offset
        for follower in self._followers.values():
            if follower.log_end_offset == end:
                follower.last_caught_up_ms = max(follower.last_caught_up_ms, now_ms)
        if self._proposals and self._awaits_outcome():
            return False
        kept, added = self._wanted_members(registrations, now_ms, lateness_ms)
        return bool(added) or len(kept) < len(self.state.isr) or bool(self._proposals)

    def _awaits_outcome(self) -> bool:
        return any(proposal.outcome is not ProposalOutcome.UNKNOWN for proposal in self._proposals)

    def at_version(self, version: int) -> None:
        """Records that the metadata of `version` contain the same state."""
        if version > self.version:
            self.on_state(self.state, version, self._replicas, self._settings)

    def _propose(self, proposal: IsrProposal) -> None:
        self._proposals.append(proposal)
        self._cache_isr()

    def _may_join(self, registration: BrokerRegistration, now_ms: float) -> bool:
        """Returns True if the follower may join: caught up, registered as the one that fetches, not leaving, with space
        on its disk, and holding every committed record (R4)."""
        follower = self._followers.get(registration.broker_id)
        return (
            follower is not None
            and registration.broker_id not in self.state.isr
            and registration.takes_records
            and follower.broker_epoch == registration.epoch
            and follower.is_caught_up(self._log.log_end_offset, now_ms, self._settings.replica_lag_time_max_ms)
            and follower.log_end_offset >= self._least_end_to_join
        )

    @property
    def _least_end_to_join(self) -> int:
        """Returns the offset that a follower must reach to join. A new leader's watermark may be behind that of the
        leader before it, but its epoch's start is not (KAFKA-7128).
        """
        return max(self._log.high_watermark, self.epoch_start_offset)

    def on_outcome(self, proposal: IsrProposal, outcome: ProposalOutcome) -> None:
        """Applies the outcome of writing the proposal. A refusal says nothing about an earlier write of the same
        proposal that was not answered."""
        if outcome is ProposalOutcome.UNKNOWN:
            proposal.may_be_written = True
        elif outcome is ProposalOutcome.REFUSED and proposal.may_be_written:
            outcome = ProposalOutcome.UNKNOWN
        proposal.outcome = outcome
        if outcome is ProposalOutcome.REFUSED and proposal in self._proposals:
            self._proposals.remove(proposal)
            self._cache_isr()
            self.advance_high_watermark()

    def on_state(
        self, state: PartitionState, version: int, replicas: tuple[int, ...], settings: ReplicationSettings
    ) -> None:
        """Applies the state that was read in the metadata of `version`, in the same leader epoch.

        A write that was conditional on an earlier version has either led to this state or will never be applied. A
        reassignment adds and drops followers: a dropped one is not proposed again, since the metadata on which the
        proposal is conditional have the replicas of the same version. A follower that has left the ISR joins again only
        after another Fetch: its log may be offline, and without appends it would stay at the end for ever.
        """
        for left in set(self.state.isr) - set(state.isr) - {self.broker_id}:
            self._followers[left].left_isr()
        self.state, self.version = state, version
        self._proposals = [proposal for proposal in self._proposals if proposal.base_version >= version]
        self._cache_isr()
        self._settings = settings
        if replicas != self._replicas:
            self._replicas = replicas
            known = self._followers
            self._followers = {id_: known.get(id_) or FollowerState() for id_ in replicas if id_ != self.broker_id}
        self.advance_high_watermark()
