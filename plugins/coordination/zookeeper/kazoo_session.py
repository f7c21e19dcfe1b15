"""One ZooKeeper session: kazoo's client, with its responses, errors and states translated to the core's.

A request is sent only while connected, and every wait has a time-out. A missing response, or a connection lost before
the response, raises `UnknownOutcomeError`: a write may have happened. A request that was never sent raises
`CoordinationUnavailableError` itself.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import GetData, MultiHeader, read_buffer, stat_struct
from kazoo.protocol.states import KazooState, ZnodeStat
from kazoo.retry import KazooRetry

from klamm.plugin import (
    BadVersionError,
    CoordinationError,
    CoordinationUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionEvent,
    SessionExpiredError,
    fault_point,
)

from ..session_shell import UnknownOutcomeError

_INT: Final = struct.Struct(">i")
_log = logging.getLogger(__name__)
# kazoo logs every failed attempt to connect; this module logs what matters of it, once.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.ERROR)

_ANSWERS: dict[type[Exception], type[CoordinationError]] = {
    kazoo_errors.NoNodeError: NoNodeError,
    kazoo_errors.NodeExistsError: NodeExistsError,
    kazoo_errors.BadVersionError: BadVersionError,
    kazoo_errors.NotEmptyError: NotEmptyError,
    kazoo_errors.SessionExpiredError: SessionExpiredError,
    kazoo_errors.UnknownSessionError: SessionExpiredError,  # the server has ended it, but not reported it yet
}
_LOST = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.ConnectionClosedError,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.CancelledError,
    KazooTimeoutError,
    RuntimeError,  # the response is that to a later request (below)
)
_MEANINGS: dict[type[CoordinationError], str] = {
    NoNodeError: "does not exist, or its parent does not",
    NodeExistsError: "already exists",
    BadVersionError: "is at another version",
    NotEmptyError: "has children",
    SessionExpiredError: "is not accessible: the session has expired",
}


_TRIES_A_SESSION = 4
"""Minimum number of attempts to connect within a session time-out. A server that is starting accepts connections and
may never respond on them (seen with 3.9). kazoo waits on such a connection for the session time-out divided by the
number of hosts, so with one host a single wait would cost the session. Here a wait, also that for connecting, is at
most a fourth of it."""


_TOLD_S: Final = 5.0
"""How long `KazooSession.close` waits for listeners that are being called about the end of the session."""


def _repeated(hosts: str) -> str:
    """Returns the hosts, repeated so that there are `_TRIES_A_SESSION` or more."""
    return ",".join([hosts] * -(-_TRIES_A_SESSION // (hosts.count(",") + 1)))


class _ShortConnectHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo ships no types
    """Waits at most `connect_timeout_s` for a connection; kazoo itself would wait a whole session time-out. Calls
    `before_connect` at each attempt."""

    def __init__(self, connect_timeout_s: float, before_connect: Callable[[], None]) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s
        self._before_connect = before_connect

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        self._before_connect()
        return super().create_connection(*args, **{**kwargs, "timeout": self._connect_timeout_s})


class PendingResult(Protocol):
    """The result type of kazoo's `*_async` methods."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any: ...


class _MultiRead:
    """The data of many paths in one request (ZooKeeper 3.6), which kazoo does not have; None for a path that does not
    exist. kazoo sends one read after the other no faster when they wait in its queue."""

    type: Final = 22

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytearray:
        request = bytearray()
        for path in self._paths:
            request += MultiHeader(GetData.type, False, -1).serialize() + GetData(path, None).serialize()
        request += MultiHeader(-1, True, -1).serialize()
        return request

    @classmethod
    def deserialize(cls, response: bytes, offset: int) -> list[tuple[bytes, ZnodeStat] | None]:
        found: list[tuple[bytes, ZnodeStat] | None] = []
        while True:
            header, offset = MultiHeader.deserialize(response, offset)
            if header.done:
                return found
            if header.type == GetData.type:
                data, offset = read_buffer(response, offset)
                found.append((data or b"", ZnodeStat._make(stat_struct.unpack_from(response, offset))))
                offset += stat_struct.size
                continue
            (code,) = _INT.unpack_from(response, offset)
            offset += _INT.size
            if code != kazoo_errors.NoNodeError.code:
                raise kazoo_errors.EXCEPTIONS[code]()
            found.append(None)


