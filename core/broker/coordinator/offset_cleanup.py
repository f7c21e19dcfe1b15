"""Deletes offsets that nobody needs any more: those of deleted topics, and of groups that are deserted for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from uuid import UUID

from ...errors import BrokerError, ErrorCode
from ...groups.coordinator.coordinator import GroupCoordinator
from ...groups.group_protocol_lock import GroupProtocol
from ...interfaces.coordination import BadVersionError, Check, NoNodeError
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition
from ..workers import Workers
from .group_locks import GroupLocks
from .group_metadata_manager import GroupMetadataManager
from .group_partitions import GroupPartitions
from .key_sequencer import KeySequencer

log = logging.getLogger(__name__)

Stored = Callable[[str, None], Awaitable[Mapping[TopicPartition, CommittedOffset]]]


class OffsetCleanup:
    """Belongs to the event loop. Each deletion takes its turn among the group's commits (`commits`); `stored` returns
    all offsets of a group."""

    def __init__(
        self,
        partitions: GroupPartitions,
        locks: GroupLocks,
        coordinator: GroupCoordinator,
        group_metadata: GroupMetadataManager,
        commits: KeySequencer,
        workers: Workers,
        stored: Stored,
        retention_ms: int,
    ) -> None:
        self._partitions = partitions
        self._locks = locks
        self._coordinator = coordinator
        self._group_metadata = group_metadata
        self._commits = commits
        self._workers = workers
        self._stored = stored
        self._retention_ms = retention_ms
        self._populated_ms: dict[str, int] = {}
        """When each group was last known to have members: at a check, when the last one left, or when a coordinator
        before this one stored that. When the last registry member left is stored nowhere: of a group whose last members
        were such, and of which nothing is known here, it is the time of the check that found it deserted."""

    def emptied(self, group: str, now_ms: int) -> None:
        """Notes that the group's last member has left."""
        self._populated_ms[group] = now_ms

    async def forget_topics(self, deleted: Mapping[UUID, str]) -> None:
        """Deletes the offsets of deleted topics (their names by id), also those of groups with members, as Kafka does:
        of all groups, or where a partition's own store has them of the groups that are coordinated here. Offsets of a
        newer topic of the same name stay. Raises `KlammError` when the store fails, and while groups are loaded: call
        it again."""
        if self._partitions.loading:
            raise BrokerError(ErrorCode.coordinator_load_in_progress, "the groups are being loaded")
        await self.forget_here(deleted)

    async def forget_here(self, deleted: Mapping[UUID, str]) -> None:
        """Does it for the groups that are loaded by now."""
        await self.forget_in(await self._partitions.reachable_groups(), deleted)

    async def forget_in(self, groups: Iterable[str], deleted: Mapping[UUID, str]) -> None:
        for group in groups:
            await asyncio.shield(self._commits.begin(group, self._forget_topics(group, deleted)))

    async def _forget_topics(self, group: str, deleted: Mapping[UUID, str]) -> None:
        names = set(deleted.values())
        gone = {
            name: found
            for name, found in (await self._stored(group, None)).items()
            if name.topic in names and (found.topic_id is None or found.topic_id in deleted)
        }
        if gone:
            # A registry member may have committed to the new topic of that name meanwhile.
            await self._workers.offsets(self._partitions.store(group).delete, group, gone, seen=gone)

    async def expire_offsets(self, now_ms: int) -> None:
        """Deletes the offsets of groups that have had no member and no commit for `offsets.retention.minutes`; with a
        store that keeps no groups, as far as this broker knows, which is since it coordinates them. Groups whose id
        begins with `__` are the broker's own and are kept."""
        oldest = now_ms - self._retention_ms
        for partition in self._partitions.active():
            if partition.groups is not None:
                for group, state in (await self._group_metadata.load(partition.groups)).items():
                    if state.changed_ms > oldest:
                        self._populated_ms[group] = max(self._populated_ms.get(group, 0), state.changed_ms)
        groups = await self._partitions.groups_with_offsets()
        with_offsets, known = frozenset(groups), self._populated_ms.items()
        self._populated_ms = {group: at for group, at in known if at > oldest or group in with_offsets}
        for group in groups:
            if self._coordinator.populated(group):
                self._populated_ms[group] = now_ms
            elif not group.startswith("__"):
                await asyncio.shield(self._commits.begin(group, self._expire_offsets(group, oldest, now_ms)))
        for partition in self._partitions.active():
            if partition.groups is not None:
                for group, state in (await self._group_metadata.load(partition.groups)).items():
                    if state.changed_ms < oldest:
                        await asyncio.shield(self._commits.begin(group, self._expire_group(group)))

    async def _expire_offsets(self, group: str, oldest_ms: int, now_ms: int) -> None:
        """Runs in turn with the group's commits: it sees the commits before it, and those after it are stored after
        it."""
        populated_ms = max(self._populated_ms.get(group, 0), self._partitions.unknown_until_ms(group))
        if not self._deserted(group) or populated_ms > oldest_ms:
            return
        if not _older(await self._stored(group, None), oldest_ms):  # true for most groups: skip the lock
            return
        async with self._locks.pinned(group) as (protocol, unchanged):
            if protocol is not None or await self._left_unseen(group):
                self._populated_ms[group] = now_ms
                return
            stored = await self._stored(group, None)
            expired = _older(stored, oldest_ms) and self._deserted(group)
            if expired and await self._forget_group(group, unchanged, stored):
                self._populated_ms.pop(group, None)
                log.info("the offsets of group %s have expired", group)

    async def _left_unseen(self, group: str) -> bool:
        """Returns whether the group's last members were registry members, of whom no check here has known."""
        if group in self._populated_ms:
            return False
        return await self._locks.last_protocol(group) is GroupProtocol.REGISTRY

    async def _expire_group(self, group: str) -> None:
        """Deletes the stored state of a group that has neither members nor offsets, in turn with the group's
        commits."""
        async with self._locks.pinned(group) as (protocol, unchanged):
            if protocol is None and self._deserted(group) and not await self._stored(group, None):
                await self._forget_group(group, unchanged, {})

    async def _forget_group(
        self, group: str, unchanged: list[Check], seen: Mapping[TopicPartition, CommittedOffset]
    ) -> bool:
        """Deletes the group's offsets, but for those committed since they were `seen`. Returns False, and deletes
        nothing, if its lock was acquired in the meantime or another broker coordinates it now."""
        guards = [*self._partitions.guards(group), *unchanged]
        try:
            await self._workers.offsets(self._partitions.store(group).delete, group, None, guards, seen=seen)
        except (BadVersionError, NoNodeError) as error:
            log.info("the offsets of group %s stay: %s", group, error)
            return False
        return True

    def _deserted(self, group: str) -> bool:
        """Returns whether the group is this broker's and has no members."""
        return self._partitions.keeps(group) and not self._coordinator.populated(group)


def _older(stored: Mapping[TopicPartition, CommittedOffset], oldest_ms: int) -> bool:
    """Returns whether there are offsets and all of them were committed before that time."""
    return bool(stored) and max(offset.commit_timestamp_ms for offset in stored.values()) < oldest_ms
