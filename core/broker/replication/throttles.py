"""The two replication quotas of a broker (KIP-73): what it sends to, and what it fetches as, throttled replicas that
catch up."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ...config.sections.broker import BrokerConfig
from ...config.sections.topic import TopicConfig
from ...replication.throttle import ReplicationQuota, ThrottledReplicas, must_wait

_parsed = lru_cache(maxsize=1024)(ThrottledReplicas.parse)


class ReplicationThrottles:
    """Belongs to the event loop. `config` returns the configuration in force, `now_ms` monotonic time."""

    def __init__(self, config: Callable[[], BrokerConfig], now_ms: Callable[[], float]) -> None:
        self._broker_id = config().broker_id
        self._now_ms = now_ms
        self.leader = ReplicationQuota(config().leader_replication_throttled_rate, now_ms())
        self.follower = ReplicationQuota(config().follower_replication_throttled_rate, now_ms())

    async def configure(self, config: BrokerConfig) -> None:
        """Takes new rates."""
        now = self._now_ms()
        self.leader.set_rate(config.leader_replication_throttled_rate, now)
        self.follower.set_rate(config.follower_replication_throttled_rate, now)

    def is_throttled_leader(self, config: TopicConfig, partition: int) -> bool:
        """Returns True if this broker, as the leader of the partition, sends under the quota."""
        return self.leader.is_limited and _parsed(config.leader_replication_throttled_replicas).covers(
            partition, self._broker_id
        )

    def is_throttled_follower(self, config: TopicConfig, partition: int) -> bool:
        """Returns True if this broker's replica of the partition fetches under the quota."""
        return self.follower.is_limited and _parsed(config.follower_replication_throttled_replicas).covers(
            partition, self._broker_id
        )

    def leader_must_wait(self, config: TopicConfig, partition: int, *, in_sync: bool) -> bool:
        """Returns True if the answer to a follower's Fetch has no records of the partition."""
        throttled = not in_sync and self.is_throttled_leader(config, partition)
        return must_wait(self.leader, throttled=throttled, in_sync=in_sync, now_ms=self._now_ms())

    def follower_wait_ms(self, config: TopicConfig, partition: int, *, in_sync: bool) -> float:
        """Returns for how long the partition is left out of this broker's fetches; 0 if it is fetched now."""
        if in_sync or not self.is_throttled_follower(config, partition):
            return 0.0
        return self.follower.wait_ms(self._now_ms())

    def sent(self, config: TopicConfig, partition: int, size: int, *, in_sync: bool) -> None:
        """Counts records that a follower was sent."""
        if not in_sync and self.is_throttled_leader(config, partition):
            self.leader.used(size, self._now_ms())

    def received(self, config: TopicConfig, partition: int, size: int, *, in_sync: bool) -> None:
        """Counts records that this broker's replica has fetched."""
        if not in_sync and self.is_throttled_follower(config, partition):
            self.follower.used(size, self._now_ms())
