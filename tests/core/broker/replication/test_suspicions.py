"""A broker whose process is gone is noticed by those that it fetches from, long before its session ends."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from klamm.core.broker.replication.suspicions import Suspicions
from klamm.core.errors import ErrorCode
from klamm.core.records.partition import TopicPartition
from klammtest.clusters.images import broker_node
from klammtest.ports import free_port
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


@pytest.mark.parametrize("listening", [False, True])
def test_a_broker_is_refused_if_all_addresses_of_its_name_refuse(listening: bool) -> None:
    """asyncio raises no `ConnectionRefusedError` if a name has several."""
    port = free_port()

    async def two(host: str, port: int, **_: Any) -> list[Any]:
        names = ("127.0.0.1", "127.0.0.2") if host == "broker-0" else (host,)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (name, port)) for name in names]

    async def is_refused() -> bool:
        asyncio.get_running_loop().getaddrinfo = two  # type: ignore[method-assign, assignment]
        return await Suspicions._is_refused(broker_node(0, "broker-0", port))

    with closing(socket.socket()) as server:
        if listening:
            server.bind(("127.0.0.2", port))
            server.listen()
        assert asyncio.run(is_refused()) is not listening
