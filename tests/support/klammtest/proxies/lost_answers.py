"""A TCP proxy in front of a server that loses one call or its answer; in the latter case the call is carried out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from klamm.core.protocol.apis import ApiKey
from klammtest.ports import free_port
from klammtest.proxies.tcp import Link, TcpProxy

_WAIT_S = 60.0


def _nothing() -> None:
    return


def holding(*words: bytes) -> Callable[[bytes], bool]:
    """Recognises requests that contain every one of `words`. Hadoop's RPC sends a method's name as text, so a word can
    be a method's name.
    """
    return lambda data: all(word in data for word in words)


def is_fetch(data: bytes) -> bool:
    """Returns True if it is a Fetch of Kafka's protocol: the API's key follows the length of the request."""
    return data[4:6] == ApiKey.FETCH.to_bytes(2)


class AnswerLostProxy:
    """Carries all bytes until `is_call` recognises a request; then that call, or its answer, is lost and its connection
    ends.

    `lost` counts the calls. One call is lost, and one more for each `arm`.
    """

    def __init__(self, port: int, is_call: Callable[[bytes], bool], *, armed: bool = True) -> None:
        self.port = free_port()
        self.lost = 0
        self._is_call = is_call
        self._armed = armed
        self._skipped = 0
        self._passes = True
        self._before: Callable[[], object] = _nothing
        self._after: Callable[[], object] = _nothing
        self._lock = threading.Lock()
        self._proxy = TcpProxy(self.port, port, lambda: _Connection(self))

    def arm(
        self,
        *,
        skipped: int = 0,
        passes: bool = True,
        before: Callable[[], object] = _nothing,
        after: Callable[[], object] = _nothing,
    ) -> None:
        """Sets, for the next such call after `skipped` ones, whether it reaches the server, what is called before it
        would, and what is called before its client notices the loss.

        Both are called in a thread of the connection, which waits for them.
        """
        with self._lock:
            self._armed, self._skipped = True, skipped
            self._passes, self._before, self._after = passes, before, after

    def disarm(self) -> None:
        with self._lock:
            self._armed = False

    def __enter__(self) -> AnswerLostProxy:
        self._proxy.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._proxy.__exit__(kind, error, at)

    def is_the_call(self, data: bytes) -> bool:
        """Returns True if this request is to be lost; the next one then is not."""
        with self._lock:
            if not self._armed or not self._is_call(data):
                return False
            if self._skipped:
                self._skipped -= 1
                return False
            self._armed = False
        return True

    def lose(self, call: bytes, answered: threading.Event) -> Iterator[bytes]:
        """Yields the part of the call that still reaches the server; returns when its connection may end."""
        self._before()
        if self._passes:
            yield call
            answered.wait(_WAIT_S)
        self.lost += 1
        self._after()


class _Connection(Link):
    def __init__(self, proxy: AnswerLostProxy) -> None:
        self._proxy = proxy
        self._losing = threading.Event()
        self._answered = threading.Event()
        self._lost = threading.Event()

    def requests(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for data in pieces:
            if self._proxy.is_the_call(data):
                self._losing.set()
                try:
                    yield from self._proxy.lose(data, self._answered)
                finally:
                    self._lost.set()
                return
            yield data

    def answers(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        try:
            for data in pieces:
                if self._losing.is_set():
                    return
                yield data
        finally:
            self._answered.set()
            if self._losing.is_set():
                self._lost.wait(_WAIT_S)  # the client must not notice the loss earlier
