"""Produce requests behind one that waits for other brokers: handled at once, answered in order."""

from __future__ import annotations

import asyncio
import gc
import struct
from typing import Any

from klamm.core.broker.delayed_reply import DelayedReply, Outcome, Reply, reply_of_task
from klamm.core.broker.network import connection as module
from klamm.core.broker.network.connection import Connection
from klamm.core.broker.network.connections import Connections
from klamm.core.broker.network.limits import Limits
from klamm.core.broker.request import ConnectionContext
from klamm.core.errors import ProtocolError
from klamm.core.protocol.frames import FrameSplitter
from klammtest.fake_transport import FakeTransport, on_a_loop, settle


class Bench:
    """A connection. A Produce `w…` is delayed until it is told to be ready, `s…` is answered at once, `l…` after
    `release`, `x…` cannot be read; `W…` is held back until `release`, once it is ready."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.handled: list[str] = []
        self.delayed: dict[str, DelayedReply] = {}
        self.failed: set[str] = set()
        connections = Connections(Limits())
        self.connection = Connection(
            ConnectionContext(1, "PLAINTEXT", "?"),
            FrameSplitter(10_000_000, None, connections.chunk),
            self.handle,
            connections,
        )
        self.transport = FakeTransport(self.connection, ("10.0.0.9", 4711))
        self.transport.connect()

    def handle(self, _: ConnectionContext, frame: bytearray) -> Any:
        name = frame[2:].decode()
        self.handled.append(name)
        if name.startswith("x"):
            raise ProtocolError("this cannot be read")
        if name.startswith("l"):
            return self.later(name)
        if name.startswith("s"):
            return [b"<", name.encode(), b">"]
        reply = self.delayed[name] = DelayedReply(lambda: self.answer(name))
        if name.startswith("W"):
            reply.frame = lambda _, begun: self.later(name)
        return reply

    def answer(self, name: str) -> Outcome:
        if name in self.failed:
            raise ProtocolError("it failed")
        return [b"<", name.encode(), b">"]

    async def later(self, name: str) -> Reply:
        await self.release.wait()
        return [b"<", name.encode(), b">"]

    def arrive(self, *names: str) -> None:
        """All are Produce requests, but those with `fetch` in their name."""
        frames = [bytes([0, 1 if "fetch" in name else 0]) + name.encode() for name in names]
        self.transport.feed(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames), although_paused=True)

    async def ready(self, *names: str) -> None:
        for name in names:
            self.delayed[name].ready()
        await settle()

    @property
    def written(self) -> bytes:
        return b"".join(self.transport.written)


bench_test = on_a_loop(Bench)


@bench_test
async def test_produce_goes_on_behind_a_delayed_one(bench: Bench) -> None:
    bench.arrive("w1", "w2", "s3")
    assert bench.handled == ["w1", "w2", "s3"]
    assert bench.connection.busy
    await bench.ready("w2")
    assert bench.written == b"", "answers keep the order of the requests"
    await bench.ready("w1")
    assert bench.transport.written == [b"<w1><w2><s3>"], "what is ready goes out together"
    assert not bench.connection.busy


@bench_test
async def test_other_requests_wait_for_the_delayed_ones(bench: Bench) -> None:
    bench.arrive("w1", "s-fetch", "w2")
    await settle()
    assert bench.handled == ["w1"]
    await bench.ready("w1")
    assert bench.handled == ["w1", "s-fetch", "w2"]
    assert bench.written == b"<w1><s-fetch>"


@bench_test
async def test_a_produce_that_takes_a_thread_is_answered_in_its_turn(bench: Bench) -> None:
    bench.arrive("w1", "l2", "w3")
    await settle()
    assert bench.handled == ["w1", "l2"], "nothing is begun behind one that is still being handled"
    bench.release.set()
    await settle()
    assert bench.handled == ["w1", "l2", "w3"]
    assert bench.written == b""
    await bench.ready("w1", "w3")
    assert bench.written == b"<w1><l2><w3>"


@bench_test
async def test_what_is_held_back_holds_back_those_behind_it(bench: Bench) -> None:
    bench.arrive("W1", "w2")
    await bench.ready("W1", "w2")
    assert bench.written == b""
    bench.release.set()
    await settle()
    assert bench.written == b"<W1><w2>"


@bench_test
async def test_one_that_fails_closes_after_the_answers_before_it(bench: Bench) -> None:
    bench.failed.add("w2")
    bench.arrive("w1", "w2", "w3")
    await bench.ready("w3", "w2", "w1")
    assert bench.written == b"<w1>"
    assert bench.transport.events[-1] == "close"


@bench_test
async def test_one_that_cannot_be_read_closes_once_those_before_it_are_answered(bench: Bench) -> None:
    bench.arrive("w1", "x2", "w3")
    bench.arrive("w4")
    await settle()
    assert bench.handled == ["w1", "x2"]
    assert bench.transport.events[-1:] != ["close"]
    await bench.ready("w1")
    assert bench.written == b"<w1>"
    assert bench.transport.events[-1] == "close"


@bench_test
async def test_a_client_that_goes_away_is_forgotten(bench: Bench) -> None:
    bench.arrive("w1", "w2")
    bench.connection.connection_lost(None)
    assert not bench.connection.busy
    await bench.ready("w1", "w2")
    assert bench.written == b""


@bench_test
async def test_the_input_s_end_waits_for_the_delayed_ones(bench: Bench) -> None:
    bench.arrive("w1")
    bench.transport.feed_end()
    await settle()
    assert bench.transport.events[-1:] != ["close"]
    await bench.ready("w1")
    assert bench.written == b"<w1>"
    assert bench.transport.events[-1] == "close"


@bench_test
async def test_only_so_many_are_delayed(bench: Bench) -> None:
    most = module._MOST_DELAYED
    names = [f"w{number}" for number in range(most + 3)]
    for name in names:
        bench.arrive(name)
        await settle()
    assert len(bench.handled) == most
    await bench.ready(names[0])
    assert len(bench.handled) == most + 1


def test_a_reply_that_fails_and_that_nobody_takes_is_no_error_of_the_loop() -> None:
    """The connection has ended meanwhile. asyncio would log a traceback."""
    said: list[object] = []

    async def refused() -> Reply:
        raise ProtocolError("not registered any more")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(context))
        reply = reply_of_task(loop.create_task(refused()))
        await asyncio.sleep(0.01)
        assert reply.is_ready
        del reply
        gc.collect()

    asyncio.run(main())
    assert not said
