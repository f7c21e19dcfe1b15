"""The sending half of a broker's connection: responses that are not sent yet, in the order of their requests.

Rules: responses to requests that arrived together leave in one write, which costs as much as handling a small request.
A large write waits for a slot of the write scheduler. While more than `WRITE_BUFFER_HIGH` bytes are unread, or all
connections together have too many (`queued.max.response.bytes`), `paused` is set and the connection handles nothing.
"""

from __future__ import annotations

from typing import Final

from ...protocol.messages import Buffer
from ...transport.interface import Transport
from .connections import Connections
from .memory import Memory
from .stall_timer import StallTimer
from .write_scheduler import ResponseSender

WRITE_BUFFER_HIGH: Final = 4 * 1024 * 1024
"""Bytes waiting to be read by the client, over which nothing more is handled for it."""

_COUNTED: Final = 64 * 1024  # bytes waiting to be read from which on they are counted
_SMALL: Final = 16 * 1024  # bytes of responses written without a slot
_GATHERED: Final = 64 * 1024  # bytes of responses that may wait for the next one


class UnreadResponses:
    """The memory that one connection's responses hold until the kernel has accepted them; counted in
    `Memory.unread`.

    The event loop keeps the whole buffer of a write until its last byte is sent, so a write counts as a whole until
    then.
    """

    __slots__ = ("_memory", "_timer", "bytes", "largest", "written")

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.bytes = 0
        """The number of bytes as `Memory` counts them."""
        self.written = self.largest = 0
        """The bytes written since the last time everything was sent, and those of the largest write among them."""
        self._timer = StallTimer()

    def wrote_behind_others(self, size: int) -> None:
        """Records that a write starts while earlier ones are not sent yet."""
        self.written += size
        self.largest = max(self.largest, size)

    def count(self, left: int) -> None:
        """Records that `left` bytes are not sent, or not written yet."""
        held = max(left, min(self.written, left + self.largest))
        self._memory.unread += held - self.bytes
        self.bytes = held

    def release(self) -> None:
        """Releases all memory: everything is sent, or the connection is lost."""
        self._memory.responses_released(self.bytes)
        self.bytes = self.written = self.largest = 0
        self._timer.reset()

    def stalled_s(self, now: float, left: int) -> float:
        """Returns the seconds for which the peer has read nothing."""
        return self._timer.stalled_s(now, left)


class ResponseWriter:
    """Belongs to the event loop. Owns the responses that are not written yet, the connection's write slot, and the
    count of unread bytes. Methods that may have to wait for a slot take the connection as `sender`."""

    __slots__ = (
        "_blocked",
        "_connections",
        "_in_slot",
        "_memory",
        "_peer_reads",
        "_pieces",
        "_scheduler",
        "_size",
        "_slot_bytes",
        "_transport",
        "_unread",
        "awaits_slot",
        "paused",
    )

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._memory = connections.memory
        self._scheduler = connections.write_scheduler
        self._transport: Transport | None = None
        self._pieces: list[Buffer] = []
        self._size = 0  # bytes of the pieces
        self.paused = False
        """True while too many bytes are unread."""
        self.awaits_slot = False
        self._in_slot = False
        self._slot_bytes = 0
        self._blocked = False  # the kernel takes no more
        self._peer_reads = False  # the peer once read everything after the kernel had accepted no more
        self._unread = UnreadResponses(self._memory)

    def start(self, transport: Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=_COUNTED, low=0)

    def add(self, response: list[Buffer], sender: ResponseSender) -> None:
        """Adds a response; it is written by `flush` at the latest."""
        self._pieces += response
        self._size += sum(map(len, response))
        if self._size >= _GATHERED:
            self.flush(sender)

    def flush(self, sender: ResponseSender) -> None:
        """Writes the added responses, if they are small or the sender has a slot. May lead to `pause_writing`."""
        if not self._pieces or self.awaits_slot:
            return
        size = self._size
        if size < _SMALL or (self._in_slot and not self._slot_bytes) or self._scheduler.take(sender, size):
            self.write()
        else:
            self.awaits_slot = True
            self.count()

    def write(self) -> None:
        """Writes the added responses at once."""
        pieces, size = self._pieces, self._size
        self._pieces, self._size = [], 0
        self._slot_bytes += size
        if pieces and self._transport is not None:
            unread = self._unread
            if self._blocked:
                unread.wrote_behind_others(size)
            else:
                unread.written = unread.largest = size
            self._transport.writelines(pieces)
            if unread.bytes:
                self.count()

    # -- write slots

    @property
    def may_fetch(self) -> bool:
        """True if the connection has a write slot and has sent nothing in it."""
        return self._in_slot and not self._slot_bytes and not self._size

    def wait_for_slot(self, sender: ResponseSender) -> None:
        self.awaits_slot = True
        self._scheduler.wait(sender)

    def begin_slot(self) -> bool:
        """Writes the data that waited for the slot; returns whether the connection may continue."""
        self.awaits_slot, self._slot_bytes = False, 0
        if self._transport is None:
            return False
        self._in_slot = True
        self.write()
        if not self._blocked:
            self._all_sent()
        return True

    def end_slot(self) -> int:
        """Returns the number of bytes written in the slot."""
        self._in_slot = False
        return self._slot_bytes

    # -- what the peer has not read

    @property
    def unread_bytes(self) -> int:
        return self._unread.bytes

    def block(self) -> None:
        """Records that the kernel accepts no more bytes."""
        self._blocked = True
        self.count()

    def unblock(self) -> None:
        """Records that the kernel has accepted everything."""
        self._blocked = False
        if not self._peer_reads and self._transport is not None and self._connections.limits.send_buffer < 0:
            self._transport.grow_send_buffer()
        self._peer_reads = True
        self._all_sent()

    def count(self) -> None:
        """Counts the unread bytes, and pauses if they are too many."""
        if self._transport is not None:
            self._unread.count(self._left)
            if self._memory.tight and not self.paused:
                self._connections.held_up("queued.max.response.bytes")
            self.paused = self._unread.bytes > WRITE_BUFFER_HIGH or self._memory.tight

    def stalled_s(self, now: float) -> float:
        """Returns the seconds for which the peer has read nothing, as seen by these calls."""
        self.count()
        return self._unread.stalled_s(now, self._left)

    def lost(self) -> None:
        """Releases everything that the lost connection had not sent."""
        self._transport = None
        self._pieces, self._size = [], 0
        self._unread.release()

    @property
    def _left(self) -> int:
        """The number of bytes that the kernel has not accepted yet."""
        assert self._transport is not None
        return self._transport.get_write_buffer_size() + self._size

    def _all_sent(self) -> None:
        self._unread.release()
        self.paused = False
        if self.awaits_slot:
            self.count()
