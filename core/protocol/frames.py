"""Frames: splits a stream of bytes into length-prefixed messages. Sans-IO: bytes in, frames out.

Rules: a frame is a big-endian int32 length and that many bytes. A negative length, or one over the limit, is a
`FrameLengthError`, after which the splitter must not be used and the connection is to be closed; the error contains the
whole frames before it, which are valid. Memory is allocated as bytes arrive (at most four times as much), never by the
length alone. Each frame is a `bytearray` of its own, so that the broker may rewrite a record batch in place. A client
that has requested the data may `reserve` a whole frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from ..errors import ProtocolError

READ_SIZE = 64 * 1024
"""Bytes of one network read; larger ones let a bulk producer starve the others (measured, design D4)."""

_LARGE_READ = 1024 * 1024
_MOST_RESERVED = 64 * 1024 * 1024
_SMALL = 512 * 1024
_COPIED = 32 * 1024
"""From this size on a copy costs more than a read of the length alone."""
_LENGTH = struct.Struct(">i")
_HTTP = int.from_bytes(b"HTTP", "big")
_LENGTH_AND_KEY = struct.Struct(">ih")


class FrameLengthError(ProtocolError):
    """A length that no frame may have. `ahead`: the whole frames before it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.ahead: list[bytearray] = []


class FrameSplitter:
    """Either `feed` it bytes, or let the network write into `get_buffer` and pass the number to `received`.

    `limit_by_key`, for a server, maps the frame's first int16 (the API key) to a limit of its own. `chunk`, of
    `READ_SIZE` bytes, may be shared by splitters whose `get_buffer` and `received` always come in pairs, as on one
    event loop: ten thousand idle connections then hold no buffers. `reserve`, for a client, allocates lazily
    committed memory: frames of up to 64 MB are allocated whole, and read in pieces of 1 MB. After a large frame the
    next length is read alone, so that the bytes after it are not copied out of the chunk.
    """

    def __init__(
        self,
        limit: int,
        limit_by_key: Callable[[int], int] | None = None,
        chunk: bytearray | None = None,
        reserve: Callable[[int], bytearray] | None = None,
    ) -> None:
        self._limit = limit
        self._limit_by_key = limit_by_key
        self._chunk = bytearray(READ_SIZE) if chunk is None else chunk
        self._reserve = reserve
        self._read_size = READ_SIZE if reserve is None else _LARGE_READ
        self.held = 0
        """Bytes of memory allocated for the incomplete frame."""
        self._kept = b""  # the start of a frame whose length is not known yet
        self._frame: bytearray | None = None  # the frame under way, when larger than what has come
        self._filled = 0
        self._size = 0
        self._head: memoryview | None = None
        """The part of `_chunk` that is read next, after a large frame."""

    def get_buffer(self) -> memoryview:
        """Returns the buffer for the next bytes: part of an incomplete large frame, else a chunk; at most 64 KB (1
        MB with `reserve`)."""
        if self._frame is None:
            return memoryview(self._chunk) if self._head is None else self._head
        if self._filled == len(self._frame):
            grown = len(self._frame) * (4 if len(self._frame) < _SMALL else 2)
            self._grow(min(self._size, grown))
        return memoryview(self._frame)[self._filled : self._filled + self._read_size]

    def received(self, count: int) -> list[bytearray]:
        """Returns the frames that are complete now that `count` bytes were written into the buffer; raises
        `FrameLengthError`, with the frames before it, if the next length is invalid.
        """
        if self._frame is None:
            head = self._head
            if head is not None and count == len(head) and not self._kept:
                (size,) = _LENGTH.unpack(head)
                if 2 <= size <= self._limit:  # as `_split`, without its loop
                    self._begin(size, head[4:])
                    return []
            return self._split(memoryview(self._chunk)[:count])
        self._filled += count
        if self._filled < self._size:
            return []
        frame, self._frame, self.held = self._frame, None, 0
        return [frame]

    @property
    def begun(self) -> int:
        """The number of bytes that have arrived of an incomplete frame."""
        return self._filled if self._frame is not None else len(self._kept)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytearray]:
        """Returns the frames that are complete now that these bytes have arrived; errors as `received`."""
        frames: list[bytearray] = []
        rest = memoryview(data)
        while len(rest):
            room = self.get_buffer()
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            try:
                frames += self.received(count)
            except FrameLengthError as error:
                error.ahead[:0] = frames
                raise
            rest = rest[count:]
        return frames

    def _split(self, received: memoryview) -> list[bytearray]:
        data = memoryview(self._kept + bytes(received)) if self._kept else received
        self._kept = b""
        frames: list[bytearray] = []
        position, end = 0, len(data)
        own_limit, most = self._limit_by_key, self._limit
        while position < end:
            if position + _LENGTH_AND_KEY.size <= end:  # `_size_at`, without a call for each request
                size, key = _LENGTH_AND_KEY.unpack_from(data, position)
                whole = position + 4 + size
                if whole <= end and 2 <= size <= most and (own_limit is None or size <= own_limit(key)):
                    frames.append(bytearray(data[position + 4 : whole]))
                    position = whole
                    continue
            try:
                size = self._size_at(data, position)
            except FrameLengthError as error:
                error.ahead = frames
                raise
            if size is None:
                self._kept = bytes(data[position:])
            else:
                self._begin(size, data[position + 4 :])
            break
        return frames

    def _size_at(self, data: memoryview, position: int) -> int | None:
        """Returns the checked length of the frame at this position; None if too few bytes have arrived."""
        if len(data) - position < _LENGTH_AND_KEY.size:
            if len(data) - position >= 4:
                self._check(_LENGTH.unpack_from(data, position)[0], self._limit)
            return None
        size: int
        size, key = _LENGTH_AND_KEY.unpack_from(data, position)
        limit = self._limit
        if self._limit_by_key is not None and (own := self._limit_by_key(key)) < limit:
            limit = own
        if not 2 <= size <= limit:  # every request pays for this, so `_check` is called only if it raises
            self._check(size, limit)
        return size

    @staticmethod
    def _check(size: int, limit: int) -> None:
        if size < 2:
            raise FrameLengthError(f"a frame length of {size}; a frame has at least 2 bytes")
        if size > limit:
            other = "; its length is the text HTTP: the peer speaks another protocol" if size == _HTTP else ""
            raise FrameLengthError(f"a frame of {size} bytes is over the limit of {limit}{other}")

    def _begin(self, size: int, start: memoryview) -> None:
        self._size = size
        self._filled = len(start)
        if self._reserve is not None and size <= _MOST_RESERVED:
            self.held = size
            self._frame = self._reserve(size)
            self._head = memoryview(self._chunk)[: _LENGTH.size] if size >= _COPIED else None
        else:
            # a length alone allocates no memory: never more than twice the arrived bytes; the frame grows as more
            # arrive
            self.held = size if size <= 2 * self._filled else self._filled
            self._frame = bytearray(self.held)
        self._frame[: self._filled] = start

    def _grow(self, size: int) -> None:
        assert self._frame is not None
        grown = bytearray(size)
        grown[: self._filled] = self._frame
        self._frame = grown
        self.held = size
