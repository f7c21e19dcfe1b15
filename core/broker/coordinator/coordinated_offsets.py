"""The offsets of the groups that this broker coordinates, wherever the offset store keeps them.

A store in `__consumer_offsets` is not called: a coordinator appends to the log of the group's partition
(`GroupShard`), whose leader epoch fences it. Any other store gets checks with each write: of this broker's
registration, and of the state of the group's partition (`LeaderFence`), since nothing is appended there that a
leader epoch could fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from ...cluster.changes import incarnation_path
from ...cluster.image import ClusterImage
from ...errors import BrokerError, ErrorCode
from ...groups.membership.topic_ids import TopicIds, is_of
from ...interfaces.coordination import Check, CoordinationUnavailableError
from ...interfaces.offsets import CommittedOffset, OffsetStore
from ...records.partition import TopicPartition
from ..session.session_contact import SessionContact
from ..workers import Workers
from .group_shard import GroupShard
from .runtime import CoordinatorRuntime


class CoordinatedOffsets:
    """Belongs to the event loop. `image` returns the present image of the cluster."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        store: OffsetStore,
        workers: Workers,
        session: SessionContact,
        image: Callable[[], ClusterImage],
        topics: TopicIds,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._workers = workers
        self._session = session
        self._image = image
        self._topics = topics
        self.in_topic = store.in_offsets_topic

    # -- reading

    async def fetch(self, group: str, names: Iterable[TopicPartition] | None) -> dict[TopicPartition, CommittedOffset]:
        """Returns the stored offsets of existing topics; an offset of a deleted topic of the same name is left out.
        Raises `CoordinationUnavailableError` when the store is unreachable, at once if that is known."""
        stored = await self.stored(group, names)
        image = self._image()
        doubtful = {
            name.topic
            for name, found in stored.items()
            if not is_of(found, topic.topic_id if (topic := image.topics.get(name.topic)) else None)
        }
        if not doubtful:
            return stored
        # The image may be older than the commit.
        ids = await self._workers.coordination(self._topics.now, doubtful)
        return {
            name: found
            for name, found in stored.items()
            if name.topic not in doubtful or is_of(found, ids.get(name.topic))
        }

    async def stored(self, group: str, names: Iterable[TopicPartition] | None) -> dict[TopicPartition, CommittedOffset]:
        """Returns all stored offsets, also those of deleted topics."""
        self.check_reachable()
        return await self._workers.offsets(self.store(group).fetch, group, names)

    async def groups(self) -> list[str]:
        """Returns the groups with a stored offset that this broker lists and expires, sorted."""
        return [group for group in await self.reachable_groups() if self.keeps(group)]

    async def reachable_groups(self) -> list[str]:
        """Returns the groups with a stored offset: all, or only those that this broker coordinates if the offsets
        are in `__consumer_offsets`."""
        if not self.in_topic:
            return await self._workers.offsets(self._store.groups)
        groups: set[str] = set()
        for shard in self._runtime.active():
            with suppress(BrokerError):  # this broker does not lead it any more
                groups.update(await self._workers.offsets(shard.stored.groups))
        return sorted(group for group in groups if self._runtime.refusal(group) is None)

    def keeps(self, group: str) -> bool:
        """Returns whether this broker lists and expires the group."""
        return self._runtime.topic.keeps_unplaced or self._runtime.refusal(group) is None

    # -- writing

    def store(self, group: str) -> OffsetStore:
        """Returns the store for a group's offsets. Raises `BrokerError` if they are in a partition that is not served
        here."""
        return self._runtime.shard(group).stored if self.in_topic else self._store

    def check_reachable(self) -> None:
        """Raises `CoordinationUnavailableError` at once if the store's coordination is known to be unreachable: a call
        would wait for its time-out, and delay the heartbeats on the same connection."""
        if self._store.needs_coordination and (self._session.unavailable or self._session.expired):
            raise CoordinationUnavailableError("the coordination, which stores the offsets, is unavailable")

    async def delete_group(
        self, group: str, guards: list[Check], *, seen: Mapping[TopicPartition, CommittedOffset] | None = None
    ) -> None:
        """Deletes the group's state in `__consumer_offsets`, and its offsets; `seen` as in `OffsetStore.delete`."""
        shard = self._runtime.find(group)
        if shard is not None and not self.in_topic:  # first: a store may delete the path that a guard names
            await self._workers.offsets(shard.stored.delete, group, None, guards)
        await self._workers.offsets(self.store(group).delete, group, None, guards, seen=seen)

    def guards(self, group: str) -> list[Check]:
        """Returns the checks that hold while this broker is registered and, unless the leader epoch fences the appends,
        leads the group's partition. Raises `BrokerError` NOT_COORDINATOR without a registration."""
        incarnation = self._runtime.topic.incarnation()
        if not incarnation:
            raise BrokerError(ErrorCode.not_coordinator, "this broker is not registered now")
        guards = [Check(incarnation_path(incarnation))]
        shard = self._runtime.find(group)
        if shard is not None and not self.in_topic:
            guards.append(shard.fence.check)
        if shard is None and self._runtime.topic.exists:  # it was unloaded while the request waited
            raise BrokerError(ErrorCode.not_coordinator, f"group {group!r} is not coordinated here now")
        return guards

    async def renewed(self, group: str) -> bool:
        """Called after a guard failed: returns True if the state of the group's partition has changed, and this broker
        leads in the same leader epoch. `guards` then returns new checks."""
        shard = self._runtime.find(group)
        if shard is None or self.in_topic:
            return False
        before = shard.fence.check
        return await self._workers.coordination(shard.fence.read) and shard.fence.check != before
