"""A TCP proxy in front of a broker that reads Produce requests: it counts the unanswered ones, and spoils those of
chosen topics.

With the count, a fault is injected while requests are in flight, not merely at a random moment. The broker must
advertise the proxy's address.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from types import TracebackType

from klammtest.proxies.tcp import Link, TcpProxy
from klammtest.wire import framed, frames

PRODUCE = 0


class Wrong(StrEnum):
    """The proxy's treatment of a Produce request."""

    NOTHING = "nothing"
    LOST = "lost"
    """The request does not arrive. For acks=0, which waits for no answer."""
    ELSEWHERE = "elsewhere"
    """The batch is stored in another topic, `sink_of(topic)`, and acknowledged for this one."""
    UNANSWERED = "unanswered"
    """The request arrives, its answer does not, and the connection ends."""


Decide = Callable[[], Wrong]
"""Called for each Produce request of a topic, never by two threads at once."""


def sink_of(topic: str) -> str:
    """Returns the name of an internal topic, which is not audited; it is as long as `topic`."""
    return "_" + topic[1:]


class ProduceProxy:
    """`in_flight` counts the Produce requests that the proxy has received completely and whose answers it has not seen
    (acks=0 has none). `spoil` sets what happens to the requests of a topic from then on; `leave` ends that.
    """

    def __init__(self, port: int, broker_port: int) -> None:
        self.port = port
        self._lock = threading.Lock()
        self._pending: set[tuple[_Connection, int]] = set()
        self._rules: dict[bytes, tuple[bytes, Decide]] = {}
        self._proxy = TcpProxy(port, broker_port, lambda: _Connection(self))

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def spoil(self, topic: str, decide: Decide) -> None:
        with self._lock:
            self._rules[_compact(topic)] = (_compact(sink_of(topic)), decide)

    def leave(self, topic: str) -> None:
        with self._lock:
            self._rules.pop(_compact(topic), None)

    def __enter__(self) -> ProduceProxy:
        self._proxy.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._proxy.__exit__(kind, error, at)

    def sent(self, connection: _Connection, correlation: int) -> None:
        with self._lock:
            self._pending.add((connection, correlation))

    def answered(self, connection: _Connection, correlation: int) -> None:
        with self._lock:
            self._pending.discard((connection, correlation))

    def ended(self, connection: _Connection) -> None:
        with self._lock:
            self._pending = {pending for pending in self._pending if pending[0] is not connection}

    def wrongs(self, body: bytes, version: int) -> list[tuple[bytes, bytes, Wrong]]:
        """Returns topic, sink and decision for each topic of the request that has a rule."""
        with self._lock:
            ruled = [(topic, sink, decide) for topic, (sink, decide) in self._rules.items() if topic in body]
            assert not ruled or version >= 9, "topics are found as compact strings, which only Produce 9 and later have"
            return [(topic, sink, decide()) for topic, sink, decide in ruled]


class _Connection(Link):
    def __init__(self, proxy: ProduceProxy) -> None:
        self._proxy = proxy
        self._renamed: dict[int, list[tuple[bytes, bytes]]] = {}
        self._unanswered: set[int] = set()

    def requests(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for body in frames(pieces):
            api, version, correlation = struct.unpack_from(">hhi", body)
            passed = self._spoiled(body, version, correlation) if api == PRODUCE else body
            if passed is None:
                continue
            if api == PRODUCE:
                self._proxy.sent(self, correlation)  # counted before it is sent: its answer may arrive at once
            yield framed(passed)

    def answers(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for body in frames(pieces):
            (correlation,) = struct.unpack_from(">i", body)
            self._proxy.answered(self, correlation)
            if correlation in self._unanswered:
                return
            for topic, sink in self._renamed.pop(correlation, ()):
                body = body.replace(sink, topic, 1)
            yield framed(body)

    def closed(self) -> None:
        self._proxy.ended(self)

    def _spoiled(self, body: bytes, version: int, correlation: int) -> bytes | None:
        """Returns the request to forward; None if it is lost."""
        for topic, sink, wrong in self._proxy.wrongs(body, version):
            if wrong is Wrong.LOST:
                return None
            if wrong is Wrong.UNANSWERED:
                self._unanswered.add(correlation)
            elif wrong is Wrong.ELSEWHERE:
                body = body.replace(topic, sink, 1)
                self._renamed.setdefault(correlation, []).append((topic, sink))
        return body


def _compact(name: str) -> bytes:
    """Returns a short string as Kafka's flexible versions write it."""
    return bytes([len(name) + 1]) + name.encode()
