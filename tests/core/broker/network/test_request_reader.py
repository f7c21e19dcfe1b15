"""The receiving half of a connection, alone: requests, pausing, what it counts, and slow peers."""

from __future__ import annotations

import asyncio
import struct

import pytest

from klamm.core.broker.network.connection import Connection
from klamm.core.broker.network.connections import Connections
from klamm.core.broker.network.limits import Limits
from klamm.core.broker.network.request_reader import PIPELINED, RequestReader
from klamm.core.broker.request import ConnectionContext
from klamm.core.protocol.frames import FrameLengthError, FrameSplitter
from klammtest.fake_transport import FakeTransport

KIB = 1024


def reader(limits: Limits | None = None) -> tuple[RequestReader, FakeTransport, Connections]:
    """The transport has a handler of its own: nothing is delivered through it."""
    connections = Connections(limits or Limits(), clock=lambda: 0.0)
    splitter = FrameSplitter(10_000_000, None, connections.chunk)
    nobody = Connection(ConnectionContext(1, "L", "?"), splitter, lambda context, frame: None, connections)
    transport = FakeTransport(nobody)
    made = RequestReader(splitter, connections)
    made.start(transport)
    return made, transport, connections


def receive(target: RequestReader, data: bytes) -> bool:
    target.get_buffer()[: len(data)] = data
    complete = target.received(len(data))
    target.update()
    return complete


def frames(count: int) -> bytes:
    return (struct.pack(">i", 4) + b"more") * count


def test_reading_pauses_over_the_bound_and_resumes_at_half_of_it() -> None:
    target, transport, connections = reader()
    assert receive(target, frames(PIPELINED))
    assert not target.paused_for
    assert receive(target, frames(1))
    assert transport.events == ["pause"]
    assert connections.memory.queued == PIPELINED + 1
    while len(target.requests) > PIPELINED // 2 + 1:
        target.requests.popleft()
        target.update()
        assert target.paused_for
    target.requests.popleft()
    target.update()
    assert transport.events == ["pause", "resume"]
    assert connections.memory.held == PIPELINED // 2 * 4


def test_what_it_counts_is_given_back_when_the_connection_is_lost() -> None:
    target, _, connections = reader()
    receive(target, frames(3) + struct.pack(">i", 1_000_000) + bytes(10 * KIB))
    target.handling = 100
    target.update()
    assert connections.memory.held >= 12 + 10 * KIB + 100
    assert connections.memory.queued == 3
    target.lost()
    assert (connections.memory.held, connections.memory.queued) == (0, 0)


def test_a_bad_length_leaves_the_requests_ahead_of_it() -> None:
    target, _, _ = reader()
    data = frames(2) + struct.pack(">i", -1)
    target.get_buffer()[: len(data)] = data
    with pytest.raises(FrameLengthError, match="a frame length of -1"):
        target.received(len(data))
    assert list(target.requests) == [b"more"] * 2


def test_an_ended_reader_does_not_resume() -> None:
    target, transport, _ = reader()
    receive(target, frames(PIPELINED + 1))
    target.end()
    target.requests.clear()
    target.update()
    assert transport.events == ["pause"]


def test_reading_resumes_when_the_last_reason_for_a_pause_ends() -> None:
    async def test() -> None:
        target, transport, _ = reader()
        target.throttle(3600)
        target.throttle(0)
        receive(target, frames(PIPELINED + 1))
        assert transport.events == ["pause"]
        await asyncio.sleep(0.001)
        assert transport.events == ["pause"], "too much waits"
        target.requests.clear()
        target.update()
        assert transport.events == ["pause", "resume"]
        target.throttle(0)
        target.end()
        await asyncio.sleep(0.001)
        assert transport.events == ["pause", "resume", "pause"], "nothing more is read"

    asyncio.run(test())


def test_the_last_bytes_are_bounded() -> None:
    target, _, _ = reader()
    target.drain(100)
    assert [target.take_last(count) for count in (60, 60, 60)] == [60, 40, 0]
    assert target.remaining == 0


def test_an_unfinished_request_needs_64_kib_or_its_end_in_each_period() -> None:
    target, _, _ = reader()
    receive(target, struct.pack(">i", 1_000_000) + bytes(KIB))
    assert target.is_unfinished
    assert not target.is_too_slow(0.0, 30.0)
    assert not target.is_too_slow(29.0, 30.0)
    receive(target, bytes(KIB))
    receive(target, bytes(2 * KIB))
    assert target.is_too_slow(30.0, 30.0)
