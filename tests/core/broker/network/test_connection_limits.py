"""The limits of a connection: time for its requests and responses, memory together with all others."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from klamm.core.broker.network import allocator
from klamm.core.broker.network.connection import Connection
from klamm.core.broker.network.connections import Connections
from klamm.core.broker.network.limits import Limits
from klamm.core.broker.network.memory import LEAST_ROOM
from klamm.core.broker.request import ConnectionContext
from klamm.core.protocol.frames import FrameSplitter
from klammtest.fake_transport import FakeTransport

KIB = 1024
LIMITS = Limits(idle_s=100, frame_s=30, send_s=60, request_bytes=300 * KIB, response_bytes=1000 * KIB)


class Bench:
    def __init__(self, limits: Limits = LIMITS) -> None:
        self.now = 0.0
        self.connections = Connections(limits, clock=lambda: self.now)
        self.release: list[asyncio.Future[None]] = []

    def connect(self, address: str = "127.0.0.1") -> tuple[Connection, FakeTransport]:
        splitter = FrameSplitter(10_000_000, None, self.connections.chunk)
        connection = Connection(ConnectionContext(1, "L", "?"), splitter, self._answer, self.connections)
        wire = FakeTransport(connection, (address, 1))
        wire.connect()
        return connection, wire

    def _answer(self, context: ConnectionContext, frame: bytearray) -> Any:
        return self._later() if frame.startswith(b"wait") else [b"answer"]

    async def _later(self) -> Any:
        self.release.append(asyncio.get_running_loop().create_future())
        await self.release[-1]
        return [b"answer"]

    def sweep(self, connection: Connection, now: float, *, tight: bool = False) -> str | None:
        self.now = now
        return connection.overdue(now, self.connections.limits, tight=tight)


def arrive(connection: Connection, data: bytes) -> None:
    while data:
        room = connection.get_buffer(-1)
        count = min(len(room), len(data))
        room[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


def begun(size: int, sent: int) -> bytes:
    """The first bytes of a request."""
    return struct.pack(">i", size) + b"r" * sent


def test_an_idle_connection_goes() -> None:
    bench = Bench()
    connection, _ = bench.connect()
    assert bench.sweep(connection, 99) is None
    arrive(connection, begun(2, 2))
    assert bench.sweep(connection, 150) is None
    assert bench.sweep(connection, 200) == "idle"


@pytest.mark.parametrize("first", [b"\0", b"\0\0\0\x10", begun(16, 8), begun(1_000_000, 8)])
def test_a_request_that_does_not_end_closes_its_connection(first: bytes) -> None:
    bench = Bench()
    connection, _ = bench.connect()
    arrive(connection, first)
    assert bench.sweep(connection, 10) is None
    arrive(connection, b"r")
    assert bench.sweep(connection, 35) is None
    assert bench.sweep(connection, 41) == "unfinished request"


def test_a_large_request_has_the_time_it_needs_while_it_comes() -> None:
    bench = Bench()
    connection, _ = bench.connect()
    arrive(connection, begun(1_000_000, 10))
    for period in range(1, 6):
        assert bench.sweep(connection, 31.0 * period) is None
        arrive(connection, b"r" * 70 * KIB)
    assert bench.sweep(connection, 31.0 * 6) is None
    assert bench.sweep(connection, 31.0 * 7) == "unfinished request"


def test_a_request_after_the_other_is_not_one_slow_one() -> None:
    bench = Bench()
    connection, _ = bench.connect()
    for second in range(0, 200, 10):
        arrive(connection, begun(4, 2))
        assert bench.sweep(connection, second) is None
        arrive(connection, b"rr")


def test_a_peer_that_reads_nothing_goes() -> None:
    bench = Bench()
    connection, wire = bench.connect()
    wire.unsent = 900 * KIB
    connection.pause_writing()
    assert bench.connections.memory.unread == 900 * KIB
    assert bench.sweep(connection, 10) is None
    wire.unsent = 800 * KIB
    assert bench.sweep(connection, 60) is None
    assert bench.sweep(connection, 119) is None
    assert bench.sweep(connection, 121) == "reads nothing"
    connection.expel("reads nothing")
    connection.connection_lost(None)
    assert wire.is_closing()
    assert bench.connections.memory.unread == 0
    assert +bench.connections.metrics.connections_closed == {"reads nothing": 1}


def test_it_goes_sooner_when_too_much_waits_to_be_read() -> None:
    bench = Bench()
    connection, wire = bench.connect()
    wire.unsent = 2000 * KIB
    connection.pause_writing()
    assert bench.connections.memory.tight
    assert +bench.connections.metrics.held_up == {"queued.max.response.bytes": 1}
    assert bench.connections.memory.response_limit() == LEAST_ROOM
    assert bench.sweep(connection, 1, tight=True) is None
    assert bench.sweep(connection, 12, tight=True) == "reads nothing"


def test_responses_have_less_room_the_more_waits() -> None:
    bench = Bench()
    assert bench.connections.memory.response_limit() == 250 * KIB
    connection, wire = bench.connect()
    wire.unsent = 600 * KIB
    connection.pause_writing()
    assert bench.connections.memory.response_limit() == 100 * KIB
    connection.resume_writing()
    assert bench.connections.memory.response_limit() == 250 * KIB


def on_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            await test()

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@on_a_loop
async def test_a_write_counts_as_a_whole_until_its_last_byte_is_sent() -> None:
    bench = Bench()
    connection, wire = bench.connect()
    wire.kernel_room = 100 * KIB
    connection._writer.add([bytes(400 * KIB)], connection)
    assert bench.connections.memory.unread == 400 * KIB, "300 wait, the memory is there for 400"
    await asyncio.sleep(0)  # the next round, with a budget of its own
    wire.unsent = 80 * KIB
    connection._writer.add([bytes(70 * KIB)], connection)
    assert bench.connections.memory.unread == 470 * KIB, "80 wait, and any of the 400 may be held"
    assert bench.sweep(connection, 10) is None
    connection.resume_writing()
    assert bench.connections.memory.unread == 0
    assert bench.connections.memory.freed == 470 * KIB


@on_a_loop
async def test_large_answers_take_turns_and_count_while_they_wait() -> None:
    bench = Bench(Limits())
    memory = bench.connections.memory
    pairs = [bench.connect() for _ in range(4)]
    for connection, _ in pairs:
        connection._writer.add([bytes(192 * KIB)], connection)
    assert [len(wire.written) for _, wire in pairs] == [1, 1, 0, 0]
    assert memory.unread == 2 * 192 * KIB
    arrive(pairs[3][0], begun(4, 0) + b"next")
    pairs[0][0]._writer.add([b"small"], pairs[0][0])
    pairs[0][0]._writer.flush(pairs[0][0])
    assert len(pairs[0][1].written) == 2, "a small answer does not ask"
    pairs[2][0].connection_lost(None)
    assert memory.unread == 192 * KIB
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [len(wire.written) for _, wire in pairs] == [2, 1, 0, 2], (
        "the answer that waited, then that to the next request"
    )
    assert memory.unread == 0


@on_a_loop
async def test_what_waits_for_its_turn_is_sent_before_its_connection_closes() -> None:
    bench = Bench(Limits())
    pairs = [bench.connect() for _ in range(3)]
    for connection, _ in pairs:
        connection._writer.add([bytes(192 * KIB)], connection)
    pairs[2][0].drain()
    assert len(pairs[2][1].written) == 1
    assert pairs[2][1].is_closing()


@on_a_loop
async def test_the_system_s_reading_on_does_not_jump_the_queue() -> None:
    bench = Bench(Limits())
    pairs = [bench.connect() for _ in range(3)]
    first, wire = pairs[2]
    wire.kernel_room = 0
    first._writer.add([bytes(100 * KIB)], first)
    for connection, _ in pairs[:2]:
        connection._writer.add([bytes(96 * KIB)], connection)
    first._writer.add([bytes(200 * KIB)], first)
    wire.sent()
    assert len(wire.written) == 1
    assert bench.connections.memory.unread == 200 * KIB, "what waits for its turn"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(wire.written) == 2


def test_room_is_taken_while_a_response_is_made() -> None:
    bench = Bench()
    memory = bench.connections.memory
    one, other = ConnectionContext(1, "L", "?"), ConnectionContext(2, "L", "?")
    assert memory.take(one) == 250 * KIB
    assert memory.take(other) == 750 * KIB // 4
    assert memory.take(one) == (1000 - 187.5) * KIB // 4, "what it had before is given back"
    memory.give_back(one)
    memory.give_back(other)
    memory.give_back(other)
    assert memory.response_limit() == 250 * KIB


def test_room_is_given_back_with_the_answer_and_with_the_connection() -> None:
    async def main() -> None:
        bench = Bench()
        memory = bench.connections.memory
        for end in ("answer", "loss"):
            connection, _ = bench.connect()
            arrive(connection, begun(4, 0) + b"wait")
            await asyncio.sleep(0)
            memory.take(connection.context)
            if end == "answer":
                bench.release[-1].set_result(None)
            else:
                connection.connection_lost(None)
            for _ in range(5):
                await asyncio.sleep(0)
            assert memory.taken == 0

    asyncio.run(main())


def test_little_is_read_behind_a_waiting_request_when_many_wait() -> None:
    async def main() -> None:
        bench = Bench(Limits(queued_requests=1))
        pairs = [bench.connect() for _ in range(2)]
        frame = begun(4, 0)
        for connection, _ in pairs:
            arrive(connection, frame + b"wait")
        arrive(pairs[0][0], (frame + b"more") * 2)
        assert len(pairs[1][0].get_buffer(-1)) == 4 * KIB
        assert len(bench.connect()[0].get_buffer(-1)) == 64 * KIB, "who waits for nothing is not held up"

    asyncio.run(main())


def test_large_requests_wait_for_memory_and_one_always_goes_on() -> None:
    bench = Bench()
    first, first_wire = bench.connect()
    second, second_wire = bench.connect()
    arrive(first, begun(1_000_000, 90 * KIB))
    assert first_wire.reading
    arrive(second, begun(1_000_000, 90 * KIB))
    assert [first_wire.reading, second_wire.reading] == [True, True], "the first over the limit goes on"
    arrive(first, b"r" * 100)
    assert [first_wire.reading, second_wire.reading] == [False, True], "the other waits for it"
    assert +bench.connections.metrics.held_up == {"queued.max.request.bytes": 1}
    assert bench.sweep(first, 1000) is None, "and is not blamed for it"
    third, third_wire = bench.connect()
    arrive(third, begun(16, 8) + b"r" * 8)
    assert third_wire.reading, "small requests pass"
    arrive(second, b"r" * (1_000_000 - 90 * KIB))
    assert [first_wire.reading, second_wire.reading] == [True, True]
    arrive(first, b"r" * (1_000_000 - 90 * KIB - 100))
    assert bench.connections.memory.held == 0


def test_memory_of_a_lost_connection_is_free() -> None:
    bench = Bench()
    pairs = [bench.connect() for _ in range(3)]
    for connection, _ in pairs:
        arrive(connection, begun(1_000_000, 90 * KIB))
    assert [wire.reading for _, wire in pairs] == [True, True, False]
    for connection, _ in pairs[:2]:
        connection.connection_lost(None)
    assert pairs[2][1].reading
    pairs[2][0].connection_lost(None)
    assert bench.connections.memory.held == 0


def test_requests_of_all_connections_together_are_bounded() -> None:
    async def main() -> None:
        bench = Bench(Limits(queued_requests=5))
        pairs = [bench.connect() for _ in range(4)]
        frame = begun(4, 0)
        for connection, _ in pairs:
            arrive(connection, frame + b"wait" + (frame + b"more") * 2)
        assert bench.connections.memory.queued == 8
        assert [wire.reading for _, wire in pairs] == [True, True, False, False]
        assert +bench.connections.metrics.held_up == {"queued.max.requests": 2}
        await asyncio.sleep(0)
        for held in bench.release:
            held.set_result(None)
        for _ in range(10):
            await asyncio.sleep(0)
        assert bench.connections.memory.queued == 0
        assert all(wire.reading for _, wire in pairs)

    asyncio.run(main())


def test_connections_of_one_address_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Limits(max_connections=5, per_ip=2, per_ip_overrides={"10.0.0.9": 0}))
    pairs = [bench.connect("10.0.0.1") for _ in range(4)] + [bench.connect("10.0.0.9")]
    assert [wire.is_closing() for _, wire in pairs] == [False, False, True, True, True]
    assert len(caplog.records) == 1, "said once a second"
    assert "10.0.0.1 has max.connections.per.ip=2 open" in caplog.text
    pairs[0][0].connection_lost(None)
    pairs[2][0].connection_lost(None)
    assert not bench.connect("10.0.0.1")[1].is_closing()
    for number in range(5):
        bench.connect(f"10.0.1.{number}")
    assert len(bench.connections) == 5
    assert +bench.connections.metrics.connections_rejected == {"max.connections.per.ip": 3, "max.connections": 2}
    assert bench.connections.metrics.connections_accepted == 11


def test_many_closed_for_one_reason_are_one_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for _ in range(3):
        bench.connect()[0].expel("reads nothing")
    bench.connect()[0].expel("unfinished request")
    bench.now = 1.5
    bench.connect()[0].expel("reads nothing")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[2].endswith("socket.send.timeout.ms (3 times since this was last logged)")
    assert +bench.connections.metrics.connections_closed == {"reads nothing": 4, "unfinished request": 1}


def test_other_limits_apply_from_now_on() -> None:
    bench = Bench(Limits(max_connections=1))
    bench.connect()
    assert bench.connect()[1].is_closing()
    bench.connections.apply(Limits(max_connections=2))
    assert not bench.connect()[1].is_closing()


def test_freed_memory_goes_back_once_it_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(allocator, "trim", lambda: trimmed.append(memory.freed))
    bench = Bench()
    memory = bench.connections.memory

    async def sweeps(freed: int) -> int:
        memory.unread += freed
        memory.responses_released(freed)
        await bench.connections._trim()
        return len(trimmed)

    async def main() -> list[int]:
        return [await sweeps(freed) for freed in (0, 10 << 20, 0, 10 << 20, 10 << 20, 0, 0)]

    assert asyncio.run(main()) == [0, 0, 0, 0, 0, 1, 1]


def test_the_c_library_is_asked() -> None:
    assert allocator.trim() in (True, False)
