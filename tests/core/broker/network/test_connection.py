"""The rules of a connection, over a transport in memory."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any

import pytest

from klamm.core.broker.network.connection import Connection
from klamm.core.broker.network.connections import Connections
from klamm.core.broker.network.limits import Limits
from klamm.core.broker.network.request_reader import PIPELINED
from klamm.core.broker.network.response_writer import WRITE_BUFFER_HIGH
from klamm.core.broker.request import ConnectionContext
from klamm.core.errors import ProtocolError
from klamm.core.protocol.frames import FrameSplitter
from klammtest.fake_transport import FakeTransport, on_a_loop, settle


class Bench:
    """A connection whose requests are answered by `answer`: `wait…` later, when `release` is set."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.release = asyncio.Event()
        self.handled: list[bytes] = []
        self.cancelled = False
        self.now = 5.0
        self.connections = Connections(limits or Limits(), clock=lambda: self.now)
        self.context = ConnectionContext(1, "PLAINTEXT", "?")
        self.connection = Connection(
            self.context, FrameSplitter(10_000_000, None, self.connections.chunk), self.answer, self.connections
        )
        self.transport = FakeTransport(self.connection, ("10.0.0.9", 4711))
        self.transport.connect()

    def answer(self, context: ConnectionContext, frame: bytearray) -> Any:
        self.handled.append(bytes(frame))
        if frame.startswith(b"wait"):
            return self.later(frame)
        if frame.startswith(b"bad"):
            raise ProtocolError("this cannot be read")
        if frame.startswith(b"bug"):
            raise ZeroDivisionError("a bug\nin two lines")
        return None if frame.startswith(b"none") else [b"<", bytes(frame), b">"]

    async def later(self, frame: bytearray) -> Any:
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if frame == b"wait and fail":
            raise ZeroDivisionError("late")
        return [b"<", bytes(frame), b">"]

    def arrive(self, *frames: bytes) -> None:
        data = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
        self.transport.feed(data, although_paused=True)


bench_test = on_a_loop(Bench)


@bench_test
async def test_answers_go_out_in_the_order_of_the_requests(bench: Bench) -> None:
    bench.arrive(b"one", b"wait", b"none", b"two")
    await settle()
    assert bench.handled == [b"one", b"wait"], "nothing behind a waiting request is begun"
    bench.release.set()
    await settle()
    assert bench.transport.written == [b"<one>", b"<wait><two>"]


@bench_test
async def test_requests_that_came_together_are_answered_in_one_write(bench: Bench) -> None:
    bench.arrive(b"one", b"none", b"two", b"three")
    assert bench.transport.written == [b"<one><two><three>"]


@bench_test
async def test_what_was_answered_goes_out_before_a_bad_request_closes(bench: Bench) -> None:
    bench.arrive(b"one", b"bad", b"two")
    assert bench.transport.written == [b"<one>"]
    assert bench.transport.events[-1] == "close"


def bad_length(bench: Bench, *frames: bytes) -> None:
    """Whole requests and a length that none may have, in one read."""
    data = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames) + struct.pack(">i", -7)
    bench.transport.feed(data)


@bench_test
async def test_what_came_ahead_of_a_bad_length_is_answered_before_it_closes(bench: Bench) -> None:
    requests = [b"%02d" % number for number in range(40)]  # more than one turn's worth
    bench.arrive(b"wait")
    bad_length(bench, *requests)
    await settle()
    assert "close" not in bench.transport.events
    bench.release.set()
    await settle()
    assert b"".join(bench.transport.written) == b"<wait>" + b"".join(b"<%b>" % each for each in requests)
    assert bench.transport.events[-1] == "close"
    bench.arrive(b"behind")
    assert b"behind" not in bench.handled


def test_a_bad_length_is_said_once_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        bench = Bench()
        bad_length(bench, b"one")
        bench.connection.drain()
        await settle()
        assert bench.transport.events[-1] == "close"
        assert +bench.connections.metrics.connections_closed == {"bad request": 1}

    asyncio.run(main())
    (record,) = caplog.records
    assert record.getMessage().endswith("(client unknown): a frame length of -7; a frame has at least 2 bytes")


@bench_test
async def test_a_connection_is_not_busy_once_all_is_answered(bench: Bench) -> None:
    bench.arrive(b"one", b"wait")
    assert bench.connection.busy
    bench.release.set()
    await settle()
    assert not bench.connection.busy


@bench_test
async def test_reading_pauses_while_too_much_waits(bench: Bench) -> None:
    bench.arrive(b"wait", *[b"more"] * PIPELINED)
    assert bench.transport.events == []
    bench.arrive(b"more")
    assert bench.transport.events == ["pause"]
    bench.release.set()
    await settle()
    assert bench.transport.events == ["pause", "resume"]
    assert b"".join(bench.transport.written).count(b"<") == PIPELINED + 2


@bench_test
async def test_nothing_is_handled_while_the_client_does_not_read(bench: Bench) -> None:
    bench.transport.unsent = WRITE_BUFFER_HIGH + 1
    bench.connection.pause_writing()
    bench.arrive(b"one", b"two")
    await settle()
    assert bench.handled == []
    bench.connection.resume_writing()
    assert bench.transport.written == [b"<one><two>"]


@bench_test
async def test_many_small_requests_give_others_their_turn(bench: Bench) -> None:
    bench.arrive(*[b"ab"] * 40)
    assert len(bench.handled) < 40
    await settle()
    assert b"".join(bench.transport.written) == b"<ab>" * 40


@bench_test
async def test_what_a_request_waits_for_is_cancelled_with_its_connection(bench: Bench) -> None:
    bench.arrive(b"wait", b"more")
    await settle()
    bench.connection.connection_lost(None)
    await settle()
    assert bench.cancelled
    assert bench.handled == [b"wait"]
    assert len(bench.connections) == 0