def read_many(client: KazooClient, paths: Sequence[str]) -> PendingResult:
    """Sends one request for the data and properties of all paths."""
    result: PendingResult = client.handler.async_result()
    client._call(_MultiRead(paths), result)
    return result


def _drop_out_of_order(client: KazooClient) -> None:
    """Lets the client drop a connection on which a response is missing, and continue its session at another server.

    When the leader of an ensemble is killed, another server may leave a request without a response and respond to
    the next one (seen with 3.9). kazoo's thread then ends with an error that kazoo itself does not handle, and the
    session seems to be over. The same happens on a response to a request for which it no longer waits, as after the
    end of the session.
    """
    connection = client._connection
    read = connection._read_response

    def read_response(*arguments: Any) -> None:
        try:
            read(*arguments)
        except (RuntimeError, IndexError) as error:
            raise kazoo_errors.ConnectionDropped(str(error)) from error

    connection._read_response = read_response


Request = Callable[[KazooClient], PendingResult]


def translate(error: Exception, path: str) -> CoordinationError:
    """Translates kazoo's error of an operation on `path` to the interface's."""
    kind = _ANSWERS.get(type(error))
    if kind is not None:
        return kind(f"{path} {_MEANINGS[kind]}")
    if isinstance(error, kazoo_errors.NoChildrenForEphemeralsError):
        return CoordinationError(f"{path} cannot be created: its parent is ephemeral")
    if isinstance(error, _LOST):
        return UnknownOutcomeError(
            f"{path}: no response from ZooKeeper; the request may or may not have been carried out"
        )
    if isinstance(error, kazoo_errors.UnimplementedError):
        return CoordinationError(f"{path}: the server does not know the request: Klamm needs ZooKeeper 3.6 or newer")
    return CoordinationError(f"{path}: ZooKeeper refused: {error!r}")


