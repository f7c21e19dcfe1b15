"""The changes of in-sync replicas that this broker's leaders want to be written; without I/O and threads.

The rules are those of `PartitionLeader`; `IsrChanges` gathers and writes, and the simulation does the same in
virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ...cluster.image import ClusterImage
from ...records.partition import TopicPartition
from ...replication.leader import IsrProposal, PartitionLeader, ProposalOutcome

MOST_A_TRANSACTION: Final = 500


class LeadingReplica(Protocol):
    """The part of a `Replica`, or of the simulation's replica, that a proposal needs."""

    @property
    def name(self) -> TopicPartition: ...

    @property
    def leader(self) -> PartitionLeader | None: ...

    def refresh(self) -> None: ...

    def review_followers(self) -> None: ...


R = TypeVar("R", bound=LeadingReplica)


class Made(NamedTuple, Generic[R]):
    """A proposal that is to be written now, and its leader."""

    name: TopicPartition
    proposal: IsrProposal
    replica: R
    leader: PartitionLeader


class Image(Protocol):
    """The part of `Roles` that is needed: the image whose roles the replicas have."""

    @property
    def image(self) -> ClusterImage: ...

    def has_taken(self, name: TopicPartition, /) -> bool: ...


class IsrProposals(Generic[R]):
    """`find` returns the replica of a partition that is led here. Times in ms, monotonic."""

    def __init__(self, roles: Image, find: Callable[[TopicPartition], R | None]) -> None:
        self._roles = roles
        self._find = find
        self._wanted: dict[TopicPartition, None] = {}

    def want(self, name: TopicPartition) -> None:
        """Records that the partition's ISR may have to be changed."""
        self._wanted[name] = None

    @property
    def some(self) -> bool:
        return bool(self._wanted)

    def review(self, replica: R, now_ms: float, lateness_ms: float) -> bool:
        """Finds followers that have fallen behind, and proposals that are still open; returns True if the
        partition's ISR should change. `lateness_ms` is the delay of this broker itself."""
        replica.review_followers()
        leader = replica.leader
        wants = leader is not None and leader.wants_change(self._roles.image.registrations, now_ms, lateness_ms)
        if wants:
            self.want(replica.name)
        return wants

    def make(self, now_ms: float, lateness_ms: float) -> list[Made[R]]:
        """Returns the proposals to be written now, of at most 500 partitions; `written` takes their outcomes."""
        image = self._roles.image
        made: list[Made[R]] = []
        for name in list(self._wanted)[:MOST_A_TRANSACTION]:
            replica = self._find(name)
            del self._wanted[name]
            leader = None if replica is None else replica.leader
            if replica is None or leader is None:
                continue
            if not self._roles.has_taken(name):  # the leader knows an older state than the image has
                self._wanted[name] = None
                continue
            leader.at_version(image.version)
            replica.refresh()
            proposal = leader.next_proposal(image.registrations, now_ms, lateness_ms)
            if proposal is not None:
                made.append(Made(name, proposal, replica, leader))
                replica.refresh()
        return made

    def written(self, made: Sequence[Made[R]], outcomes: Sequence[ProposalOutcome]) -> None:
        """Applies the outcomes. Those that were not written are wanted again."""
        for (name, proposal, replica, leader), outcome in zip(made, outcomes, strict=True):
            leader.on_outcome(proposal, outcome)
            if replica.leader is leader:
                replica.refresh()
            if outcome is not ProposalOutcome.APPLIED:
                self._wanted[name] = None
