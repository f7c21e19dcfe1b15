"""A crowd of connections to a broker, in its own process: peers of one kind, from several loopback addresses.

`python crowd.py JSON` (a `Crowd`) prints `there N` once N connections are open, and its counts as JSON when its
standard input ends. A peer that the broker closes connects again, as an attacker would; an idle or half-open one does
not.

A peer that vanished without a FIN is simulated by stopping its process (SIGSTOP): the broker sees the same, a
connection on which nothing is read or written any more.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import struct
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass

from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame
from klammtest.requests import fetch_fields

AT_ONCE = 256
"""Connects in progress at a time: a burst, but small enough for the kernel's queue."""
IDLE, HALF_OPEN, SLOW_READER, SLOW_LORIS = "idle", "half-open", "slow-reader", "slow-loris"
_BIND_ADDRESS_NO_PORT = 24
_SLICES = 20  # slices of a second; each slice serves the same number of peers
_RETRY_S = 1.0


@dataclass(frozen=True)
class Crowd:
    """The peers to make. `fetch_bytes` is the size that a slow reader requests, five times."""

    kind: str
    host: str
    port: int
    count: int
    topic: str = ""
    fetch_bytes: int = 0


@dataclass
class Peer:
    wire: socket.socket
    number: int
    connected: bool = False
    pending: bytes = b""


class Crowding:
    """One loop over all peers of a kind."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.counts: Counter[str] = Counter()
        self._poll = select.epoll()
        self._peers: dict[int, Peer] = {}
        self._absent = [(0.0, number) for number in reversed(range(crowd.count))]
        self._connecting = 0
        self._said = False

    def run(self) -> None:
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)
        turn = time.monotonic()
        while True:
            now = time.monotonic()
            while self._absent and self._connecting < AT_ONCE and self._absent[-1][0] <= now:
                self._connect(self._absent.pop()[1])
            if now >= turn:
                turn = now + 1 / _SLICES
                self._take_turns(int(now * _SLICES) % _SLICES)
            for descriptor, events in self._poll.poll(max(turn - time.monotonic(), 0.0)):
                if descriptor == sys.stdin.fileno():
                    return
                self._happened(self._peers[descriptor], events)
            if not self._said and self.counts["connected"] >= self.crowd.count:
                self._said = True
                print(f"there {self.counts['connected']}", flush=True)

    def _connect(self, number: int) -> None:
        wire = socket.socket()
        wire.setblocking(False)
        wire.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        if self.crowd.kind == SLOW_READER:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.bind((f"127.0.1.{1 + number % 8}", 0))
        wire.connect_ex((self.crowd.host, self.crowd.port))
        self._connecting += 1
        self._peers[wire.fileno()] = Peer(wire, number)
        self._poll.register(wire.fileno(), select.EPOLLOUT)

    def _happened(self, peer: Peer, events: int) -> None:
        if peer.connected:
            self._hear(peer)
        elif peer.wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or events & (select.EPOLLERR | select.EPOLLHUP):
            self._connecting -= 1
            self.counts["failed"] += 1
            self._leave(peer, again=True)
        else:
            self._connecting -= 1
            peer.connected = True
            self.counts["connected"] += 1
            # a slow reader waits for no event: it reads in its slice
            wanted = select.EPOLLRDHUP if self.crowd.kind == SLOW_READER else select.EPOLLIN
            self._poll.modify(peer.wire.fileno(), wanted)
            self._begin(peer)

    def _begin(self, peer: Peer) -> None:
        first = opening(self.crowd, peer.number)
        if self.crowd.kind == SLOW_LORIS:
            peer.pending = first
        elif first:
            peer.wire.send(first)

    def _hear(self, peer: Peer) -> None:
        self._read(peer, 1 << 16 if self.crowd.kind != SLOW_READER else 16)

    def _take_turns(self, turn: int) -> None:
        if self.crowd.kind not in (SLOW_READER, SLOW_LORIS):
            return
        for peer in [p for p in self._peers.values() if p.connected and p.number % _SLICES == turn]:
            if self.crowd.kind == SLOW_READER:
                self._read(peer, 16)
            elif peer.pending:
                self._send_byte(peer)

    def _read(self, peer: Peer, most: int) -> None:
        try:
            data = peer.wire.recv(most)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.counts["read"] += len(data)
        if not data:
            self.counts["closed"] += 1
            self._leave(peer, again=self.crowd.kind in (SLOW_READER, SLOW_LORIS))

    def _send_byte(self, peer: Peer) -> None:
        try:
            peer.wire.send(peer.pending[:1])
            peer.pending = peer.pending[1:]
        except OSError:
            self._read(peer, 1)

    def _leave(self, peer: Peer, *, again: bool) -> None:
        self._poll.unregister(peer.wire.fileno())
        del self._peers[peer.wire.fileno()]
        peer.wire.close()
        if again:
            self._absent.insert(0, (time.monotonic() + _RETRY_S, peer.number))


def opening(crowd: Crowd, number: int) -> bytes:
    """Returns the first bytes that this peer sends; some peers send no more."""
    match crowd.kind:
        case "idle":
            return _request(ApiKey.API_VERSIONS, 0) if number % 3 == 0 else b""
        case "half-open":
            halves = (
                b"\0",
                struct.pack(">i", 1_000),
                struct.pack(">ihhi", 2_000, ApiKey.METADATA, 9, 1) + b"\0" * 900,
                struct.pack(">ihhi", 100_000_000, ApiKey.PRODUCE, 9, 1) + b"\0" * 3_000,
            )
            return halves[number % len(halves)]
        case "slow-reader":
            fields = fetch_fields(
                {(crowd.topic, 0): 0}, max_bytes=crowd.fetch_bytes, partition_max_bytes=crowd.fetch_bytes
            )
            return _request(ApiKey.FETCH, 12, **fields) * 5
        case _:
            return struct.pack(">ihhi", 4_000, ApiKey.PRODUCE, 9, 1) + b"\0" * 3_992


def _request(api: ApiKey, version: int, **fields: object) -> bytes:
    schema = messages.request(api, version)
    return request_frame(api, version, 1, "crowd", schema.encode(schema.build(**fields)))


def all_descriptors() -> None:
    """Raises the limit of open files to the highest that the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    all_descriptors()
    crowding = Crowding(Crowd(**json.loads(sys.argv[1])))
    crowding.run()
    print(json.dumps(dict(crowding.counts)), flush=True)


def command(crowd: Crowd) -> list[str]:
    return [sys.executable, __file__, json.dumps(asdict(crowd))]


if __name__ == "__main__":
    main()
