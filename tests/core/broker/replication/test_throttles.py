"""The quotas of one broker: which replicas they hold back, and that new rates count at once."""

from __future__ import annotations

import asyncio

import pytest

from klamm.core.broker.replication.throttles import ReplicationThrottles
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.config.sections.topic import TopicConfig

THROTTLED = TopicConfig.from_strings(
    {"leader.replication.throttled.replicas": "0:1,1:2", "follower.replication.throttled.replicas": "*"}
)


def config(**rates: int) -> BrokerConfig:
    return BrokerConfig(broker_id=1, **rates)


def test_a_leader_holds_back_throttled_replicas_out_of_sync_only() -> None:
    throttles = ReplicationThrottles(lambda: config(leader_replication_throttled_rate=100), lambda: 0.0)
    throttles.sent(THROTTLED, 0, 1000, in_sync=True)
    assert not throttles.leader_must_wait(THROTTLED, 0, in_sync=False), "what in-sync replicas get does not count"
    throttles.sent(THROTTLED, 0, 1000, in_sync=False)
    assert throttles.leader_must_wait(THROTTLED, 0, in_sync=False)
    assert not throttles.leader_must_wait(THROTTLED, 0, in_sync=True)
    assert not throttles.leader_must_wait(THROTTLED, 1, in_sync=False), "broker 2's leadership is named, not this one's"
    assert not throttles.leader_must_wait(TopicConfig(), 0, in_sync=False)


def test_a_follower_waits_until_its_quota_is_filled_again_or_raised() -> None:
    now = [0.0]
    throttles = ReplicationThrottles(lambda: config(follower_replication_throttled_rate=100), lambda: now[0])
    throttles.received(THROTTLED, 5, 300, in_sync=False)
    assert throttles.follower_wait_ms(THROTTLED, 5, in_sync=False) == pytest.approx(2010)
    assert throttles.follower_wait_ms(THROTTLED, 5, in_sync=True) == 0
    asyncio.run(throttles.configure(config(follower_replication_throttled_rate=10_000)))
    assert throttles.follower_wait_ms(THROTTLED, 5, in_sync=False) == pytest.approx(20.1)
    now[0] = 0.021
    assert throttles.follower_wait_ms(THROTTLED, 5, in_sync=False) == 0
    asyncio.run(throttles.configure(config()))
    throttles.received(THROTTLED, 5, 10**12, in_sync=False)
    assert throttles.follower_wait_ms(THROTTLED, 5, in_sync=False) == 0
