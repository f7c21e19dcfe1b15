"""A broker whose process is gone is noticed by those that it fetches from, long before its session ends."""

from __future__ import annotations

from pathlib import Path

from klamm.core.errors import ErrorCode
from klamm.core.records.partition import TopicPartition
from klammtest.replicated.cluster import running_cluster
from klammtest.requests import batch, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient

FOR_EVER_MS = 600_000
"""Sessions and the lag of replicas do not end while a test runs."""


def test_a_killed_follower_that_nobody_fetches_from_holds_up_no_acknowledgement(tmp_path: Path) -> None:
    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db"), "session.timeout.ms": FOR_EVER_MS}
    with running_cluster(tmp_path, tree, broker={"replica.lag.time.max.ms": FOR_EVER_MS}) as cluster:
        cluster.create_topic("t", 1)
        assert cluster.await_in_sync("t", 1)
        state = cluster.state(TopicPartition("t", 0))
        assert state is not None
        follower = next(i for i in cluster.ids if i not in (state.leader, cluster.controller()))
        with WireClient(cluster.brokers[state.leader].bootstrap) as wire:
            acknowledged = lambda: produce(wire, "t", batch(b"0")).error_code is ErrorCode.none  # noqa: E731
            eventually(acknowledged, "the leader leads, and the others follow")
            cluster.brokers[follower].pause()
            for _ in range(2):  # its Fetch is answered, so that none waits, and the answer stays unread
                assert produce(wire, "t", batch(b"a"), acks=1).error_code is ErrorCode.none
            cluster.brokers[follower].kill()
            assert produce(wire, "t", batch(b"b"), acks=-1).error_code is ErrorCode.none
        state = cluster.state(TopicPartition("t", 0))
        assert state is not None
        assert follower not in state.isr
