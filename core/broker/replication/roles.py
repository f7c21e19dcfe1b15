"""Chooses the role of each replica on this broker by the cluster's image; without I/O and threads.

One image is applied at a time, the newest. A partition that is no longer led is not served before its log changes; a
partition is served once its log is open and its leader epoch is on disk. Requests to the disk or the coordination
are yielded (`OnDisk`, `InCluster`) and carried out by `RoleChanges`, and by the simulation in virtual time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from ...cluster.image import EMPTY_IMAGE, ClusterImage, PartitionImage, TopicImage
from ...cluster.reassignment import effective_min_isr
from ...cluster.tree.steps import Steps
from ...config.section import LONG_MAX
from ...config.sections.topic import TopicConfig
from ...errors import ConfigError, CoordinationError, StorageError
from ...records.partition import TopicPartition
from ...replication.elections import RecoveredEnd
from ...replication.leader import PartitionLeader, ReplicationSettings
from ...replication.partition import Partition, leads
from ...replication.partition_state import NO_EPOCH, NO_LEADER, PartitionState
from ...replication.registrations import BrokerRegistration, Standing, standing
from .log_reports import LogReports, Reporter

log = logging.getLogger(__name__)

_ROUNDS: Final = 5  # rounds in one refresh; the rest waits for the next image
_FLUSHES_A_LAG: Final = 3
"""The least number of flushes per `replica.lag.time.max.ms` of a replica that reports its flushed end."""


class OnDisk(NamedTuple):
    """Calls a function that may block on the disk; answered with its result."""

    call: Callable[[], Any]


class InCluster(NamedTuple):
    """Carries out steps of the cluster's node; answered with their result."""

    steps: Steps[Any]


