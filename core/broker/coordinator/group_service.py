"""The group coordinator of this broker: `CoordinatorRuntime` with a `GroupShard` for each partition of
`__consumer_offsets` that it leads, and one object for each kind of request.

`GroupCoordinator` (`core/groups`) decides everything about members and never blocks; blocking calls (offsets, locks)
are made on worker threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from ...cluster.image import ClusterImage
from ...config.sections.broker import BrokerConfig
from ...errors import ErrorCode, describe_error
from ...groups.coordinator.coordinator import GroupCoordinator
from ...groups.coordinator.requests import GroupLimits
from ...groups.membership.topic_ids import TopicIds
from ...interfaces.coordination import Coordination
from ...interfaces.offsets import OffsetStore
from ...records.codecs import CodecTable
from ...replication.partition_state import NO_LEADER
from ..session.session_contact import SessionContact
from ..workers import Workers
from .coordinated_offsets import CoordinatedOffsets
from .coordinator_topic import CoordinatorTopic, LedRole
from .group_deletions import GroupDeletions
from .group_locks import GroupLocks
from .group_members import GroupMembers
from .group_metadata_manager import GroupMetadataManager
from .group_parts import GroupParts
from .group_shard import GroupShard
from .guarded_commits import GuardedCommits
from .leader_fence import LeaderFence
from .offset_cleanup import OffsetCleanup
from .offset_commits import OffsetCommits
from .runtime import CoordinatorRuntime
from .shard_log import ShardLog
from .stored_groups import StoredGroups

log = logging.getLogger(__name__)
_LONGEST_TICK_S = 0.1
"""The longest wait between two ticks: a request may bring the next deadline forward."""
_SHORTEST_TICK_S = 0.001
_STOP_S = 2.0


def limits_of(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
    )


class GroupService:
    """Belongs to the event loop. `image` returns the present image; `clock` monotonic seconds; `stored` makes the
    store of one partition's groups."""

    def __init__(
        self,
        config: BrokerConfig,
        coordination: Coordination,
        offsets: OffsetStore,
        workers: Workers,
        image: Callable[[], ClusterImage],
        topic: CoordinatorTopic,
        codecs: CodecTable,
        clock: Callable[[], float] = time.monotonic,
        stored: Callable[[ShardLog, Coordination], StoredGroups] = StoredGroups,
    ) -> None:
        self._coordination = coordination
        self._workers = workers
        self._clock = clock
        self._topic = topic
        self._make_stored = stored
        self._stopped = False
        self._session = SessionContact(clock)
        coordination.on_session(self._session.event)
        self.coordinator = GroupCoordinator(limits_of(config), clock, on_empty=self._emptied, on_changed=self._changed)
        topics = TopicIds(coordination)
        self._locks = GroupLocks(coordination, topic.incarnation, workers, self.coordinator)
        self._metadata = GroupMetadataManager(workers, self.coordinator.store_failed)
        self._runtime = CoordinatorRuntime(topic, self._make_shard, workers, codecs, self._loaded)
        self.offsets = CoordinatedOffsets(self._runtime, offsets, workers, self._session, image, topics)
        self.guarded_commits = GuardedCommits(topics, self._session, clock)
        parts = GroupParts(
            self._runtime, self.coordinator, self.offsets, self._locks, self._metadata, workers, self.not_mine
        )
        self.members = GroupMembers(parts)
        self.commits = OffsetCommits(parts, self.guarded_commits, self._session)
        self.deletions = GroupDeletions(parts, coordination)
        self.cleanup = OffsetCleanup(parts, image, topics, config.offsets_retention_minutes * 60_000)
        self._ticker: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._session.start(self._coordination.session_timeout_s)
        self._runtime.refresh()
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    async def stop(self) -> None:
        """Answers parked requests and releases the locks. Later requests get COORDINATOR_NOT_AVAILABLE and are retried;
        their senders stay members."""
        self._stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        self.cleanup.stop()
        self.coordinator.close()
        await self._runtime.finish(_STOP_S)
        await self._metadata.stop(_STOP_S)
        self._runtime.stop()
        await self._locks.stop(_STOP_S)

    async def find_coordinator(self, group: str) -> int:
        """Returns the id of the live broker that coordinates a group, `NO_LEADER` while there is none. Creates
        `__consumer_offsets` if it does not exist; raises `KlammError` if that is not possible now."""
        await self._topic.ensure_topic()
        found = self._topic.coordinator_of(group)
        # Another broker may coordinate the group by now: a member that waits here then asks the others.
        lost = self._session.unavailable and not self._session.certain
        return NO_LEADER if lost and self._topic.may_have_moved(found) else found

    def not_mine(self, group: str) -> ErrorCode | None:
        """Returns the error for a group that another broker coordinates, or that this one has not loaded yet."""
        return ErrorCode.coordinator_not_available if self._stopped else self._runtime.refusal(group)

    @property
    def loading(self) -> bool:
        """True while the groups of a partition are loaded."""
        return self._runtime.loading

    def _make_shard(self, role: LedRole, shard_log: ShardLog) -> GroupShard:
        partition = shard_log.partition
        fence = LeaderFence(self._coordination, self._topic.broker_id, partition, role.leader_epoch)
        stored = self._make_stored(shard_log, self._coordination)
        return GroupShard(role, partition, stored, fence, self.coordinator, self._locks, self._workers)

    def _loaded(self, shard: GroupShard) -> None:
        self.cleanup.loaded(shard)

    async def _tick(self) -> None:
        while True:
            due = self.coordinator.next_deadline()
            left = _LONGEST_TICK_S if due is None else due - self._clock()
            await asyncio.sleep(min(max(left, _SHORTEST_TICK_S), _LONGEST_TICK_S))
            try:
                self._session.tick()
                self._runtime.refresh()
                self.cleanup.clean_up()
                self.coordinator.tick()
            except Exception as error:  # it must go on, or no session of a member would end again
                log.exception("checking the groups failed, retrying: %s", describe_error(error))
                await asyncio.sleep(_LONGEST_TICK_S)

    def _changed(self, group: str) -> None:
        state = self.coordinator.state_to_store(group, _now_ms())
        shard = self._runtime.find(group, loading=True)
        if state is not None and shard is not None:
            self._metadata.save(shard.stored, group, state)

    def _emptied(self, group: str) -> None:
        self._locks.emptied(group)
        self.cleanup.emptied(group, _now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
