"""The quotas of one broker: which replicas they hold back, and that new rates count at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.core.broker.replication.throttles import ReplicationThrottles
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.records.partition import TopicPartition

THROTTLED = TopicConfig.from_strings(
    {"leader.replication.throttled.replicas": "0:1,1:2", "follower.replication.throttled.replicas": "*"}
)


def config(**rates: int) -> BrokerConfig:
    return BrokerConfig(broker_id=1, **rates)


def replica(partition: int, *in_sync: int, topic: TopicConfig = THROTTLED) -> Any:
    """A replica of which the throttles read the configuration, the name and the in-sync replicas `in_sync`."""
    name, log = TopicPartition("t", partition), SimpleNamespace(config=topic)
    return SimpleNamespace(name=name, log=log, is_in_sync=in_sync.__contains__)


def test_a_leader_holds_back_throttled_replicas_out_of_sync_only() -> None:
    throttles = ReplicationThrottles(lambda: config(leader_replication_throttled_rate=100), lambda: 0.0)
    assert throttles.leader_bucket(replica(0, 1, 2), 2) is None, "what in-sync replicas get does not count"
    assert throttles.leader_bucket(replica(0, 1), 2) is throttles.leader
    assert throttles.leader_bucket(replica(1, 1), 2) is None, "broker 2's leadership is named, not this one's"
    assert throttles.leader_bucket(replica(0, 1, topic=TopicConfig()), 2) is None


def test_a_follower_waits_until_its_quota_is_filled_again_or_raised() -> None:
    now = [0.0]
    throttles = ReplicationThrottles(lambda: config(follower_replication_throttled_rate=100), lambda: now[0])
    bucket = throttles.follower_bucket(replica(5, 2))
    assert bucket is throttles.follower
    assert throttles.follower_bucket(replica(5, 1, 2)) is None
    bucket.spend(300)
    assert bucket.wait_s() == pytest.approx(2.01)
    asyncio.run(throttles.configure(config(follower_replication_throttled_rate=10_000)))
    assert bucket.wait_s() == pytest.approx(0.0201)
    now[0] = 0.021
    assert bucket.wait_s() == 0
    asyncio.run(throttles.configure(config()))
    assert throttles.follower_bucket(replica(5, 2)) is None
