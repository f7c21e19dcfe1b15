"""Gives each replica on this broker the role that the cluster's image says: leader, follower or neither.

One image is applied at a time, the newest. A partition that is no longer led is not served before its log changes; a
deleted topic's logs are removed; a log that the cluster does not know is set aside, never deleted (design, section 6);
a partition is served once its log is open and its leader epoch is on disk. The image of another cluster (the
coordination's data was lost) is refused: its topics are missing, which must not be taken for their deletion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from ...cluster.cluster import Cluster
from ...cluster.image import EMPTY_IMAGE, ClusterImage, PartitionImage, TopicImage
from ...cluster.reassignment import effective_min_isr
from ...config.section import LONG_MAX
from ...config.sections.broker import BrokerConfig
from ...config.sections.topic import TopicConfig
from ...errors import ConfigError, CoordinationError, KlammError, NoSpaceError, StorageError, describe_error
from ...log.manager import LogManager
from ...log.partition_log import PartitionLog
from ...records.partition import TopicPartition
from ...replication.elections import RecoveredEnd
from ...replication.leader import ReplicationSettings
from ...replication.partition import leads
from ...replication.partition_state import NO_EPOCH, NO_LEADER
from ...replication.registrations import BrokerRegistration, Standing, standing
from ..workers import Workers
from .fetchers import Fetchers
from .log_reports import LogReports
from .partitions import Partitions
from .replica import Replica

log = logging.getLogger(__name__)

_ROUNDS = 5  # rounds in one refresh; the rest waits for the next image
_RETRY_S = 1.0
_FLUSHES_A_LAG = 3
"""How often a replica flushes in `replica.lag.time.max.ms` at least, where it reports its flushed end."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A replica that this broker has. `leads`: it is to lead, under its present registration (R1)."""

    topic_id: UUID
    image: PartitionImage
    config: TopicConfig
    settings: ReplicationSettings
    leads: bool

    @property
    def leader_epoch(self) -> int:
        return self.image.state.leader_epoch


