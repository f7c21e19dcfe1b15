"""Clients that go, or say no more, behind requests that they have sent: these are handled, as Kafka does."""

from __future__ import annotations

import os
import signal
import struct
import time
from pathlib import Path

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame
from klammtest.broker import RunningBroker, running_broker
from klammtest.requests import batch, fetch, fetch_fields, metadata, new_topic, produce_fields
from klammtest.wire import WireClient

_MANY = 2000
_AT_HAND = 800  # more than are read at once, and few enough for `_RECEIVE_BUFFER`
_RECEIVE_BUFFER = 200_000
_PATIENCE_S = 60.0


def requests(topic: str, count: int, acks: int) -> bytes:
    """Produce requests of one record each, one behind the other."""
    schema = messages.request(ApiKey.PRODUCE, 9)
    body = schema.encode(schema.build(**produce_fields({(topic, 0): batch(b"x")}, acks=acks)))
    return b"".join(request_frame(ApiKey.PRODUCE, 9, number, "wire", body) for number in range(count))


def comes_to(broker: RunningBroker, topic: str, end: int) -> None:
    """Wait until the topic ends there."""
    deadline = time.monotonic() + _PATIENCE_S
    with WireClient(broker.bootstrap) as wire:
        while (found := fetch(wire, topic, 0).high_watermark) < end:
            assert time.monotonic() < deadline, f"{found} of {end} requests were handled"
            time.sleep(0.02)
    assert found == end


@pytest.mark.parametrize("config", [{}, {"flush_messages": 1}], ids=["by the event loop", "by worker threads"])
def test_what_a_client_sent_without_acks_is_handled_though_it_has_gone(
    broker: RunningBroker, wire: WireClient, config: dict[str, int]
) -> None:
    topic, many = new_topic(wire, **config), _MANY // (20 if config else 1)
    with WireClient(broker.bootstrap) as gone:
        metadata(gone, [topic])
        gone.send_raw(requests(topic, many, acks=0) + struct.pack(">i", 100) + b"a request that has no end")
    comes_to(broker, topic, many)


@pytest.mark.parametrize("config", [{}, {"flush_messages": 1}], ids=["by the event loop", "by worker threads"])
def test_a_client_that_says_no_more_gets_its_answers(wire: WireClient, config: dict[str, int]) -> None:
    topic, many = new_topic(wire, **config), _MANY // (20 if config else 1)
    wire.send_raw(requests(topic, many, acks=1))
    wire.end_sending()
    for number in range(many):
        outcome = wire.receive(ApiKey.PRODUCE, 9).responses[0].partition_responses[0]
        assert (outcome.error_code, outcome.base_offset) == (ErrorCode.none, number)
    assert wire.closed()


def test_nothing_is_waited_for_on_behalf_of_a_client_that_says_no_more(wire: WireClient) -> None:
    topic = new_topic(wire)
    for _ in range(2):
        wire.send(ApiKey.FETCH, 12, **fetch_fields({(topic, 0): 0}, max_wait_ms=2**31 - 1))
    wire.send_raw(requests(topic, 1, acks=1))
    wire.end_sending()
    for _ in range(2):
        assert wire.receive(ApiKey.FETCH, 12).responses[0].partitions[0].error_code is ErrorCode.none
    assert wire.receive(ApiKey.PRODUCE, 9).responses[0].partition_responses[0].base_offset == 0
    assert wire.closed()


def test_a_broker_that_is_told_to_stop_handles_what_has_come(tmp_path: Path) -> None:
    limits = {"socket.receive.buffer.bytes": _RECEIVE_BUFFER, "shutdown.drain.timeout.ms": 60_000}
    topics: dict[str, dict[str, int]] = {"gone": {}, "here": {}}
    with running_broker(tmp_path, topics=topics, broker=limits) as broker, WireClient(broker.bootstrap) as here:
        metadata(here, ["here"])
        with WireClient(broker.bootstrap) as gone:
            metadata(gone, ["gone"])
            broker.pause()
            gone.send_raw(requests("gone", _AT_HAND, acks=0))
        here.send_raw(requests("here", _AT_HAND, acks=1))
        os.kill(broker.pid, signal.SIGTERM)
        broker.resume()
        for number in range(_AT_HAND):
            assert here.receive(ApiKey.PRODUCE, 9).responses[0].partition_responses[0].base_offset == number
        assert here.closed()
        assert broker.died(_PATIENCE_S)
        broker.start()
        comes_to(broker, "gone", _AT_HAND)