class KazooSession:
    """Can be opened and closed once. `on_event` is called on kazoo's thread. `hosts` is `host:port,…`, without a
    chroot."""

    def __init__(
        self, hosts: str, session_timeout_s: float, request_timeout_s: float, on_event: Callable[[SessionEvent], None]
    ) -> None:
        self._hosts = hosts
        self._request_timeout_s = request_timeout_s
        self._on_event = on_event
        self._changed = threading.Condition()
        self._connected = False
        self._behind = True
        """True until the first read after a connect has waited for the server to catch up. A server of an ensemble
        may be behind the others, and a write whose response was lost with the earlier connection must be found."""
        self._syncing = threading.Lock()
        self._closing = False
        self._expired = False
        self._session_id = 0
        self._session_timeout_s = session_timeout_s
        self._lost_at: float | None = None
        self._stopping = threading.Lock()
        self._ending: threading.Thread | None = None
        """The thread that calls the listeners after an answer has shown that the session is over."""
        self._client = KazooClient(
            hosts=_repeated(hosts),
            timeout=session_timeout_s,
            handler=_ShortConnectHandler(session_timeout_s / _TRIES_A_SESSION, self._forget_zxid),
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
            logger=_kazoo_log,
        )
        _drop_out_of_order(self._client)
        self._client.add_listener(self._on_state)

    def open(self, timeout_s: float) -> None:
        """Connects. Raises `CoordinationUnavailableError`, with what to do, if no server responds within
        `timeout_s`."""
        self._client.start_async().wait(timeout=timeout_s)
        if not self._client.connected:
            self.close()
            raise CoordinationUnavailableError(
                f"no ZooKeeper responds at {self._hosts} within {timeout_s:g} s; start one with `klamm zookeeper`, "
                "or correct `zookeeper.connect`"
            )
        threading.Thread(target=self._ask_the_leader, name="klamm-zookeeper-session", daemon=True).start()

    def close(self) -> None:
        """Ends the session; if the server is reachable, its ephemeral paths are deleted at once. Waiting calls fail."""
        ending = self._ending
        if ending is not None and ending is not threading.current_thread():
            ending.join(_TOLD_S)  # or the listeners would hear of the end after the start of the next session
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._connected = False
            self._changed.notify_all()
        self._stop_client()

    @property
    def session_id(self) -> int:
        return 0 if self._expired or self._closing else self._session_id

    def call(self, path: str, request: Request, *, repeatable: bool = False) -> Any:
        """Sends a request and returns its result. A `repeatable` request (a read) is sent again after a lost
        connection."""
        deadline = time.monotonic() + self._request_timeout_s
        while True:
            self._await_connected(path, deadline)
            if not repeatable:
                fault_point("coordination.write")
            else:
                with self._syncing:  # no other thread reads between the two steps
                    if self._behind:
                        # Sent before the read on the same connection, so its response need not be waited for.
                        self._behind = False
                        self._client.sync_async("/")
            try:
                answer = request(self._client).get(timeout=max(0.1, deadline - time.monotonic()))
                if not repeatable:
                    fault_point("coordination.answered")
                return answer
            except (kazoo_errors.KazooException, KazooTimeoutError, RuntimeError) as error:
                translated = self.refused(error, path)
                if not (repeatable and isinstance(translated, UnknownOutcomeError) and time.monotonic() < deadline):
                    raise translated from error

    def refused(self, error: Exception, path: str) -> CoordinationError:
        """Translates the error of a request, or of an operation of a transaction. An error which means that the
        session is over ends it here, since kazoo does not end a session because of an answer."""
        translated = translate(error, path)
        if isinstance(translated, SessionExpiredError):
            with self._changed:
                if self._ending is None:
                    # On a thread of its own: the caller may hold what a listener needs.
                    over = partial(self._on_state, KazooState.LOST)
                    self._ending = threading.Thread(target=over, name="klamm-zookeeper-expired", daemon=True)
                    self._ending.start()
        return translated

    def _ask_the_leader(self) -> None:
        """Asks, once in a session time-out, whether the session is alive.

        A follower that checked a session while its leader ended it continues to answer pings, reads and syncs (seen
        with 3.9). The leader decides writes, and a transaction that only checks a version.
        """
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._expired or self._closing, self._session_timeout_s):
                    return
                if not self._connected:
                    continue
            try:
                request = self._client.transaction()
                request.check("/", -1)
                (answer,) = request.commit_async().get(timeout=self._request_timeout_s)
            except (kazoo_errors.KazooException, KazooTimeoutError, RuntimeError) as error:
                answer = error
            if isinstance(answer, Exception):
                self.refused(answer, "/")

    def _await_connected(self, path: str, deadline: float) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._connected or self._expired or self._closing, max(0.0, deadline - time.monotonic())
            )
            if self._expired:
                raise SessionExpiredError(f"{path} is not accessible: the session has expired")
            if self._closing:
                raise CoordinationUnavailableError(f"{path}: the connection to ZooKeeper is closed")
            if not self._connected:
                raise CoordinationUnavailableError(
                    f"{path}: ZooKeeper at {self._hosts} was unreachable for {self._request_timeout_s:g} s"
                )

    def _forget_zxid(self) -> None:
        """Allows a server to answer although it is behind what this client has seen, after a session time-out
        without an answer.

        A server refuses such a client. A server of an ensemble may be behind for a moment, and another one answers.
        A server that was restored from a backup is behind for good, and the client would never learn that its
        session is over, or that the tree is an older one.
        """
        lost_at = self._lost_at
        if lost_at is not None and time.monotonic() - lost_at > self._session_timeout_s:
            self._client.last_zxid = 0

    def _on_state(self, state: str) -> None:
        """Called on kazoo's connection thread, which must not block, and after an answer that the session is over."""
        with self._changed:
            if self._closing or self._expired:
                return
            if state == KazooState.CONNECTED:
                self._connected, self._behind, event = True, True, SessionEvent.CONNECTED
                self._lost_at = None
                client_id = self._client.client_id
                self._session_id = client_id[0] if client_id else 0
            elif state == KazooState.SUSPENDED:
                self._connected, event = False, SessionEvent.SUSPENDED
                self._lost_at = time.monotonic()
            else:
                self._connected, event = False, SessionEvent.EXPIRED
                self._expired = True
            self._changed.notify_all()
        if event is SessionEvent.EXPIRED:
            # kazoo would open a new session by itself, without this session's paths and watches.
            threading.Thread(target=self._stop_client, name="klamm-kazoo-stop", daemon=True).start()
        _log.info("ZooKeeper session %#x at %s: %s", self._session_id & (2**64 - 1), self._hosts, event.value)
        self._on_event(event)

    def _stop_client(self) -> None:
        with self._stopping:
            self._client.stop()
            self._client.close()