class RoleChanges:
    """`refresh` and `image` belong to the event loop; `changed` may be called from any thread."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        cluster: Cluster,
        logs: LogManager,
        partitions: Partitions,
        fetchers: Fetchers,
        workers: Workers,
    ) -> None:
        """`config` returns the configuration in force."""
        self._config = config
        self._broker_id = config().broker_id
        self._cluster = cluster
        self._logs = logs
        self._partitions = partitions
        self._fetchers = fetchers
        self._workers = workers
        self._defaults = config().topic_defaults()
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: dict[str, UUID] = {}
        self._refused: dict[TopicPartition, str] = {}
        self._stopped = False
        self._scheduled = False
        """True while a refresh of `refresh_soon` has not begun."""
        self._retry: asyncio.TimerHandle | None = None
        self._unfinished = False
        """True while an image is applied, and after an error has ended that: the image is then applied again."""
        self._room_found = False
        """True from `has_room_again` to the refresh that it schedules."""
        self._over: dict[TopicPartition, int] = {}
        """Partitions that this broker should lead in a leader epoch that is over, and their newest such epoch."""
        self._own: BrokerRegistration | None = None
        self._reports = LogReports(cluster)
        self._topics: dict[str, tuple[TopicImage, dict[TopicPartition, Assignment]]] = {}
        """The assignments of each topic whose image, as well as `_basis`, is still the same."""
        self._basis: tuple[object, ...] = ()
        self._taken: dict[TopicPartition, Assignment] = {}
        """The assignments whose roles were given: an image costs as much as it changes."""
        self.image: ClusterImage = EMPTY_IMAGE

    def changed(self, _: ClusterImage) -> None:
        """Called with a new image: schedules its application."""
        self._loop.call_soon_threadsafe(self.refresh_soon)

    def refresh_soon(self) -> None:
        """Schedules `refresh`, unless one is scheduled that has not begun."""
        if not self._scheduled:
            self._scheduled = True
            task = self._loop.create_task(self.refresh())
            self._tasks.add(task)
            task.add_done_callback(self._refreshed)

    def _refresh_later(self) -> None:
        """Schedules `refresh` in a while, unless that is so already."""
        if self._retry is None or self._retry.when() <= self._loop.time():
            self._retry = self._loop.call_later(_RETRY_S, self.refresh_soon)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("the cluster's image could not be applied: %s", describe_error(error))
            if self._unfinished and not self._stopped:  # what was not reached has no role until then
                self._refresh_later()

    def has_room_again(self) -> None:
        """Tries again to serve the partitions whose files could not be written, and to configure their logs; while an
        image is being applied, afterwards."""
        self._room_found = True
        self.refresh_soon()

    def _try_failed_again(self) -> None:
        former = [name for name, assignment in self._taken.items() if self._has_former_config(name, assignment)]
        for name in former:
            del self._taken[name]
        if self._refused or former:
            self._unfinished = True

    def _has_former_config(self, name: TopicPartition, assignment: Assignment) -> bool:
        known = self._partitions.replica(name)
        return known is not None and known.log.config != assignment.config

    @property
    def complete(self) -> bool:
        """True if every replica of this broker has its log open, under a leader epoch that is not behind."""
        return not self._refused and not self._over

    @property
    def max_lag(self) -> int:
        """See `Fetchers.max_lag`; may be read on any thread."""
        return self._fetchers.max_lag

    def report_log_starts(self) -> None:
        """See `Fetchers.report_log_starts`."""
        self._fetchers.report_log_starts()

    def has_taken(self, name: TopicPartition) -> bool:
        """True if the replica has the state that `image` gives it; False while that is being applied."""
        return name in self._taken

    async def stop(self) -> None:
        """Opens no more logs, and fetches nothing more; the partitions led stay as they are."""
        async with self._lock:
            self._stopped = True
        await self._fetchers.stop()

    async def refresh(self) -> None:
        """Applies the newest image; when this returns, every partition that this broker leads in it is served."""
        async with self._lock:
            self._scheduled = False  # what changes from now on is a reason for another one
            if self._stopped:
                return
            image = self._cluster.image()
            if self.image.cluster_id not in ("", image.cluster_id):
                raise StorageError(
                    f"the coordination holds cluster {image.cluster_id} now, the logs here are of cluster "
                    f"{self.image.cluster_id}: they stay as they are; restore the coordination's data"
                )
            if self._room_found:
                self._room_found = False
                self._try_failed_again()
            for _ in range(_ROUNDS):
                # States of an older backup give no role: a follower would cut its log to that of a leader of that time.
                own = self._cluster.own_registration if image.restored is None else None
                if image is self.image and own == self._own and not self._over and not self._unfinished:
                    break
                await self._apply(image, own)
                if not await self._raise_epochs():
                    break
                image = self._cluster.image()
            await self._report()

    async def _raise_epochs(self) -> bool:
        """Raises leader epochs in which this broker is the leader but cannot lead, so that it leads in a new one: those
        that are older in the coordination (restored from a backup) than in the log, since epochs never go back, and
        those that it has left, as while the coordination's states counted as a backup's (R5, R13).
        """
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
            await self._workers.coordination(self._cluster.raise_leader_epochs, self._over)
        except CoordinationError as error:
            log.warning("leader epochs could not be raised, it is tried again: %s", error)
            self._refresh_later()
            return False
        return True

    async def _apply(self, image: ClusterImage, own: BrokerRegistration | None) -> None:
        self._unfinished = True
        if _went_back(self.image, image):
            log.error(
                "the coordination is older than it was (restored from a backup?): topics that it lacks now were not "
                "deleted, their logs are set aside"
            )
            self._known = {}
            self._taken = {}
            for replica in self._partitions.replicas():
                self._fetchers.remove(replica.key)
                replica.forget_metadata()
        wanted = self._assignments(image, own)
        # A topic may have been deleted and created again between two images: no client may get the id of the new one
        # with the records of the old one.
        gone = [replica for replica in self._partitions.replicas() if not _is_kept(replica, wanted.get(replica.name))]
        for replica in gone:
            self._fetchers.remove(replica.key)
        self._partitions.remove(replica.name for replica in gone)
        self.image, self._own = image, own
        self._refused = {name: why for name, why in self._refused.items() if name in wanted}
        self._fetchers.image = image
        changed = {name: found for name, found in wanted.items() if self._taken.get(name) is not found}
        for name, assignment in changed.items():  # before the logs, which may take long
            known = self._partitions.replica(name)
            if known is None or known.leader_epoch == (assignment.leader_epoch if assignment.leads else -1):
                continue
            if assignment.leads:  # once its leader epoch is on disk
                self._fetchers.remove(known.key)
                known.rest()
            else:
                self._take(known, assignment)
        self._taken = {name: found for name, found in wanted.items() if name not in changed}
        settling = {name: assignment for name, assignment in changed.items() if self._must_settle(name, assignment)}
        if settling or gone or self._must_clear(image):
            left = {name: self._left_epoch(name) for name in settling}
            opened, self._over = await self._workers.disk(self._settle, image, settling, left)
            for name, log_of in opened.items():
                self._host(name, log_of, wanted[name])
        for name, assignment in changed.items():
            replica_or_none = self._partitions.replica(name)
            if replica_or_none is not None and name not in self._over and name not in self._refused:
                self._take(replica_or_none, assignment)
                self._taken[name] = assignment
        for replica in self._partitions:
            replica.look_at_deletes()  # a follower may be live no more
            if replica.leader is not None and replica.leader.has_proposals and replica.name in self._taken:
                replica.leader.at_version(image.version)  # an open proposal may have been refuted
                replica.refresh()
        self._unfinished = False

    def _must_settle(self, name: TopicPartition, assignment: Assignment) -> bool:
        """True if the log must be opened or reconfigured, or its next leader epoch written."""
        known = self._partitions.replica(name)
        if known is None or name in self._over or name in self._refused:
            return True
        if self._has_former_config(name, assignment):
            return True
        return assignment.leads and known.leader_epoch != assignment.leader_epoch

    def _left_epoch(self, name: TopicPartition) -> int:
        known = self._partitions.replica(name)
        return NO_EPOCH if known is None else known.partition.left_epoch

    def _must_clear(self, image: ClusterImage) -> bool:
        """True if a topic has come or gone, so that logs may have to be cleared away."""
        return {topic.name: topic.topic_id for topic in image.topics.values()} != self._known

    def _take(self, replica: Replica, assignment: Assignment) -> None:
        """Gives the replica its role, and its fetcher."""
        image = assignment.image
        follower = replica.partition.follower
        replica.on_metadata(image.state, self.image.version, self._own, image.replicas, assignment.settings)
        if replica.partition.follower is not follower:
            self._fetchers.remove(replica.key)
        if replica.partition.follower is not None:
            self._fetchers.add(replica, replica.partition.follower)

    async def use_defaults(self, defaults: TopicConfig) -> None:
        """Sets other defaults for topics, existing ones included."""
        async with self._lock:
            if defaults != self._defaults and not self._stopped:
                self._defaults = defaults
                await self._apply(self.image, self._own)

    def _assignments(self, image: ClusterImage, own: BrokerRegistration | None) -> dict[TopicPartition, Assignment]:
        basis = (own, self._defaults, self._config().replica_lag_time_max_ms)
        if basis != self._basis:
            self._basis = basis
            self._topics.clear()
        known, self._topics = self._topics, {}
        found: dict[TopicPartition, Assignment] = {}
        for topic in image.topics.values():
            before = known.get(topic.name)
            here = before[1] if before is not None and before[0] is topic else self._assignments_of(topic, own)
            self._topics[topic.name] = (topic, here)
            found.update(here)
        return found

    def _assignments_of(self, topic: TopicImage, own: BrokerRegistration | None) -> dict[TopicPartition, Assignment]:
        here = {number: found for number, found in topic.partitions.items() if self._broker_id in found.replicas}
        if not here:
            return {}
        lag_ms = self._config().replica_lag_time_max_ms
        config = self._topic_config(topic)
        if any(len(partition.replicas) > 1 for partition in here.values()):
            config = _flushed_within(config, lag_ms // _FLUSHES_A_LAG)
        return {
            TopicPartition(topic.name, number): Assignment(
                topic.topic_id,
                partition,
                config,
                ReplicationSettings(effective_min_isr(config.min_insync_replicas, partition.assignment), lag_ms),
                leads(partition.state, self._broker_id, own),
            )
            for number, partition in here.items()
        }

    def _topic_config(self, topic: TopicImage) -> TopicConfig:
        try:
            return TopicConfig.from_strings(topic.configs, self._defaults)
        except ConfigError as error:
            log.error("topic %s has a wrong configuration, the broker's defaults are used: %s", topic.name, error)
            return self._defaults

    def _host(self, name: TopicPartition, opened: PartitionLog, assignment: Assignment) -> None:
        known = self._partitions.replica(name)
        if known is not None and known.log is opened:
            return
        if known is not None:
            self._fetchers.remove(known.key)
            self._partitions.remove([name])
        traffic = self._partitions.traffic(name.topic)
        replicas = assignment.image.replicas
        self._partitions.put(Replica(self._broker_id, name, opened, traffic, replicas, assignment.settings))

    # -- what the controller must know -----------------------------------------------------------------------------

    def has_news(self) -> bool:
        """True if a log has gone offline since the last report, or has come back."""
        return self._reports.offline_differs(self._offline_now())

    def _offline_now(self) -> frozenset[TopicPartition]:
        offline = {replica.name for replica in self._partitions.replicas() if replica.log.offline is not None}
        return frozenset(offline | set(self._refused))

    async def _report(self) -> None:
        """Reports partitions whose log is offline, and where logs of partitions without a leader end (R7)."""
        offline = self._offline_now()
        recovered = self._recovered_ends()
        incarnation = "" if self._own is None else self._own.incarnation
        if not self._reports.differ(incarnation, recovered, offline):
            return
        for name in offline:
            replica = self._partitions.replica(name)
            if replica is not None:
                self._fetchers.remove(replica.key)  # its leader would count it as one that goes on fetching
        try:
            await self._workers.coordination(self._reports.write, incarnation, recovered, offline)
        except CoordinationError as error:
            log.warning("the controller could not be told of this broker's logs, it is tried again: %s", error)
            self._refresh_later()

    def _recovered_ends(self) -> dict[TopicPartition, RecoveredEnd]:
        """Returns the ends of the logs of partitions without a leader, but for those of which this broker is a sound
        member. No record is appended to them in this leader epoch."""
        own, found = self._own, {}
        for replica in self._partitions.replicas() if own is not None else ():
            state = replica.partition.state
            if state is None or own is None or state.leader != NO_LEADER:
                continue
            if standing(own, state.data_ids.get(own.broker_id)) is not Standing.SOUND:
                log_ = replica.log
                found[replica.name] = RecoveredEnd(
                    state.leader_epoch, own.data_id, log_.last_record_epoch, log_.log_end_offset, log_.high_watermark
                )
        return found

    # -- on a worker thread

    def _settle(
        self, image: ClusterImage, wanted: dict[TopicPartition, Assignment], left: dict[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, PartitionLog], dict[TopicPartition, int]]:
        """Removes, sets aside and opens logs; returns the open logs, and for those that should be led in a leader epoch
        in which they cannot be, the newest epoch that is over: the log's, if that is ahead of the cluster's, or the one
        that this broker has `left`. A partition whose log cannot be opened is left out and logged.
        """
        self._clear_away(image)
        opened: dict[TopicPartition, PartitionLog] = {}
        behind: dict[TopicPartition, int] = {}
        for name, assignment in wanted.items():
            try:
                found = self._configured(name, assignment)
                if assignment.leads:
                    epoch, over = assignment.leader_epoch, left[name]
                    if epoch < found.leader_epoch or epoch <= over:
                        behind[name] = max(found.leader_epoch, over)
                        continue
                    found.begin_leader_epoch(assignment.leader_epoch, durable=False)
                opened[name] = found
            except KlammError as error:
                self._refuse(name, error)
        for name, failed in self._logs.make_durable().items():
            if isinstance(failed, NoSpaceError):  # what is there is served; an append writes the epochs first, or fails
                self._logs.space.ran_out(name, failed)
            elif opened.pop(name, None) is not None:
                self._refuse(name, failed)
        for name in opened:
            self._refused.pop(name, None)
        return opened, behind

    def _configured(self, name: TopicPartition, assignment: Assignment) -> PartitionLog:
        """Returns the partition's log; with its former configuration if the new one needs room on a full disk."""
        try:
            return self._logs.create(name, assignment.topic_id, assignment.config, durable=False)
        except NoSpaceError as error:
            found = self._logs.get(name)
            if found is None or found.topic_id != assignment.topic_id:
                raise
            self._logs.space.ran_out(name, error)
            return found

    def _refuse(self, name: TopicPartition, error: KlammError) -> None:
        if isinstance(error, NoSpaceError):  # `FullDisk` says so
            self._logs.space.ran_out(name, error)
        elif self._refused.get(name) != str(error):  # logged once, not with every change of the image
            log.error("partition %s cannot be served: %s", name, error)
        self._refused[name] = str(error)

    def _clear_away(self, image: ClusterImage) -> None:
        leaving = {}
        for name, found in self._logs.logs().items():
            topic = image.topics.get(name.topic)
            known = topic is not None and topic.topic_id == found.topic_id
            if known and topic is not None and self._broker_id in _replicas(topic.partitions.get(name.partition)):
                continue
            leaving[name] = (found, known)
        if len(leaving) > 1:
            try:
                self._logs.forget_checkpoints(leaving)
            except KlammError as error:
                log.error("partitions cannot be cleared away: %s", error)
        for name, (found, known) in leaving.items():
            try:
                if self._known.get(name.topic) == found.topic_id:
                    log.info("partition %s %s", name, "was moved to other brokers" if known else "was deleted")
                    self._logs.remove(name)
                else:
                    self._logs.set_aside(name)
            except KlammError as error:
                log.error("partition %s cannot be cleared away: %s", name, error)
        for name in self._logs.missing.ends():
            topic = image.topics.get(name.topic)
            if topic is None or topic.topic_id != self._known.get(name.topic, topic.topic_id):
                self._logs.missing.forget(name)
        self._known = {topic.name: topic.topic_id for topic in image.topics.values()}


def _replicas(partition: PartitionImage | None) -> tuple[int, ...]:
    return () if partition is None else partition.replicas


def _is_kept(replica: Replica, wanted: Assignment | None) -> bool:
    return wanted is not None and wanted.topic_id == replica.log.topic_id


def _went_back(before: ClusterImage, now: ClusterImage) -> bool:
    """Returns True if the coordination has lost changes: its count of changes otherwise only grows."""
    return before.cluster_id != "" and (now.version < before.version or now.history != before.history)


def _flushed_within(config: TopicConfig, most_ms: int) -> TopicConfig:
    """Returns the configuration with `flush.ms` of `most_ms` at most, if `flush.messages` or `flush.ms` holds records
    back. A replica reports its flushed end, so one that flushes less often than `replica.lag.time.max.ms` would leave
    the in-sync replicas again and again.
    """
    if config.flush_messages == LONG_MAX and config.flush_ms == LONG_MAX:
        return config
    return config.model_copy(update={"flush_ms": min(config.flush_ms, most_ms)})
