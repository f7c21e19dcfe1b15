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
from ...replication.throttle import UNLIMITED, ThrottledReplicas
from ...token_bucket import TokenBucket
from .replica import Replica

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

    def leader_bucket(self, replica: Replica, follower: int) -> TokenBucket | None:
        """Returns the bucket for what this broker, as the leader, sends a follower of the partition; None if that is
        not limited."""
        if self.leader.rate >= UNLIMITED or replica.is_in_sync(follower):
            return None
        throttled = _parsed(replica.log.config.leader_replication_throttled_replicas)
        return self.leader if throttled.covers(replica.name.partition, self._broker_id) else None

    def follower_bucket(self, replica: Replica) -> TokenBucket | None:
        """Returns the bucket for what this broker's replica fetches; None if that is not limited."""
        if self.follower.rate >= UNLIMITED or replica.is_in_sync(self._broker_id):
            return None
        throttled = _parsed(replica.log.config.follower_replication_throttled_replicas)
        return self.follower if throttled.covers(replica.name.partition, self._broker_id) else None