@bench_test
async def test_work_that_was_due_when_the_connection_was_lost_counts_nothing_more(bench: Bench) -> None:
    bench.arrive(b"wait", *[b"more"] * (PIPELINED + 1))
    bench.transport.feed(struct.pack(">i", 1_000_000) + bytes(1000), although_paused=True)
    bench.release.set()
    while len(bench.handled) == 1:
        await asyncio.sleep(0)
    assert bench.connection.busy, "one burst is handled, the next is due"
    bench.connection.connection_lost(None)
    await settle()
    assert (bench.connections.memory.held, bench.connections.memory.queued) == (0, 0)


@pytest.mark.parametrize(
    ("frame", "level", "line"),
    [
        (b"bad", logging.WARNING, "closed connection 1 of 10.0.0.9:4711 (client unknown): this cannot be read"),
        (b"bug", logging.ERROR, "unexpected ZeroDivisionError: a bug in two lines at "),
        (b"wait and fail", logging.ERROR, "unexpected ZeroDivisionError: late at "),
    ],
)
def test_a_request_that_fails_closes_with_one_line(
    frame: bytes, level: int, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        bench = Bench()
        bench.release.set()
        bench.arrive(frame, b"behind")
        await settle()
        assert bench.transport.events[-1] == "close"
        assert bench.transport.written == []
        bench.arrive(b"late")
        assert b"late" not in bench.handled

    asyncio.run(main())
    (record,) = caplog.records
    assert record.levelno == level
    assert line in record.getMessage()
    assert "\n" not in record.getMessage()


@bench_test
async def test_draining_answers_what_is_under_way_and_closes(bench: Bench) -> None:
    bench.arrive(b"wait", b"behind")
    bench.connection.drain()
    assert "close" not in bench.transport.events
    bench.release.set()
    bench.arrive(b"too late")
    await settle()
    assert b"".join(bench.transport.written) == b"<wait><behind>"
    assert bench.transport.events[-1] == "close"


@bench_test
async def test_draining_takes_what_has_come_and_no_more(bench: Bench) -> None:
    bench.transport.more_input = True
    bench.connection.drain()
    assert bench.transport.events == [], "it reads on"
    bench.arrive(b"wait", b"one")
    assert bench.transport.events == []
    bench.transport.more_input = False
    bench.arrive(b"two")
    assert bench.transport.events == ["pause"]
    bench.arrive(b"too late")
    bench.release.set()
    await settle()
    assert b"".join(bench.transport.written) == b"<wait><one><two>"
    assert bench.transport.events[-1] == "close"


@bench_test
async def test_draining_ends_with_half_a_request(bench: Bench) -> None:
    bench.transport.more_input = True
    bench.connection.drain()
    bench.transport.more_input = False
    bench.transport.feed(b"\0\0\0")
    await settle()
    assert bench.transport.events[-1] == "close"


@bench_test
async def test_who_never_ends_does_not_keep_a_broker_that_stops(bench: Bench) -> None:
    bench.transport.more_input = True  # always
    bench.connection.drain()
    while "pause" not in bench.transport.events:
        bench.arrive(b"none" + bytes(60_000))
        assert len(bench.handled) < 30
    await settle()
    assert len(bench.handled) > 10
    assert bench.transport.events[-1] == "close"


@bench_test
async def test_draining_an_idle_connection_closes_it(bench: Bench) -> None:
    bench.connection.drain()
    assert bench.transport.events[-1] == "close"


@bench_test
async def test_a_client_that_says_no_more_is_answered_and_closed(bench: Bench) -> None:
    requests = [b"%02d" % number for number in range(40)]
    bench.arrive(b"wait", *requests)
    assert bench.connection.eof_received(), "it stays open"
    bench.release.set()
    await settle()
    assert b"".join(bench.transport.written) == b"<wait>" + b"".join(b"<%b>" % each for each in requests)
    assert bench.transport.events[-1] == "close"


@bench_test
async def test_a_client_that_says_no_more_and_has_all_answers_is_closed(bench: Bench) -> None:
    bench.arrive(b"one")
    assert not bench.connection.eof_received()
    assert bench.transport.events[-1] == "close"


@bench_test
async def test_who_waits_for_a_client_that_says_no_more_is_told(bench: Bench) -> None:
    told: list[bool] = []
    bench.context.on_end = lambda: told.append(bench.context.ended)
    bench.arrive(b"wait")
    bench.connection.eof_received()
    assert told == [True]


@pytest.mark.parametrize("says_no_more", [True, False])
def test_requests_that_are_never_handled_do_not_keep_a_connection_that_is_not_read_any_more(says_no_more: bool) -> None:
    async def main() -> None:
        bench = Bench()
        bench.arrive(b"wait", b"one")
        if says_no_more:
            bench.connection.eof_received()
        else:
            bad_length(bench)
        limits = bench.connections.limits
        assert bench.connection.overdue(5.0, limits, tight=False) is None
        assert bench.connection.overdue(5.0 + limits.frame_s - 1, limits, tight=False) is None
        assert bench.connection.overdue(5.0 + limits.frame_s, limits, tight=False) == "unhandled requests"
        bench.connection.expel("unhandled requests")
        bench.connection.connection_lost(None)

    asyncio.run(main())


def test_a_client_that_declares_codecs() -> None:
    context = ConnectionContext(1, "PLAINTEXT", "?")
    context.introduce("klamm", "0.1.0-codecs.5.7")
    assert context.codecs == {5, 7}
    context.introduce("apache-kafka-java", "3.9.0")
    assert context.codecs == set()
