"""The contract of `ByteStream`, which a client's connection runs on: plaintext, TLS, and the fake."""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from klamm.core.transport.address import Address
from klamm.core.transport.interface import ByteStream, Dial
from klamm.core.transport.plaintext_stream import dial_plaintext
from klammtest.fake_transport import UNLIMITED, FakeByteStream
from klammtest.tls import dial_tls, self_signed
from klammtest.waiting import PATIENCE_S, eventually

SOON_S = 0.05
MUCH = 8 * 1024 * 1024


class Peer(Protocol):
    """The broker's end."""

    def send(self, data: bytes) -> None: ...

    def receive(self, count: int) -> bytes: ...

    def begin_receiving(self, count: int) -> Callable[[], bytes]:
        """Meanwhile; what is returned waits for it."""
        ...

    def end(self) -> None: ...


class SocketPeer:
    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, count: int) -> bytes:
        found = b""
        while len(found) < count and (piece := self._socket.recv(count - len(found))):
            found += piece
        return found

    def begin_receiving(self, count: int) -> Callable[[], bytes]:
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.append(self.receive(count)))
        thread.start()

        def finish() -> bytes:
            thread.join(PATIENCE_S)
            return found[0]

        return finish

    def end(self) -> None:
        self._socket.close()


class FakePeer:
    def __init__(self, stream: FakeByteStream) -> None:
        self._stream = stream

    def send(self, data: bytes) -> None:
        self._stream.unread += data

    def receive(self, count: int) -> bytes:
        found = bytes(self._stream.written[:count])
        del self._stream.written[:count]
        return found

    def begin_receiving(self, count: int) -> Callable[[], bytes]:
        self._stream.room = UNLIMITED
        return lambda: self.receive(count)

    def end(self) -> None:
        self._stream.ended = True


def connected(dial: Dial, server: ssl.SSLContext | None) -> Iterator[tuple[ByteStream, Peer]]:
    """The TLS handshake takes both ends at once."""
    ends: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            accepted, _ = listening.accept()
            accepted.settimeout(PATIENCE_S)
            ends.append(accepted if server is None else server.wrap_socket(accepted, server_side=True))

        thread = threading.Thread(target=accept)
        thread.start()
        stream = dial(Address(*listening.getsockname()), PATIENCE_S)
        thread.join(PATIENCE_S)
    yield stream, SocketPeer(ends[0])
    stream.close()
    ends[0].close()


@pytest.fixture(params=["plaintext", "tls", "fake"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ByteStream, Peer]]:
    if request.param == "fake":
        fake = FakeByteStream()
        fake.room = MUCH // 2
        yield fake, FakePeer(fake)
    elif request.param == "tls":
        contexts = self_signed(tmp_path)
        yield from connected(dial_tls(contexts.client), contexts.server)
    else:
        yield from connected(dial_plaintext, None)


def read(stream: ByteStream, count: int) -> bytes:
    """Blocking."""
    buffer = bytearray(count)
    filled = 0
    while filled < count and (more := stream.read_into(memoryview(buffer)[filled:], PATIENCE_S)):
        filled += more
    return bytes(buffer[:filled])


def wait(stream: ByteStream, *, writing: bool = False) -> None:
    """As the owner of a non-blocking stream does: until the selector reports one of the stream's events."""
    if not isinstance(stream, FakeByteStream) and not stream.has_buffered_input:
        with selectors.DefaultSelector() as selector:
            selector.register(stream, stream.events(writing=writing))
            assert selector.select(PATIENCE_S)


Pair = tuple[ByteStream, Peer]


def test_blocking_calls_carry_bytes_both_ways_up_to_the_end(pair: Pair) -> None:
    stream, peer = pair
    stream.write_all(b"question", PATIENCE_S)
    assert peer.receive(8) == b"question"
    peer.send(b"answer")
    assert read(stream, 6) == b"answer"
    peer.end()
    assert stream.read_into(memoryview(bytearray(10)), PATIENCE_S) == 0


def test_a_read_without_data_ends_in_time(pair: Pair) -> None:
    stream, _ = pair
    with pytest.raises(TimeoutError):
        stream.read_into(memoryview(bytearray(10)), SOON_S)


def test_a_quiet_stream_stays_usable(pair: Pair) -> None:
    """A TLS server has sent session tickets by then, which are no data."""
    stream, peer = pair
    assert stream.is_quiet()
    stream.write_all(b"question", PATIENCE_S)
    assert peer.receive(8) == b"question"
    assert stream.is_quiet()
    peer.send(b"answer")
    assert read(stream, 6) == b"answer"


@pytest.mark.parametrize("news", ["data", "end"])
def test_a_stream_with_news_is_not_quiet(pair: Pair, news: str) -> None:
    stream, peer = pair
    if news == "data":
        peer.send(b"unasked")
    else:
        peer.end()
    eventually(lambda: not stream.is_quiet(), "the news arrive")


def test_non_blocking_reads_and_a_selector_find_every_byte(pair: Pair) -> None:
    """The buffer is smaller than a TLS record: its rest is not seen by the selector."""
    stream, peer = pair
    stream.set_nonblocking()
    assert stream.read_available(memoryview(bytearray(10))) is None
    data = bytes(range(256)) * 200
    peer.send(data)
    found, buffer = b"", bytearray(1000)
    while len(found) < len(data):
        wait(stream)
        count = stream.read_available(memoryview(buffer))
        assert count != 0
        found += buffer[: count or 0]
    assert found == data
    assert stream.read_available(memoryview(buffer)) is None
    assert not stream.has_buffered_input
    peer.end()
    while (count := stream.read_available(memoryview(buffer))) is None:
        wait(stream)
    assert count == 0


def test_non_blocking_writes_take_what_the_kernel_has_room_for(pair: Pair) -> None:
    stream, peer = pair
    stream.set_nonblocking()
    unsent = [memoryview(bytes([number]) * (MUCH // 8)) for number in range(8)]
    while count := stream.write_available(unsent):
        unsent = behind(unsent, count)
    assert unsent, "the peer reads nothing, so not everything was taken"
    received = peer.begin_receiving(MUCH)
    while unsent:
        count = stream.write_available(unsent)
        unsent = behind(unsent, count)
        if not count:
            wait(stream, writing=True)
    assert received() == b"".join(bytes([number]) * (MUCH // 8) for number in range(8))


def behind(pieces: list[memoryview], count: int) -> list[memoryview]:
    """Returns the pieces that are left once `count` bytes are taken."""
    left = list(pieces)
    while left and count >= len(left[0]):
        count -= len(left.pop(0))
    return [left[0][count:], *left[1:]] if left else []


def test_events_always_include_reading_and_writing_on_demand(pair: Pair) -> None:
    stream, _ = pair
    assert stream.events(writing=False) == selectors.EVENT_READ
    assert stream.events(writing=True) == selectors.EVENT_READ | selectors.EVENT_WRITE


def test_closing_ends_a_read_in_another_thread(pair: Pair) -> None:
    stream, _ = pair
    if isinstance(stream, FakeByteStream):
        pytest.skip("no call of the fake waits")
    ended: list[object] = []

    def wait_for_data() -> None:
        try:
            ended.append(stream.read_into(memoryview(bytearray(10)), PATIENCE_S))
        except OSError as error:
            ended.append(type(error))

    thread = threading.Thread(target=wait_for_data)
    thread.start()
    time.sleep(SOON_S)
    stream.close()
    thread.join(PATIENCE_S)
    assert ended
    assert ended != [TimeoutError]
    with pytest.raises(OSError):  # noqa: PT011 - of any kind
        stream.write_all(b"late", SOON_S)