Refreshing = Generator[OnDisk | InCluster, Any, None]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A replica that this broker has. `leads`: it is to lead, under its present registration (docs/replication.md,
    R1)."""

    topic_id: UUID
    image: PartitionImage
    config: TopicConfig
    settings: ReplicationSettings
    leads: bool

    @property
    def leader_epoch(self) -> int:
        return self.image.state.leader_epoch


def epoch_that_is_over(assignment: Assignment, log_epoch: int, left_epoch: int) -> int | None:
    """Returns the newest leader epoch that is over (the log's, or one that this broker has left), if the replica is to
    lead in an epoch that is not above it (docs/replication.md, R5, R13). None if it may take its role."""
    over = max(log_epoch, left_epoch)
    behind = assignment.leader_epoch < log_epoch or assignment.leader_epoch <= left_epoch
    return over if assignment.leads and behind else None


class HostedReplica(Protocol):
    """The part of a `Replica`, or of the simulation's replica, that a role needs."""

    partition: Partition[Any]
    leader_epoch: int

    @property
    def name(self) -> TopicPartition: ...

    @property
    def leader(self) -> PartitionLeader | None: ...

    @property
    def topic_id(self) -> UUID: ...

    @property
    def is_offline(self) -> bool: ...

    def on_metadata(
        self,
        state: PartitionState,
        version: int,
        own: BrokerRegistration | None,
        replicas: tuple[int, ...],
        settings: ReplicationSettings,
    ) -> None: ...

    def rest(self) -> None: ...

    def forget_metadata(self) -> None: ...

    def refresh(self) -> None: ...

    def complete_deletes(self) -> None: ...


R = TypeVar("R", bound=HostedReplica)


class Settled(NamedTuple):
    """The logs that were opened, and the partitions that are to be led in a leader epoch that is over, each with the
    newest such epoch: the log's if the log is ahead of the cluster, else the one that this broker has left."""

    opened: Mapping[TopicPartition, Any]
    over: dict[TopicPartition, int]


class Host(Protocol[R]):
    """The replicas of a broker, their logs and fetchers."""

    refused: dict[TopicPartition, str]
    """The partitions that cannot be served, with the reason."""

    def replicas(self) -> list[R]: ...

    def replica(self, name: TopicPartition) -> R | None: ...

    def led(self) -> list[R]:
        """Returns the replicas that lead."""
        ...

    def applies(self, image: ClusterImage) -> None:
        """Called before the image is applied."""
        ...

    def remove(self, replicas: Collection[R]) -> None:
        """Removes replicas that the broker no longer has; `settle` deletes their logs."""
        ...

    def put(self, name: TopicPartition, opened: Any, assignment: Assignment) -> None:
        """Adds the replica, whose log is open."""
        ...

    def fetch(self, replica: R) -> None:
        """Fetches from the leader if the replica follows; stops fetching otherwise."""
        ...

    def stop_fetching(self, replica: R) -> None: ...

    def mirrors_ended(self) -> None:
        """Called before an image is applied in which mirrors were promoted."""
        ...

    def has_former_config(self, name: TopicPartition, assignment: Assignment) -> bool: ...

    def settle(
        self,
        image: ClusterImage,
        known: Mapping[str, UUID],
        wanted: Mapping[TopicPartition, Assignment],
        left: Mapping[TopicPartition, int],
    ) -> Settled:
        """Removes, sets aside and opens logs, and writes leader epochs. Blocks; see `RoleChanges`."""
        ...


class Member(Reporter, Protocol):
    """The part of a `ClusterNode` that its broker uses."""

    @property
    def broker_id(self) -> int: ...

    @property
    def image(self) -> ClusterImage: ...

    @property
    def own_registration(self) -> BrokerRegistration | None: ...

    def raise_leader_epochs(self, begun: Mapping[TopicPartition, int]) -> Steps[None]: ...

    def skip_used_producer_ids(self) -> Steps[None]: ...


class Roles(Generic[R]):
    """One sequence at a time: `refresh` or `use_defaults`. After an error, and after a call of `try_later`, the
    owner calls `refresh` again after a delay."""

    def __init__(
        self,
        member: Member,
        host: Host[R],
        defaults: TopicConfig,
        lag_time_max_ms: Callable[[], float],
        try_later: Callable[[], None],
    ) -> None:
        """`defaults`: the configuration of topics that set nothing."""
        self._member = member
        self._host = host
        self._defaults = defaults
        self._lag_time_max_ms = lag_time_max_ms
        self._try_later = try_later
        self._known: dict[str, UUID] = {}
        self.unfinished = False
        """True while an image is applied, and after that has failed: the image is then applied again."""
        self._over: dict[TopicPartition, int] = {}
        """Partitions that this broker should lead in a leader epoch that is over, with their newest such epoch."""
        self._own: BrokerRegistration | None = None
        self._reports = LogReports(member)
        self._topics: dict[str, tuple[TopicImage, dict[TopicPartition, Assignment]]] = {}
        """The assignments of each topic whose image and `_basis` have not changed."""
        self._basis: tuple[object, ...] = ()
        self._promoted: dict[str, int] = {}
        """The last promotion of each topic that was a mirror: a leader epoch."""
        self._taken: dict[TopicPartition, Assignment] = {}
        """The assignments whose roles are applied, so that the cost of an image follows what it changes."""
        self.image: ClusterImage = EMPTY_IMAGE

    @property
    def complete(self) -> bool:
        """True if every replica of this broker has an open log with a leader epoch that is not behind."""
        return not self._host.refused and not self._over

    def has_taken(self, name: TopicPartition) -> bool:
        """True if the replica has the state that `image` gives it; False while that is being applied."""
        return name in self._taken

    def try_failed_again(self) -> None:
        """Tries again, at the next refresh, to serve the partitions whose files could not be written, and to configure
        their logs."""
        former = [name for name, found in self._taken.items() if self._host.has_former_config(name, found)]
        for name in former:
            del self._taken[name]
        if self._host.refused or former:
            self.unfinished = True

    def refresh(self) -> Refreshing:
        """Applies the newest image; afterwards every partition that this broker leads in it is served. Raises
        `StorageError` for the image of another cluster."""
        image = self._member.image
        if self.image.cluster_id not in ("", image.cluster_id):
            raise StorageError(
                f"the coordination holds cluster {image.cluster_id} now, the logs here are of cluster "
                f"{self.image.cluster_id}: they stay as they are; restore the coordination's data"
            )
        for _ in range(_ROUNDS):
            # States of an older backup give no role: a follower would cut its log to that of a leader of that time.
            own = self._member.own_registration if image.restored is None else None
            if image is self.image and own == self._own and not self._over and not self.unfinished:
                break
            yield from self._apply(image, own)
            if not (yield from self._raise_epochs()):
                break
            image = self._member.image
        yield from self._report()

    def _raise_epochs(self) -> Generator[OnDisk | InCluster, Any, bool]:
        """Raises leader epochs in which this broker is named as the leader but cannot lead, so that it leads in a
        new one: those that are older in the coordination (restored from a backup) than in the log, since epochs
        never decrease, and those that it has left, as while the coordination's states counted as a backup's
        (docs/replication.md, R5 and R13)."""
        if not self._over:
            return True
        for name, epoch in self._over.items():
            state_epoch = self.image.topics[name.topic].partitions[name.partition].leader_epoch
            if state_epoch == epoch:
                log.info("partition %s: this broker has left leader epoch %d, it continues in a new one", name, epoch)
                continue
            log.warning(
                "partition %s: the coordination has leader epoch %d, its log %d: the coordination is older than the "
                "log (restored from a backup?); continuing under %d",
                name, state_epoch, epoch, epoch + 1,
            )  # fmt: skip
        try:
            yield InCluster(self._member.raise_leader_epochs(self._over))
        except CoordinationError as error:
            log.warning("leader epochs could not be raised, retrying: %s", error)
            self._try_later()
            return False
        return True

    def _apply(self, image: ClusterImage, own: BrokerRegistration | None) -> Refreshing:
        self.unfinished = True
        if _went_back(self.image, image):
            log.error(
                "the coordination is older than it was (restored from a backup?): topics that it lacks now were not "
                "deleted, their logs are set aside"
            )
            self._known = {}
            self._taken = {}
            for replica in self._host.replicas():
                self._host.stop_fetching(replica)
                replica.forget_metadata()
        wanted = self._assignments(image, own)
        # A topic may have been deleted and created again between two images: no client may get the id of the new one
        # with the records of the old one.
        gone = [replica for replica in self._host.replicas() if not _is_kept(replica, wanted.get(replica.name))]
        self._host.remove(gone)
        self._host.applies(image)
        self.image, self._own = image, own
        self._host.refused = {name: why for name, why in self._host.refused.items() if name in wanted}
        changed = {name: found for name, found in wanted.items() if self._taken.get(name) is not found}
        for name, assignment in changed.items():  # before the logs, which may take long
            known = self._host.replica(name)
            if known is None or known.leader_epoch == (assignment.leader_epoch if assignment.leads else -1):
                continue
            if assignment.leads:  # once its leader epoch is on disk
                self._host.stop_fetching(known)
                known.rest()
            else:
                self._take(known, assignment)
        self._taken = {name: found for name, found in wanted.items() if name not in changed}
        settling = {name: assignment for name, assignment in changed.items() if self._must_settle(name, assignment)}
        if settling or gone or self._must_clear(image):
            left = {name: self._left_epoch(name) for name in settling}
            settle = partial(self._host.settle, image, self._known, settling, left)
            settled: Settled = yield OnDisk(settle)
            self._over = settled.over
            self._known = {topic.name: topic.topic_id for topic in image.topics.values()}
            for name, opened in settled.opened.items():
                self._host.put(name, opened, wanted[name])
        ready = {
            name: each for name, each in changed.items() if name not in self._over and name not in self._host.refused
        }
        former_mirrors = {
            name: assignment
            for name, assignment in ready.items()
            if assignment.leads and assignment.image.state.promoted_epoch != NO_EPOCH
        }
        self._take_all({name: assignment for name, assignment in ready.items() if name not in former_mirrors})
        if former_mirrors:  # no client of theirs may get a producer id that the mirror's source has given out
            yield InCluster(self._member.skip_used_producer_ids())
            self._take_all(former_mirrors)
        for replica in self._host.led():
            replica.complete_deletes()  # a follower may be live no more
            if replica.leader is not None and replica.leader.has_proposals and replica.name in self._taken:
                replica.leader.at_version(image.version)  # an open proposal may have been refuted
                replica.refresh()
        self.unfinished = False

    def _take_all(self, assignments: Mapping[TopicPartition, Assignment]) -> None:
        for name, assignment in assignments.items():
            replica = self._host.replica(name)
            if replica is not None:
                self._take(replica, assignment)
                self._taken[name] = assignment

    def _must_settle(self, name: TopicPartition, assignment: Assignment) -> bool:
        """True if the log must be opened or reconfigured, or its next leader epoch written."""
        known = self._host.replica(name)
        if known is None or name in self._over or name in self._host.refused:
            return True
        if self._host.has_former_config(name, assignment):
            return True
        return assignment.leads and known.leader_epoch != assignment.leader_epoch

    def _left_epoch(self, name: TopicPartition) -> int:
        known = self._host.replica(name)
        return NO_EPOCH if known is None else known.partition.left_epoch

    def _must_clear(self, image: ClusterImage) -> bool:
        """True if a topic was created or deleted, so that logs may have to be removed."""
        return {topic.name: topic.topic_id for topic in image.topics.values()} != self._known

    def _take(self, replica: R, assignment: Assignment) -> None:
        """Gives the replica its role and its fetcher."""
        image = assignment.image
        follower = replica.partition.follower
        replica.on_metadata(image.state, self.image.version, self._own, image.replicas, assignment.settings)
        if replica.partition.follower is not follower:
            self._host.stop_fetching(replica)
        if replica.partition.follower is not None:
            self._host.fetch(replica)

    def use_defaults(self, defaults: TopicConfig) -> Refreshing:
        """Sets other defaults for topics, existing ones included."""
        if defaults != self._defaults:
            self._defaults = defaults
            yield from self._apply(self.image, self._own)

    def _assignments(self, image: ClusterImage, own: BrokerRegistration | None) -> dict[TopicPartition, Assignment]:
        basis = (own, self._defaults, self._lag_time_max_ms())
        if basis != self._basis:
            self._basis = basis
            self._topics.clear()
        known, self._topics = self._topics, {}
        found: dict[TopicPartition, Assignment] = {}
        for topic in image.topics.values():
            before = known.get(topic.name)
            if before is None or before[0] is not topic:
                self._note_promotion(topic)
            here = before[1] if before is not None and before[0] is topic else self._assignments_of(topic, own)
            self._topics[topic.name] = (topic, here)
            found.update(here)
        return found

    def _note_promotion(self, topic: TopicImage) -> None:
        last = max((each.state.promoted_epoch for each in topic.partitions.values()), default=NO_EPOCH)
        if last > self._promoted.get(topic.name, NO_EPOCH):
            self._promoted[topic.name] = last
            self._host.mirrors_ended()

    def _assignments_of(self, topic: TopicImage, own: BrokerRegistration | None) -> dict[TopicPartition, Assignment]:
        here = {number: found for number, found in topic.partitions.items() if self._member.broker_id in found.replicas}
        if not here:
            return {}
        lag_ms = self._lag_time_max_ms()
        config = self._topic_config(topic)
        if any(len(partition.replicas) > 1 for partition in here.values()):
            config = _flushed_within(config, int(lag_ms) // _FLUSHES_A_LAG)
        return {
            TopicPartition(topic.name, number): Assignment(
                topic.topic_id,
                partition,
                config,
                ReplicationSettings(effective_min_isr(config.min_insync_replicas, partition.assignment), lag_ms),
                leads(partition.state, self._member.broker_id, own),
            )
            for number, partition in here.items()
        }

    def _topic_config(self, topic: TopicImage) -> TopicConfig:
        try:
            return TopicConfig.from_strings(topic.configs, self._defaults)
        except ConfigError as error:
            log.error("topic %s has a wrong configuration, the broker's defaults are used: %s", topic.name, error)
            return self._defaults

    # -- what the controller must know -----------------------------------------------------------------------------

    def has_news(self) -> bool:
        """True if a log has gone offline since the last report, or is online again."""
        return self._reports.offline_differs(self._offline_now())

    def _offline_now(self) -> frozenset[TopicPartition]:
        offline = {replica.name for replica in self._host.replicas() if replica.is_offline}
        return frozenset(offline | set(self._host.refused))

    def _report(self) -> Refreshing:
        """Reports partitions whose log is offline, and where logs of partitions without a leader end (R7)."""
        offline = self._offline_now()
        recovered = self._recovered_ends()
        incarnation = "" if self._own is None else self._own.incarnation
        if not self._reports.differ(incarnation, recovered, offline):
            return
        for name in offline:
            replica = self._host.replica(name)
            if replica is not None:
                self._host.stop_fetching(replica)  # its leader would count it as one that goes on fetching
        try:
            yield InCluster(self._reports.write(incarnation, recovered, offline))
        except CoordinationError as error:
            log.warning("this broker's logs could not be reported to the controller, retrying: %s", error)
            self._try_later()

    def _recovered_ends(self) -> dict[TopicPartition, RecoveredEnd]:
        """Returns the ends of the logs of partitions without a leader, except those of which this broker is a sound
        member. No record is appended to them in this leader epoch."""
        own, found = self._own, {}
        for replica in self._host.replicas() if own is not None else ():
            state = replica.partition.state
            if state is None or own is None or state.leader != NO_LEADER:
                continue
            if standing(own, state.data_ids.get(own.broker_id)) is not Standing.SOUND:
                log_ = replica.partition.log
                found[replica.name] = RecoveredEnd(
                    state.leader_epoch, own.data_id, log_.last_record_epoch, log_.log_end_offset, log_.high_watermark
                )
        return found


def _is_kept(replica: HostedReplica, wanted: Assignment | None) -> bool:
    return wanted is not None and wanted.topic_id == replica.topic_id


def _went_back(before: ClusterImage, now: ClusterImage) -> bool:
    """Returns True if the coordination has lost changes: otherwise its version only grows."""
    return before.cluster_id != "" and (now.version < before.version or now.history != before.history)


def _flushed_within(config: TopicConfig, most_ms: int) -> TopicConfig:
    """Returns the configuration with `flush.ms` of `most_ms` at most, if `flush.messages` or `flush.ms` holds
    records back. A replica reports its flushed end, so one that flushes less often than `replica.lag.time.max.ms`
    would leave the ISR again and again."""
    if config.flush_messages == LONG_MAX and config.flush_ms == LONG_MAX:
        return config
    return config.model_copy(update={"flush_ms": min(config.flush_ms, most_ms)})
