"""The sending half of a connection, alone: writes, write slots, and what is unread."""

from __future__ import annotations

import asyncio

from klamm.core.broker.network.connections import Connections
from klamm.core.broker.network.limits import Limits
from klamm.core.broker.network.response_writer import WRITE_BUFFER_HIGH, ResponseWriter
from klamm.core.broker.network.stall_timer import StallTimer
from klamm.core.transport.interface import Transport, TransportHandler
from klammtest.fake_transport import FakeTransport

KIB = 1024


class Owner(TransportHandler):
    """Does with a writer what a connection does."""

    def __init__(self, connections: Connections) -> None:
        self.writer = ResponseWriter(connections)
        self.wire = FakeTransport(self)
        self.wire.connect()

    def connected(self, transport: Transport) -> None:
        self.writer.start(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        raise AssertionError

    def pause_writing(self) -> None:
        self.writer.block()

    def resume_writing(self) -> None:
        self.writer.unblock()

    def use_slot(self) -> int:
        self.writer.begin_slot()
        return self.writer.end_slot()


def test_small_responses_leave_in_one_write() -> None:
    owner = Owner(Connections(Limits()))
    owner.writer.add([b"<", b"one", b">"], owner)
    owner.writer.add([b"<two>"], owner)
    assert owner.wire.written == []
    owner.writer.flush(owner)
    assert owner.wire.written == [b"<one><two>"]


def test_it_pauses_while_the_peer_does_not_read_and_lets_the_buffer_grow_once_it_does() -> None:
    async def main() -> None:
        connections = Connections(Limits())
        owner = Owner(connections)
        owner.wire.kernel_room = 0
        owner.writer.add([bytes(WRITE_BUFFER_HIGH + 1)], owner)
        assert owner.writer.paused
        assert connections.memory.unread == owner.writer.unread_bytes == WRITE_BUFFER_HIGH + 1
        assert owner.writer.stalled_s(10.0) == 0
        assert owner.writer.stalled_s(25.0) == 15.0
        owner.wire.sent(KIB)
        assert owner.writer.stalled_s(30.0) == 0
        owner.wire.sent()
        assert not owner.writer.paused
        assert connections.memory.unread == 0
        assert owner.wire.events == ["grow"]

    asyncio.run(main())


def test_a_configured_send_buffer_does_not_grow() -> None:
    async def main() -> None:
        owner = Owner(Connections(Limits(send_buffer=65_536)))
        owner.wire.kernel_room = 0
        owner.writer.add([bytes(100 * KIB)], owner)
        owner.wire.sent()
        assert owner.wire.events == []

    asyncio.run(main())


def test_a_lost_connection_gives_back_what_it_counts_and_takes_no_turn() -> None:
    async def main() -> None:
        connections = Connections(Limits())
        first, second = Owner(connections), Owner(connections)
        first.writer.add([bytes(300 * KIB)], first)
        second.writer.add([bytes(300 * KIB)], second)
        assert second.writer.awaits_slot
        assert connections.memory.unread == 300 * KIB
        second.writer.lost()
        assert connections.memory.unread == 0
        for _ in range(3):
            await asyncio.sleep(0)
        assert (len(first.wire.written), second.wire.written) == (1, [])
        assert not second.writer.awaits_slot

    asyncio.run(main())


def test_a_stall_lasts_until_less_is_left() -> None:
    timer = StallTimer()
    assert [timer.stalled_s(now, left) for now, left in [(0, 10), (5, 10), (7, 12), (9, 11), (11, 11)]] == [
        0,
        5,
        7,
        0,
        2,
    ]
    timer.reset()
    assert timer.stalled_s(20, 11) == 0
