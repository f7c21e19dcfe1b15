from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.client.network.buffers import unwritten
from klamm.core.errors import ProtocolError
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.frames import READ_SIZE, FrameLengthError, FrameSplitter
from klammtest.wire import framed

LIMIT = 10 * 1024 * 1024


@given(
    bodies=st.lists(st.binary(min_size=2, max_size=40), max_size=8),
    cuts=st.lists(st.integers(1, 30), max_size=40),
)
def test_frames_come_out_however_the_bytes_come_in(bodies: list[bytes], cuts: list[int]) -> None:
    splitter = FrameSplitter(LIMIT)
    data, out = framed(*bodies), []
    for cut in [*cuts, len(data)]:
        out += splitter.feed(data[:cut])
        data = data[cut:]
    assert [bytes(frame) for frame in out] == bodies


@pytest.mark.parametrize("size", [READ_SIZE - 4, READ_SIZE, 1024 * 1024 + 1, 5_000_000])
def test_large_frames_are_put_together(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    splitter = FrameSplitter(LIMIT)
    frames = splitter.feed(framed(b"ab", body[:size], b"cd"))
    assert [len(frame) for frame in frames] == [2, size, 2]
    assert frames[1] == body[:size]


@pytest.mark.parametrize("size", [READ_SIZE, 5_000_000])
def test_a_client_reserves_a_frame_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    splitter = FrameSplitter(LIMIT, reserve=unwritten)
    assert splitter.feed(framed(body[:size])[:-1]) == []
    assert splitter.held == size
    assert splitter.feed(body[size - 1 : size]) == [body[:size]]


@given(sizes=st.lists(st.sampled_from([2, 3, 500, 32 * 1024, READ_SIZE, 200_000]), max_size=8), data=st.data())
def test_a_client_gets_small_and_large_frames_however_the_bytes_come_in(sizes: list[int], data: st.DataObject) -> None:
    """The network fills as much of each buffer as it likes."""
    bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    splitter, sent, out = FrameSplitter(LIMIT, reserve=unwritten), memoryview(framed(*bodies)), []
    while len(sent):
        buffer = splitter.get_buffer()
        most = min(len(buffer), len(sent))
        count = data.draw(st.sampled_from([1, 3, 5, 40_000, most])) if len(sizes) < 4 else most
        count = min(count, most)
        buffer[:count] = sent[:count]
        out += splitter.received(count)
        sent = sent[count:]
    assert out == bodies


def test_after_a_large_frame_a_client_reads_the_next_one_in_place() -> None:
    splitter = FrameSplitter(LIMIT, reserve=unwritten)
    splitter.feed(framed(bytes(READ_SIZE)))
    assert len(splitter.get_buffer()) == 4
    splitter.feed(framed(b"ab"))
    assert len(splitter.get_buffer()) == READ_SIZE


def test_what_is_reserved_is_bounded() -> None:
    splitter = FrameSplitter(2**30, reserve=unwritten)
    splitter.feed(struct.pack(">i", 2**29) + b"abc")
    assert splitter.held < 100


def test_one_read_is_never_larger_than_64_kb() -> None:
    splitter = FrameSplitter(LIMIT)
    assert len(splitter.get_buffer()) == READ_SIZE
    splitter.feed(struct.pack(">i", 8_000_000) + b"\0" * 100)
    assert len(splitter.get_buffer()) <= READ_SIZE


def test_memory_is_not_taken_on_the_word_of_a_length() -> None:
    splitter = FrameSplitter(2**31 - 1)
    splitter.feed(struct.pack(">i", 2**31 - 1) + b"\0" * 10)
    assert len(splitter._frame or b"") <= 1024 * 1024


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1])
def test_lengths_that_no_frame_has(size: int) -> None:
    with pytest.raises(ProtocolError, match="frame length"):
        FrameSplitter(LIMIT).feed(struct.pack(">i", size))


def test_a_frame_over_the_limit_is_refused_by_its_length_alone() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        FrameSplitter(LIMIT).feed(struct.pack(">i", LIMIT + 1))


def test_the_limit_may_depend_on_the_api() -> None:
    def limit(key: int) -> int:
        return 1000 if key == ApiKey.PRODUCE else 100

    produce, metadata = (struct.pack(">ih", 500, key) + b"\0" * 498 for key in (ApiKey.PRODUCE, ApiKey.METADATA))
    assert len(FrameSplitter(LIMIT, limit).feed(produce)) == 1
    with pytest.raises(ProtocolError, match="limit of 100"):
        FrameSplitter(LIMIT, limit).feed(metadata[:6])


@pytest.mark.parametrize("cut", [0, 3, 10, 70_000])
def test_frames_ahead_of_a_bad_length_are_in_the_error(cut: int) -> None:
    bodies = [b"one", b"two", b"x" * 70_000, b"three"]
    data = framed(*bodies) + struct.pack(">i", -5) + framed(b"behind")
    splitter = FrameSplitter(LIMIT)
    frames = splitter.feed(data[:cut])
    with pytest.raises(FrameLengthError, match="a frame length of -5") as caught:
        splitter.feed(data[cut:])
    assert frames + caught.value.ahead == bodies


def test_a_peer_that_speaks_http_is_named() -> None:
    with pytest.raises(FrameLengthError, match="over the limit of 100; its length is the text HTTP"):
        FrameSplitter(100).feed(b"HTTP/1.1 400 Bad Request")
