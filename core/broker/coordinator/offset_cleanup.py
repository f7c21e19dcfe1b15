"""Deletes offsets that are no longer needed: those of deleted topics, and of groups that have been empty for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any
from uuid import UUID

from ...cluster.image import ClusterImage
from ...errors import BrokerError, ErrorCode, KlammError, describe_error
from ...groups.group_protocol_lock import GroupProtocol
from ...groups.membership.topic_ids import TopicIds
from ...interfaces.coordination import BadVersionError, Check, NoNodeError
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition
from .group_parts import GroupPart, GroupParts
from .group_shard import GroupShard

log = logging.getLogger(__name__)


class OffsetCleanup(GroupPart):
    """Belongs to the event loop. Each deletion runs in the sequence of the group's commits."""

    def __init__(
        self, parts: GroupParts, image: Callable[[], ClusterImage], topics: TopicIds, retention_ms: int
    ) -> None:
        super().__init__(parts)
        self._image = image
        self._topics = topics
        self._retention_ms = retention_ms
        self._deleted = DeletedTopics(image)
        self._forgetting: set[asyncio.Task[None]] = set()
        self._populated_ms: dict[str, int] = {}
        """When each group was last known to have members: at a check, when the last one left, or when an earlier
        coordinator stored that. No store has the time when the last registry member left: if nothing is known about
        such a group, its time is that of the check that found it empty."""

    def emptied(self, group: str, now_ms: int) -> None:
        """Records that the group's last member has left."""
        self._populated_ms[group] = now_ms

    def stop(self) -> None:
        for task in self._forgetting:
            task.cancel()

    # -- offsets of deleted topics

    async def forget_topics(self, deleted: Mapping[UUID, str]) -> None:
        """Deletes the offsets of deleted topics (their names by id), also in groups with members, as Kafka does: of
        all groups, or only of those that this broker coordinates if the offsets are in `__consumer_offsets`. Offsets
        of a newer topic of the same name stay. Raises `KlammError` when the store fails, and while groups are
        loaded: call it again."""
        if self._runtime.loading:
            raise BrokerError(ErrorCode.coordinator_load_in_progress, "the groups are being loaded")
        await self._forget_in(await self._offsets.reachable_groups(), deleted)

    def clean_up(self) -> None:
        """Deletes the offsets of topics that were deleted since the last call, where only this broker can do it."""
        if self._offsets.in_topic and (deleted := self._deleted.take()):
            self._soon(self._forget_here(deleted))

    def loaded(self, shard: GroupShard) -> None:
        """Called with groups that are served from now on: deletes offsets of topics that were created again while
        another broker led the partition, or none did."""
        if self._offsets.in_topic:
            self._soon(self._forget_replaced(shard))

    async def _forget_here(self, deleted: Mapping[UUID, str]) -> None:
        await self._forget_in(await self._offsets.reachable_groups(), deleted)

    async def _forget_replaced(self, shard: GroupShard) -> None:
        ids = {topic.name: topic.topic_id for topic in self._image().topics.values()}
        doubtful: dict[UUID, str] = {}
        for group in await self._workers.offsets(shard.stored.groups):
            stored = await self._workers.offsets(shard.stored.fetch, group)
            for name, found in stored.items():
                if found.topic_id is not None and name.topic in ids and found.topic_id != ids[name.topic]:
                    doubtful[found.topic_id] = name.topic
        if doubtful:  # the image may be older than a commit
            now = await self._workers.coordination(self._topics.now, set(doubtful.values()))
            replaced = {i: name for i, name in doubtful.items() if now.get(name, i) != i}
            await self._forget_in(await self._workers.offsets(shard.stored.groups), replaced)

    def _soon(self, forgetting: Coroutine[Any, Any, None]) -> None:
        """Runs the deletion as a task. Nothing is lost if it fails: offsets of a deleted topic are ignored, and
        deleted at the next load."""
        task = asyncio.get_running_loop().create_task(forgetting)
        self._forgetting.add(task)
        task.add_done_callback(self._forgot)

    def _forgot(self, task: asyncio.Task[None]) -> None:
        self._forgetting.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, KlammError):
            log.info("offsets of deleted topics stay for now: %s", error)
        elif error is not None:
            log.error("offsets of deleted topics stay for now: %s", describe_error(error))

    async def _forget_in(self, groups: Iterable[str], deleted: Mapping[UUID, str]) -> None:
        for group in groups:
            await self._runtime.in_turn(group, self._forget_topics(group, deleted))

    async def _forget_topics(self, group: str, deleted: Mapping[UUID, str]) -> None:
        names = set(deleted.values())
        gone = {
            name: found
            for name, found in (await self._offsets.stored(group, None)).items()
            if name.topic in names and (found.topic_id is None or found.topic_id in deleted)
        }
        if gone:
            # A registry member may have committed to the new topic of that name meanwhile.
            await self._workers.offsets(self._offsets.store(group).delete, group, gone, seen=gone)

    # -- offsets and states of deserted groups

    async def expire_offsets(self, now_ms: int) -> None:
        """Deletes the offsets of groups that have had no member and no commit for `offsets.retention.minutes`. Groups
        whose id begins with `__` are the broker's own and are kept."""
        oldest = now_ms - self._retention_ms
        for shard in self._runtime.active():
            for group, state in (await shard.states()).items():
                if state.changed_ms > oldest:
                    self._populated_ms[group] = max(self._populated_ms.get(group, 0), state.changed_ms)
        groups = await self._offsets.groups()
        with_offsets, known = frozenset(groups), self._populated_ms.items()
        self._populated_ms = {group: at for group, at in known if at > oldest or group in with_offsets}
        for group in groups:
            if self._coordinator.populated(group):
                self._populated_ms[group] = now_ms
            elif not group.startswith("__"):
                await self._runtime.in_turn(group, self._expire_offsets(group, oldest, now_ms))
        for shard in self._runtime.active():
            for group, state in (await shard.states()).items():
                if state.changed_ms < oldest:
                    await self._runtime.in_turn(group, self._expire_group(group))

    async def _expire_offsets(self, group: str, oldest_ms: int, now_ms: int) -> None:
        """Runs in the sequence of the group's commits: it sees the commits before it, and later ones are stored
        after it."""
        if not self._deserted(group) or self._populated_ms.get(group, 0) > oldest_ms:
            return
        if not _older(await self._offsets.stored(group, None), oldest_ms):  # true for most groups: skip the lock
            return
        async with self._locks.pinned(group) as (protocol, unchanged):
            if protocol is not None or await self._left_unseen(group):
                self._populated_ms[group] = now_ms
                return
            stored = await self._offsets.stored(group, None)
            expired = _older(stored, oldest_ms) and self._deserted(group)
            if expired and await self._forget_group(group, unchanged, stored):
                self._populated_ms.pop(group, None)
                log.info("the offsets of group %s have expired", group)

    async def _left_unseen(self, group: str) -> bool:
        """Returns whether the group's last members were registry members that no check has seen."""
        if group in self._populated_ms:
            return False
        return await self._locks.last_protocol(group) is GroupProtocol.REGISTRY

    async def _expire_group(self, group: str) -> None:
        """Deletes the stored state of a group that has neither members nor offsets, in the sequence of the group's
        commits."""
        async with self._locks.pinned(group) as (protocol, unchanged):
            if protocol is None and self._deserted(group) and not await self._offsets.stored(group, None):
                await self._forget_group(group, unchanged, {})

    async def _forget_group(
        self, group: str, unchanged: list[Check], seen: Mapping[TopicPartition, CommittedOffset]
    ) -> bool:
        """Deletes the group's offsets, except those committed since they were `seen`. Returns False, and deletes
        nothing, if its lock was acquired in the meantime or another broker coordinates it now."""
        try:
            await self._offsets.delete_group(group, [*self._offsets.guards(group), *unchanged], seen=seen)
        except (BadVersionError, NoNodeError) as error:
            log.info("the offsets of group %s stay: %s", group, error)
            return False
        return True

    def _deserted(self, group: str) -> bool:
        """Returns whether this broker coordinates the group and it has no members."""
        return self._offsets.keeps(group) and not self._coordinator.populated(group)


def _older(stored: Mapping[TopicPartition, CommittedOffset], oldest_ms: int) -> bool:
    """Returns whether there are offsets and all of them were committed before that time."""
    return bool(stored) and max(offset.commit_timestamp_ms for offset in stored.values()) < oldest_ms


class DeletedTopics:
    """The topics that are missing in the image since the last call of `take`."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        self._seen = image()

    def take(self) -> dict[UUID, str]:
        """Returns the deleted topics' names by id. Topics that are missing in a coordination restored from a backup
        (its version is lower) were not deleted."""
        before, now = self._seen, self._image()
        self._seen = now
        if now is before or now.version <= before.version or now.history != before.history:
            return {}
        ids = {topic.topic_id for topic in now.topics.values()}
        return {topic.topic_id: topic.name for topic in before.topics.values() if topic.topic_id not in ids}
