"""Limits the bandwidth of replicas that catch up (KIP-73), so that a reassignment leaves bandwidth to clients.

A broker has two limits: as a leader (`leader.replication.throttled.rate`) and as a follower
(`follower.replication.throttled.rate`). Only throttled replicas that are not in sync count and wait: a limit on an
in-sync replica would push it out of the ISR (KAFKA-4313). The size of an answer is known only afterwards; all
throttled replicas then wait until the excess is made up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

from ...config.sections.broker import BrokerConfig
from ...config.sections.topic import TopicConfig
from ...replication.throttle import UNLIMITED, ThrottledReplicas
from ...token_bucket import TokenBucket

_parsed = lru_cache(maxsize=1024)(ThrottledReplicas.parse)


class ReplicationThrottles:
    """Belongs to the event loop. `config` returns the configuration in force, `clock` monotonic seconds."""

    def __init__(self, config: Callable[[], BrokerConfig], clock: Callable[[], float] = time.monotonic) -> None:
        self._broker_id = config().broker_id
        self.leader = TokenBucket(config().leader_replication_throttled_rate, clock=clock)
        self.follower = TokenBucket(config().follower_replication_throttled_rate, clock=clock)

    async def configure(self, config: BrokerConfig) -> None:
        """Sets new rates."""
        self.leader.change(config.leader_replication_throttled_rate)
        self.follower.change(config.follower_replication_throttled_rate)

    def is_throttled_leader(self, config: TopicConfig, partition: int) -> bool:
        """Returns True if this broker, as the leader of the partition, sends under the quota."""
        return self.leader.rate < UNLIMITED and _parsed(config.leader_replication_throttled_replicas).covers(
            partition, self._broker_id
        )

    def is_throttled_follower(self, config: TopicConfig, partition: int) -> bool:
        """Returns True if this broker's replica of the partition fetches under the quota."""
        return self.follower.rate < UNLIMITED and _parsed(config.follower_replication_throttled_replicas).covers(
            partition, self._broker_id
        )

    def leader_must_wait(self, config: TopicConfig, partition: int, *, in_sync: bool) -> bool:
        """Returns True if the answer to a follower's Fetch must have no records of the partition now."""
        return not in_sync and self.is_throttled_leader(config, partition) and self.leader.wait_s() > 0

    def follower_wait_ms(self, config: TopicConfig, partition: int, *, in_sync: bool) -> float:
        """Returns for how long the partition is left out of this broker's fetches; 0 if it is fetched now."""
        if in_sync or not self.is_throttled_follower(config, partition):
            return 0.0
        wait_s = self.follower.wait_s()
        return max(wait_s * 1000, 1.0) if wait_s else 0.0

    def sent(self, config: TopicConfig, partition: int, size: int, *, in_sync: bool) -> None:
        """Counts records that a follower was sent."""
        if not in_sync and self.is_throttled_leader(config, partition):
            self.leader.spend(size)

    def received(self, config: TopicConfig, partition: int, size: int, *, in_sync: bool) -> None:
        """Counts records that this broker's replica has fetched."""
        if not in_sync and self.is_throttled_follower(config, partition):
            self.follower.spend(size)
