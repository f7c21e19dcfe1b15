"""A client above `max.connection.bytes.per.second` is told how long to wait, and is not read meanwhile (KIP-219)."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest

from klamm.core.broker.delayed_reply import Reply
from klamm.core.broker.handlers.metering import LONGEST_WAIT_S, Metered, metered
from klamm.core.broker.request import ConnectionContext
from klamm.core.token_bucket import TokenBucket
from klammtest.broker import running_broker
from klammtest.waiting import eventually


def served(_: ConnectionContext, __: bytearray) -> Reply:
    return [b"answer"]


def send(connection: ConnectionContext, size: int) -> int:
    assert connection.dispatch(connection, bytearray(size)) == [b"answer"]
    return connection.throttle_ms


def connect() -> tuple[ConnectionContext, list[float]]:
    connection, pauses = ConnectionContext(1, "L", "?"), list[float]()
    connection.throttle = pauses.append
    return connection, pauses


def test_a_client_over_its_rate_is_answered_with_the_time_to_wait_and_not_read_meanwhile() -> None:
    now = [0.0]
    connection, pauses = connect()
    connection.dispatch = Metered(served, TokenBucket(10, clock=lambda: now[0]))
    assert [send(connection, 10) for _ in range(3)] == [100, 1100, 2100]
    assert pauses == pytest.approx([0.1, 1.1, 2.1])
    now[0] = 5.0
    assert (send(connection, 2), len(pauses)) == (0, 3)
    assert send(connection, 1_000_000_000) == LONGEST_WAIT_S * 1000, "the wait has a bound"


def test_connections_are_metered_each_on_its_own() -> None:
    dispatch = metered(served, 1024)
    (first, pauses), (second, others) = connect(), connect()
    first.dispatch = second.dispatch = dispatch
    assert send(first, 4096) > 0
    assert send(second, 100) == 0
    assert (len(pauses), len(others)) == (1, 0)
    assert isinstance(first.dispatch, Metered), "the meter is made by the first request alone"


def test_a_foreign_client_sees_that_it_is_throttled(tmp_path: Path) -> None:
    limit = {"max.connection.bytes.per.second": 1024}
    with running_broker(tmp_path / "broker", topics={"t": {}}, broker=limit) as broker:
        events: list[confluent_kafka.ThrottleEvent] = []
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "throttle_cb": events.append})
        producer.produce("t", bytes(1500))
        assert producer.flush(60) == 0
        eventually(lambda: producer.poll(0.1) >= 0 and events, "a throttle event")
    assert events[0].broker_id == 0
    assert events[0].throttle_time > 0
