"""The producer's connection to one broker, over byte streams in memory."""

from __future__ import annotations

import selectors
import threading

import pytest

from klamm.core.client.errors import ConnectionFailedError
from klamm.core.client.network.backoff import Backoff
from klamm.core.client.network.channel import Channel, ChannelState
from klamm.core.client.network.connection import ClientConnection
from klamm.core.client.network.request_router import Network
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.state_table import IllegalTransitionError
from klamm.core.transport.address import Address
from klamm.core.transport.interface import ByteStream
from klammtest.brokers.negotiating import answer_frame
from klammtest.fake_transport import FakeByteStream
from klammtest.waiting import eventually

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Bench:
    """A channel whose dials are answered by `streams`, in order; an `OSError` among them is raised."""

    def __init__(self, *streams: FakeByteStream | OSError) -> None:
        self.now = 100.0
        self._streams = list(streams)
        self.woken = 0
        self.selector = selectors.SelectSelector()  # never asked: the fakes have no descriptors
        network = Network(reconnect=Backoff(1.0, 8.0, jitter=0), dial=self._dial, clock=lambda: self.now)
        self.channel = Channel(
            Address("b", 9092), lambda: ClientConnection("me", "0.1.0"), network, self.selector, self._wake
        )

    def _dial(self, address: Address, timeout_s: float) -> ByteStream:
        stream = self._streams.pop(0)
        if isinstance(stream, OSError):
            raise stream
        return stream

    def _wake(self) -> None:
        self.woken += 1

    def dial(self) -> None:
        """Until the dialling thread has left its result."""
        woken = self.woken
        self.channel.prepare()
        eventually(lambda: self.woken > woken, "the dial ends")

    def watched(self) -> int:
        (key,) = self.selector.get_map().values()
        return key.events


def metadata(schema: messages.Schema) -> object:
    return schema.build(
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def up(stream: FakeByteStream) -> Bench:
    bench = Bench(stream)
    bench.dial()
    bench.channel.prepare()
    bench.channel.on_event(READ)
    assert bench.channel.can_send
    return bench


def test_a_dial_leads_over_api_versions_to_a_channel_that_can_send() -> None:
    bench = Bench(FakeByteStream(answer_frame))
    assert bench.channel.state is ChannelState.DOWN
    bench.dial()
    assert bench.channel.state is ChannelState.DIALLING
    bench.channel.prepare()
    assert bench.channel.state is ChannelState.UP
    assert bench.channel.negotiating_since_s == 100.0
    assert not bench.channel.can_send
    bench.channel.on_event(READ)
    assert bench.channel.can_send
    assert bench.channel.negotiating_since_s is None


def test_each_failure_in_a_row_doubles_the_back_off() -> None:
    bench = Bench(ConnectionRefusedError(111, "Connection refused"), OSError("other"), FakeByteStream(answer_frame))
    for wait_s in (1.0, 2.0):
        bench.dial()
        with pytest.raises(ConnectionFailedError, match="cannot connect to b:9092: "):
            bench.channel.prepare()
        bench.channel.fail()
        assert bench.channel.state is ChannelState.DOWN
        assert bench.channel.retry_at_s == bench.now + wait_s
        bench.channel.prepare()
        assert bench.channel.state is ChannelState.DOWN, "not before the back-off is over"
        bench.now += wait_s
    bench.dial()
    bench.channel.prepare()
    bench.channel.on_event(READ)
    bench.channel.fail()
    assert bench.channel.retry_at_s == bench.now + 1.0, "an answer resets it"


def test_what_the_kernel_does_not_take_is_written_when_it_does() -> None:
    stream = FakeByteStream(answer_frame)
    bench = up(stream)
    assert bench.watched() == READ
    before = len(stream.written)
    stream.answer = lambda _: b""
    stream.room = 10
    bench.channel.send(ApiKey.METADATA, metadata)
    assert len(stream.written) == before + 10
    assert not bench.channel.written
    assert bench.watched() == READ | WRITE
    stream.room = 1 << 62
    bench.channel.on_event(WRITE)
    assert bench.channel.written
    assert bench.watched() == READ
    size = int.from_bytes(stream.written[before : before + 4])
    assert len(stream.written) == before + 4 + size


class ReadsAfterWrite(FakeByteStream):
    """As TLS may: it has to write before it can read, though its owner has nothing to write."""

    blocked = False

    def read_available(self, buffer: memoryview) -> int | None:
        return None if self.blocked else super().read_available(buffer)

    def events(self, *, writing: bool) -> int:
        return READ | WRITE if self.blocked else super().events(writing=writing)


def test_a_read_that_waits_for_a_write_is_tried_again_at_a_write_event() -> None:
    stream = ReadsAfterWrite(answer_frame)
    bench = Bench(stream)
    bench.dial()
    bench.channel.prepare()
    stream.blocked = True
    bench.channel.on_event(READ)
    assert bench.watched() == READ | WRITE
    stream.blocked = False
    bench.channel.on_event(WRITE)
    assert bench.channel.can_send
    assert bench.watched() == READ


@pytest.mark.parametrize("what", ["end", "reset"])
def test_a_stream_that_breaks_is_told_in_one_line(what: str) -> None:
    stream = FakeByteStream(answer_frame)
    bench = up(stream)
    stream.ended, stream.failure = what == "end", None if what == "end" else ConnectionResetError(104, "Reset by peer")
    said = "b:9092 closed the connection" if what == "end" else "the connection to b:9092 broke: reset by peer"
    with pytest.raises(ConnectionFailedError, match=said):
        bench.channel.on_event(READ)
    bench.channel.fail()
    assert stream.closed
    assert not bench.selector.get_map()


class CannotBeNonblocking(FakeByteStream):
    def set_nonblocking(self) -> None:
        raise OSError(9, "Bad file descriptor")


def test_a_stream_that_cannot_be_taken_over_is_a_broken_connection() -> None:
    stream = CannotBeNonblocking(answer_frame)
    bench = Bench(stream)
    bench.dial()
    with pytest.raises(ConnectionFailedError, match="the connection to b:9092 broke: bad file descriptor"):
        bench.channel.prepare()
    bench.channel.fail()
    assert bench.channel.state is ChannelState.DOWN
    assert stream.closed


def test_a_dial_for_which_there_is_no_thread_is_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    bench = Bench(FakeByteStream(answer_frame))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(ConnectionFailedError, match="cannot connect to b:9092: can't start new thread"):
            bench.channel.prepare()
    bench.channel.fail()
    bench.now = bench.channel.retry_at_s
    bench.dial()
    bench.channel.prepare()
    assert bench.channel.state is ChannelState.UP


def test_a_dial_that_succeeds_after_the_end_is_closed() -> None:
    stream = FakeByteStream(answer_frame)
    bench = Bench(stream)
    bench.dial()
    bench.channel.close()
    assert stream.closed
    bench.channel.prepare()
    assert bench.channel.state is ChannelState.CLOSED
    bench.channel.close()


def test_a_closed_channel_cannot_fail() -> None:
    bench = Bench()
    bench.channel.close()
    with pytest.raises(IllegalTransitionError, match="a channel in state 'closed' cannot take event 'failed'"):
        bench.channel.fail()
