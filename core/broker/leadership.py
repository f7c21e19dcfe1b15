"""Opens logs by the cluster's image: which partitions this broker leads, and with which configuration.

One image is applied at a time, the newest: a partition that is no longer led is not served before its log is closed; a
deleted topic's logs are removed; a log that the cluster does not know is set aside, never deleted (design, section 6);
a partition is served once its log is open. The image of another cluster (the coordination's data was lost) is refused:
its topics are missing, which must not be taken for their deletion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from ..cluster.cluster import Cluster
from ..cluster.image import EMPTY_IMAGE, ClusterImage, PartitionImage
from ..config.sections.topic import TopicConfig
from ..errors import ConfigError, CoordinationError, KlammError, StorageError, describe_error
from ..log.manager import LogManager
from ..log.partition_log import PartitionLog
from ..records.partition import TopicPartition
from .partitions import LedPartition, Partitions
from .workers import Workers

log = logging.getLogger(__name__)

_ROUNDS = 5  # rounds in one refresh; the rest waits for the next image
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition that this broker is to lead."""

    topic_id: UUID
    state: PartitionImage
    config: TopicConfig


class Leadership:
    """`refresh` and `image` belong to the event loop; `changed` may be called from any thread."""

    def __init__(
        self, broker_id: int, cluster: Cluster, logs: LogManager, partitions: Partitions, workers: Workers,
        defaults: TopicConfig,
    ) -> None:  # fmt: skip
        self._broker_id = broker_id
        self._cluster = cluster
        self._logs = logs
        self._partitions = partitions
        self._workers = workers
        self._defaults = defaults
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._known: dict[str, UUID] = {}
        self._refused: dict[TopicPartition, str] = {}
        self._stopped = False
        self._behind: dict[TopicPartition, int] = {}
        self.image: ClusterImage = EMPTY_IMAGE

    def changed(self, _: ClusterImage) -> None:
        """Called with a new image: schedules its application."""
        self._loop.call_soon_threadsafe(self._refresh_soon)

    def _refresh_soon(self) -> None:
        task = self._loop.create_task(self.refresh())
        self._tasks.add(task)
        task.add_done_callback(self._refreshed)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("the cluster's image could not be applied: %s", describe_error(error))

    @property
    def complete(self) -> bool:
        """True if every partition that this broker leads is served."""
        return not self._refused and not self._behind

    async def stop(self) -> None:
        """Opens no more logs; the partitions led stay as they are."""
        async with self._lock:
            self._stopped = True

    async def refresh(self) -> None:
        """Applies the newest image; when this returns, every partition that this broker leads in it is served."""
        async with self._lock:
            if self._stopped:
                return
            image = self._cluster.image()
            if self.image.cluster_id not in ("", image.cluster_id):
                raise StorageError(
                    f"the coordination holds cluster {image.cluster_id} now, the logs here are of cluster "
                    f"{self.image.cluster_id}: they stay as they are; restore the coordination's data"
                )
            for _ in range(_ROUNDS):
                if image is self.image and not self._behind:
                    break
                await self._apply(image)
                await self._raise_epochs()
                image = self._cluster.image()

    async def _raise_epochs(self) -> None:
        """Raises leader epochs that are older in the coordination (restored from a backup) than in the log: epochs
        never go back, so the partition is led under a new one, above the log's.
        """
        if not self._behind:
            return
        for name, epoch in self._behind.items():
            log.warning(
                "partition %s: the coordination has leader epoch %d, its log %d: the coordination is older than the "
                "log (restored from a backup?); continuing under %d",
                name, self.image.topics[name.topic].partitions[name.partition].leader_epoch, epoch, epoch + 1,
            )  # fmt: skip
        try:
            await self._workers.coordination(self._cluster.raise_leader_epochs, self._behind)
        except CoordinationError as error:
            log.warning("leader epochs could not be raised, it is tried again: %s", error)
            self._loop.call_later(_RETRY_S, self._refresh_soon)

    async def _apply(self, image: ClusterImage) -> None:
        if _went_back(self.image, image):
            log.error(
                "the coordination is older than it was (restored from a backup?): topics that it lacks now were not "
                "deleted, their logs are set aside"
            )
            self._known = {}
        wanted = self._assignments(image)
        # A topic may have been deleted and created again between two images: no client may get the id of the new one
        # with the records of the old one.
        gone = [led.name for led in self._partitions if not _is_led(led, wanted.get(led.name))]
        self._partitions.remove(gone)
        self.image = image
        opened, self._behind = await self._workers.disk(self._settle, image, wanted)
        for name, opened_log in opened.items():
            self._serve(name, opened_log, wanted[name])

    async def use_defaults(self, defaults: TopicConfig) -> None:
        """Sets other defaults for topics, existing ones included."""
        async with self._lock:
            if defaults != self._defaults and not self._stopped:
                self._defaults = defaults
                await self._apply(self.image)

    def _assignments(self, image: ClusterImage) -> dict[TopicPartition, Assignment]:
        found: dict[TopicPartition, Assignment] = {}
        for topic in image.topics.values():
            config = self._config(topic.name, topic.configs)
            for number, state in topic.partitions.items():
                if state.leader == self._broker_id:
                    found[TopicPartition(topic.name, number)] = Assignment(topic.topic_id, state, config)
        return found

    def _config(self, topic: str, configs: Mapping[str, str]) -> TopicConfig:
        try:
            return TopicConfig.from_strings(configs, self._defaults)
        except ConfigError as error:
            log.error("topic %s has a wrong configuration, the broker's defaults are used: %s", topic, error)
            return self._defaults

    def _serve(self, name: TopicPartition, opened: PartitionLog, assignment: Assignment) -> None:
        led = self._partitions.find(*name)
        if led is None or led.log is not opened:
            led = LedPartition(name, opened, self._partitions.traffic(name.topic))
            self._partitions.put(led)
        led.update(assignment.state)

    # -- on a worker thread

    def _settle(
        self, image: ClusterImage, wanted: dict[TopicPartition, Assignment]
    ) -> tuple[dict[TopicPartition, PartitionLog], dict[TopicPartition, int]]:
        """Removes, sets aside and opens logs; returns the logs to be served, and the leader epochs of those that are
        ahead of the cluster's. A partition whose log cannot be opened is left out and logged.
        """
        self._clear_away(image)
        opened: dict[TopicPartition, PartitionLog] = {}
        behind: dict[TopicPartition, int] = {}
        for name, assignment in wanted.items():
            try:
                found = self._logs.create(name, assignment.topic_id, assignment.config)
                if found.config != assignment.config:
                    found.reconfigure(assignment.config)
                if assignment.state.leader_epoch < found.leader_epoch:
                    behind[name] = found.leader_epoch
                    continue
                found.begin_leader_epoch(assignment.state.leader_epoch, durable=False)
                opened[name] = found
            except KlammError as error:
                self._refuse(name, error)
        for name, failed in self._logs.sync_leader_epochs().items():
            if opened.pop(name, None) is not None:
                self._refuse(name, failed)
        for name in opened:
            self._refused.pop(name, None)
        return opened, behind

    def _refuse(self, name: TopicPartition, error: KlammError) -> None:
        if self._refused.get(name) != str(error):  # logged once, not with every change of the image
            log.error("partition %s cannot be served: %s", name, error)
        self._refused[name] = str(error)

    def _clear_away(self, image: ClusterImage) -> None:
        for name, found in self._logs.logs().items():
            topic = image.topics.get(name.topic)
            if topic is not None and topic.topic_id == found.topic_id and name.partition in topic.partitions:
                continue  # led here, or now by another broker
            try:
                if self._known.get(name.topic) == found.topic_id:
                    log.info("partition %s was deleted", name)
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


def _is_led(led: LedPartition, wanted: Assignment | None) -> bool:
    return wanted is not None and wanted.topic_id == led.log.topic_id


def _went_back(before: ClusterImage, now: ClusterImage) -> bool:
    """Returns True if the coordination has lost changes: its count of changes otherwise only grows."""
    return now.version < before.version
