"""Gives each replica on this broker its role in the cluster's image: carries out what `Roles` decides.

A deleted topic's logs are removed; a log that the cluster does not know is set aside, never deleted (design, section
6). The image of another cluster (the coordination's data was lost) is refused: its topics are missing, which must not
be taken for their deletion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from ...cluster.cluster import Cluster
from ...cluster.image import ClusterImage, PartitionImage
from ...config.sections.broker import BrokerConfig
from ...config.sections.topic import TopicConfig
from ...errors import KlammError, NoSpaceError, describe_error
from ...log.manager import LogManager
from ...log.partition_log import PartitionLog
from ...mirror.adoption import PromotionStart, common_end
from ...records.partition import TopicPartition, counted
from ...replication.partition_state import NO_EPOCH
from ..workers import Workers
from .fetchers import Fetchers
from .partitions import Partitions
from .replica import Replica
from .roles import Assignment, OnDisk, Refreshing, Roles, Settled, epoch_that_is_over

log = logging.getLogger(__name__)

_RETRY_S = 1.0


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
        validated: Callable[[str, TopicConfig], bool],
        mirrors_ended: Callable[[], None],
    ) -> None:
        """`config` returns the configuration in force; `validated` whether a topic has validators. `mirrors_ended` is
        called before clients write topics that were mirrors."""
        self._broker_id = config().broker_id
        self._cluster = cluster
        self._logs = logs
        self._partitions = partitions
        self._fetchers = fetchers
        self._workers = workers
        self._validated = validated
        self._mirrors_ended = mirrors_ended
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused: dict[TopicPartition, str] = {}
        """The partitions that cannot be served, with the reason."""
        self._roles: Roles[Replica] = Roles(
            cluster.node, self, config().topic_defaults(), lambda: config().replica_lag_time_max_ms, self._refresh_later
        )
        self._stopped = False
        self._scheduled = False
        """True while a refresh scheduled by `refresh_soon` has not started."""
        self._retry: asyncio.TimerHandle | None = None
        self._room_found = False
        """True from `has_space_again` to the refresh that it schedules."""

    def changed(self, _: ClusterImage) -> None:
        """Called with a new image: schedules its application."""
        self._loop.call_soon_threadsafe(self.refresh_soon)

    def refresh_soon(self) -> None:
        """Schedules `refresh`, unless one is scheduled that has not started."""
        if not self._scheduled:
            self._scheduled = True
            task = self._loop.create_task(self.refresh())
            self._tasks.add(task)
            task.add_done_callback(self._refreshed)

    def _refresh_later(self) -> None:
        """Schedules `refresh` after a delay, unless one is scheduled already."""
        if self._retry is None or self._retry.when() <= self._loop.time():
            self._retry = self._loop.call_later(_RETRY_S, self.refresh_soon)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("the cluster's image could not be applied: %s", describe_error(error))
            if self._roles.unfinished and not self._stopped:  # what was not reached has no role until then
                self._refresh_later()

    def has_space_again(self) -> None:
        """Tries again to serve the partitions whose files could not be written, and to configure their logs. Waits
        until an image that is being applied is finished."""
        self._room_found = True
        self.refresh_soon()

    @property
    def image(self) -> ClusterImage:
        """The image whose roles the replicas have, or are getting."""
        return self._roles.image

    @property
    def complete(self) -> bool:
        """See `Roles.complete`."""
        return self._roles.complete

    @property
    def max_lag(self) -> int:
        """See `Fetchers.max_lag`; may be read on any thread."""
        return self._fetchers.max_lag

    def report_log_starts(self) -> None:
        """See `Fetchers.report_log_starts`."""
        self._fetchers.report_log_starts()

    def has_taken(self, name: TopicPartition) -> bool:
        """See `Roles.has_taken`."""
        return self._roles.has_taken(name)

    def has_news(self) -> bool:
        """See `Roles.has_news`."""
        return self._roles.has_news()

    async def stop(self) -> None:
        """Opens no more logs, and fetches nothing more; the partitions led do not change."""
        async with self._lock:
            self._stopped = True
        await self._fetchers.stop()

    async def refresh(self) -> None:
        """Applies the newest image; when this returns, every partition that this broker leads in it is served."""
        async with self._lock:
            self._scheduled = False  # what changes from now on is a reason for another one
            if self._stopped:
                return
            if self._room_found:
                self._room_found = False
                self._roles.try_failed_again()
            await self._carry_out(self._roles.refresh())
            await self._abort_mirrored()

    async def _abort_mirrored(self) -> None:
        """Aborts the transactions that a mirror had open when it was promoted (docs/mirror.md, M12). What fails is
        tried again."""
        for replica in list(self._partitions):
            leader = replica.leader
            if (
                leader is None
                or leader.state.promoted_epoch == NO_EPOCH
                or not replica.log.first_offsets_of_transactions
            ):
                continue
            try:
                aborted = await self._workers.bulk(
                    replica.log.abort_transactions, leader.state.promoted_epoch, leader.epoch
                )
            except KlammError as error:
                log.warning("%s: open transactions of the mirror are not aborted yet: %s", replica.name, error)
                self._refresh_later()
                continue
            if aborted:
                log.info("%s: %s of the mirror aborted", replica.name, counted(aborted, "open transaction"))
            if replica.leader is leader:
                replica.extended()

    async def use_defaults(self, defaults: TopicConfig) -> None:
        """Sets other defaults for topics, existing ones included."""
        async with self._lock:
            if not self._stopped:
                await self._carry_out(self._roles.use_defaults(defaults))

    async def _carry_out(self, steps: Refreshing) -> None:
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                return
            answer = error = None
            try:
                if isinstance(step, OnDisk):
                    answer = await self._workers.disk(step.call)
                else:
                    answer = await self._workers.coordination(self._cluster.run, step.steps)
            except Exception as raised:
                error = raised

    # -- what `Roles` asks of its host -----------------------------------------------------------------------------

    def replicas(self) -> list[Replica]:
        return self._partitions.replicas()

    def replica(self, name: TopicPartition) -> Replica | None:
        return self._partitions.replica(name)

    def led(self) -> list[Replica]:
        return list(self._partitions)

    def applies(self, image: ClusterImage) -> None:
        self._fetchers.image = image

    def remove(self, replicas: Collection[Replica]) -> None:
        for replica in replicas:
            self._fetchers.remove(replica.key)
        self._partitions.remove(replica.name for replica in replicas)

    def fetch(self, replica: Replica) -> None:
        if replica.partition.follower is not None:
            self._fetchers.add(replica, replica.partition.follower)

    def stop_fetching(self, replica: Replica) -> None:
        self._fetchers.remove(replica.key)

    def mirrors_ended(self) -> None:
        self._mirrors_ended()

    def has_former_config(self, name: TopicPartition, assignment: Assignment) -> bool:
        known = self._partitions.replica(name)
        return known is not None and known.log.config != assignment.config

    def put(self, name: TopicPartition, opened: PartitionLog, assignment: Assignment) -> None:
        known = self._partitions.replica(name)
        if known is None or known.log is not opened:
            if known is not None:
                self.remove([known])
            traffic = self._partitions.traffic(name.topic)
            replicas = assignment.image.replicas
            known = Replica(self._broker_id, name, opened, traffic, replicas, assignment.settings)
            self._partitions.put(known)
        known.validated = self._validated(name.topic, opened.config)

    # -- on a worker thread

    def settle(
        self,
        image: ClusterImage,
        known: Mapping[str, UUID],
        wanted: Mapping[TopicPartition, Assignment],
        left: Mapping[TopicPartition, int],
    ) -> Settled:
        """Removes, sets aside and opens logs. A partition whose log cannot be opened is left out and logged.
        `known`: the topics of the previous image."""
        waiting = self._take_over(image)
        self._clear_away(image, known, waiting)
        opened: dict[TopicPartition, PartitionLog] = {}
        behind: dict[TopicPartition, int] = {}
        for name, assignment in wanted.items():
            if name in waiting:
                continue
            try:
                found = self._configured(name, assignment)
                over = epoch_that_is_over(assignment, found.leader_epoch, left[name])
                if over is not None:
                    behind[name] = over
                    continue
                if assignment.leads and not assignment.image.state.mirror:
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
            self.refused.pop(name, None)
        return Settled(opened, behind)

    def _take_over(self, image: ClusterImage) -> set[TopicPartition]:
        """Gives logs of a former topic, whose topic mirrors its former mirror, the topic's new id (docs/mirror.md,
        section "Adopt"). Returns those that could not be changed."""
        failed = set()
        for name, found in self._logs.logs().items():
            topic = image.topics.get(name.topic)
            if topic is None or topic.former is None or found.topic_id != topic.former.topic_id:
                continue
            promotion = topic.former.promotions.get(name.partition)
            if promotion is None or self._broker_id not in _replicas(topic.partitions.get(name.partition)):
                continue
            cut_at = partial(common_end, promotion=PromotionStart(*promotion))
            try:
                self._logs.take_over(name, found.topic_id, topic.topic_id, cut_at)
            except KlammError as error:
                self._refuse(name, error)
                failed.add(name)
        return failed

    def _configured(self, name: TopicPartition, assignment: Assignment) -> PartitionLog:
        """Returns the partition's log; with its former configuration if the new one needs space on a full disk."""
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
        elif self.refused.get(name) != str(error):  # logged once, not with every change of the image
            log.error("partition %s cannot be served: %s", name, error)
        self.refused[name] = str(error)

    def _clear_away(
        self, image: ClusterImage, topics: Mapping[str, UUID], kept: Collection[TopicPartition] = ()
    ) -> None:
        leaving = {}
        for name, found in self._logs.logs().items():
            if name in kept:
                continue
            topic = image.topics.get(name.topic)
            known = topic is not None and topic.topic_id == found.topic_id
            if known and topic is not None and self._broker_id in _replicas(topic.partitions.get(name.partition)):
                continue
            leaving[name] = (found, known)
        if len(leaving) > 1:
            try:
                self._logs.forget_checkpoints(leaving)
            except KlammError as error:
                log.error("partitions cannot be removed: %s", error)
        for name, (found, known) in leaving.items():
            try:
                if topics.get(name.topic) == found.topic_id:
                    log.info("partition %s %s", name, "was moved to other brokers" if known else "was deleted")
                    self._logs.remove(name)
                else:
                    self._logs.set_aside(name)
            except KlammError as error:
                log.error("partition %s cannot be removed: %s", name, error)
        for name in self._logs.missing.ends():
            topic = image.topics.get(name.topic)
            if topic is None or topic.topic_id != topics.get(name.topic, topic.topic_id):
                self._logs.missing.forget(name)


def _replicas(partition: PartitionImage | None) -> tuple[int, ...]:
    return () if partition is None else partition.replicas
