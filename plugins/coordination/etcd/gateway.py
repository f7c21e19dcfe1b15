"""Requests to an etcd cluster through the JSON gateway that each of its members has (etcd 3.4 or newer).

One member is used at a time; if it cannot be reached or does not answer, the next one is used. Streams move with it,
since a member that does not answer may keep a stream open and silent. A request that was not sent is tried again
until its time is over; one that was sent and not answered only if it is repeatable, else it raises
`UnknownOutcomeError`. Thread-safe.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

from klamm.plugin import CoordinationError, CoordinationUnavailableError

from ..session_shell import UnknownOutcomeError
from .config import EtcdConfig
from .nodes import Request

_Answer = TypeVar("_Answer")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_CONNECTIONS = 32
"""The number of connections to one member that are kept; if more threads need one, more are opened."""

# Codes of gRPC, in which the gateway reports what went wrong.
_RESOURCE_EXHAUSTED, _PERMISSION_DENIED, _UNAUTHENTICATED = 8, 7, 16
_NO_ANSWER = {1, 2, 4, 13, 14}
"""Cancelled, unknown, deadline exceeded, internal, unavailable: the request may have been carried out."""
_USER_PROBLEMS = ("user name is empty", "authentication failed", "authentication is not enabled")
_TOKEN_PROBLEMS = ("invalid auth token", "auth store is old")


class EtcdRefusedError(CoordinationError):
    """etcd has refused the request: it was not carried out."""


class _NotSentError(Exception):
    """No connection could be opened."""


class _TokenError(Exception):
    """The token of the user is not valid, or no longer."""


class _Member:
    """One endpoint and its kept connections."""

    def __init__(self, url: str, config: EtcdConfig) -> None:
        parts = urlsplit(url)
        self.url = url
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._options: dict[str, Any] = {"socket_options": _socket_options(config.session_timeout_s)}
        if parts.scheme == "https":
            self._options["ssl_context"] = _tls_context(config)
        kind = urllib3.HTTPSConnectionPool if parts.scheme == "https" else urllib3.HTTPConnectionPool
        self._pool: urllib3.HTTPConnectionPool = kind(self._host, self._port, maxsize=_CONNECTIONS, **self._options)

    def post(
        self, method: str, body: bytes, headers: dict[str, str], connect_s: float, read_s: float
    ) -> tuple[int, bytes]:
        response = self._pool.urlopen(
            "POST",
            f"/v3/{method}",
            body,
            headers,
            retries=False,
            redirect=False,
            timeout=urllib3.Timeout(connect=connect_s, read=read_s),
        )
        return response.status, response.data

    def connect(self, timeout_s: float) -> HTTPConnection:
        """Returns a connection that is not of the pool."""
        kind = HTTPSConnection if "ssl_context" in self._options else HTTPConnection
        return kind(self._host, self._port, timeout=timeout_s, **self._options)

    def close(self) -> None:
        self._pool.close()


def _tls_context(config: EtcdConfig) -> ssl.SSLContext:
    """Returns the TLS context. Raises `CoordinationError` for files that are no certificates or keys."""
    ca, certificate, key = config.etcd_ssl_ca, config.etcd_ssl_certificate, config.etcd_ssl_key
    try:
        context = ssl.create_default_context(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise CoordinationError(f"etcd.ssl.ca: {ca} holds no CA certificates in PEM: {error}") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise CoordinationError(
                f"etcd.ssl.certificate: {certificate} and etcd.ssl.key ({key or 'not set'}) are no pair of a "
                f"certificate and its private key in PEM: {error}"
            ) from error
    return context


def _socket_options(session_timeout_s: float) -> list[tuple[int, int, int | bytes]]:
    """Returns the socket options by which small requests are sent at once, and a member whose host has failed is
    noticed within a session time-out."""
    options: list[tuple[int, int, int | bytes]] = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    every_s = max(1, int(session_timeout_s / 4))
    for name, setting in (("TCP_KEEPIDLE", every_s), ("TCP_KEEPINTVL", every_s), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), setting))
    return options


class EtcdStream:
    """The answers to one streaming request, until either side closes it."""

    def __init__(self, connection: HTTPConnection, response: Any) -> None:
        self._response = response
        self._connection = connection
        self._socket = connection.sock

    def results(self) -> Iterator[dict[str, Any]]:
        """Yields each answer; ends when the stream does, for whatever reason."""
        rest = b""
        try:
            for piece in self._response.stream(64 * 1024):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
        except (HTTPError, OSError, ValueError):
            return

    def established(self) -> None:
        """Removes the stream's time-out: from now on it may be silent for any time."""
        if self._socket is not None:
            self._socket.settimeout(None)

    def shut(self) -> None:
        """Ends the stream: another thread that waits in `results` returns."""
        try:
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended already

    def close(self) -> None:
        self.shut()
        self._response.release_conn()
        self._connection.close()


class EtcdGateway:
    """See the module. `close` makes all waiting calls fail."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._members = [_Member(url, config) for url in config.etcd_endpoints]
        self._lock = threading.Lock()
        self._current = 0
        self._streams: dict[EtcdStream, int] = {}
        """The open streams, each with the number of its member."""
        self._token: str | None = None
        self._closed = threading.Event()

    def call(
        self, method: str, body: Request, what: str, *, repeatable: bool = False, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Sends the request and returns the answer. `what`: begins the messages of errors. Raises
        `CoordinationUnavailableError` if no member could be reached, and `EtcdRefusedError`."""
        timeout_s = self._config.request_timeout_s if timeout_s is None else timeout_s

        def post(member: _Member, left_s: float) -> dict[str, Any]:
            # A read leaves a member that is silent time for the next one.
            read_s = min(left_s, timeout_s / 3) if repeatable and len(self._members) > 1 else left_s
            return self._post(member, method, body, what, read_s)

        return self._until_answered(post, what, repeatable, timeout_s)

    def open_stream(self, method: str, body: Request, what: str, timeout_s: float) -> EtcdStream:
        """Sends a request with a stream of answers, the first of which must come within `timeout_s`. Raises as
        `call` does."""
        return self._until_answered(
            lambda member, left_s: self._stream(member, method, body, what, left_s), what, True, timeout_s
        )

    def close_stream(self, stream: EtcdStream) -> None:
        with self._lock:
            self._streams.pop(stream, None)
        stream.close()

    def close(self) -> None:
        self._closed.set()
        for member in self._members:
            member.close()

    def _until_answered(
        self, send: Callable[[_Member, float], _Answer], what: str, repeatable: bool, timeout_s: float
    ) -> _Answer:
        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_S
        cause: Exception
        while True:
            if self._closed.is_set():
                raise CoordinationUnavailableError(f"{what}: the connection to etcd is closed")
            number = self._current
            member = self._members[number]
            try:
                return send(member, max(0.1, deadline - time.monotonic()))
            except (_NotSentError, UnknownOutcomeError) as error:
                self._leave(number)
                if isinstance(error, UnknownOutcomeError) and not repeatable:
                    raise
                cause = error
            except _TokenError as error:
                self._token = None
                cause = error
            if time.monotonic() + pause_s > deadline or self._closed.wait(pause_s):
                raise CoordinationUnavailableError(
                    f"{what}: etcd at {self._config.addresses} was unreachable for {timeout_s:.3g} s: {cause}"
                ) from cause
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _leave(self, number: int) -> None:
        """Uses the next member from now on, unless another thread has already switched."""
        with self._lock:
            if self._current == number and len(self._members) > 1:
                self._current = (number + 1) % len(self._members)
                for stream, of in self._streams.items():
                    if of == number:
                        stream.shut()

    def _post(self, member: _Member, method: str, body: Request, what: str, read_s: float) -> dict[str, Any]:
        headers = self._headers(member, read_s)
        try:
            status, answer = member.post(method, _json(body), headers, self._connect_s(read_s), read_s)
        except (NewConnectionError, ConnectTimeoutError, SSLError) as error:
            raise _NotSentError(_reason(error)) from error
        except (HTTPError, OSError) as error:
            raise _unanswered(what, member, _reason(error)) from error
        return _checked(status, answer, what, member)

    def _stream(self, member: _Member, method: str, body: Request, what: str, left_s: float) -> EtcdStream:
        headers = self._headers(member, left_s)
        connection = member.connect(self._connect_s(left_s))
        try:
            connection.connect()
            assert connection.sock is not None
            connection.sock.settimeout(left_s)
            connection.request("POST", f"/v3/{method}", _json(body), headers, preload_content=False)
            response = connection.getresponse()
            if response.status != 200:
                _checked(response.status, response.data, what, member)
        except (HTTPError, HTTPException, OSError) as error:
            connection.close()
            raise _NotSentError(_reason(error)) from error
        except BaseException:
            connection.close()
            raise
        stream = EtcdStream(connection, response)
        with self._lock:
            self._streams[stream] = self._members.index(member)
        return stream

    def _connect_s(self, left_s: float) -> float:
        return min(left_s, self._config.session_timeout_s / 4)

    def _headers(self, member: _Member, left_s: float) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._config.etcd_username is None or self._config.etcd_password is None:
            return headers
        if (token := self._token) is None:
            user = {"name": self._config.etcd_username, "password": self._config.etcd_password.get_secret_value()}
            try:
                status, answer = member.post("auth/authenticate", _json(user), headers, self._connect_s(left_s), left_s)
            except (HTTPError, OSError) as error:
                raise _NotSentError(_reason(error)) from error
            reply = _checked(status, answer, f"user {self._config.etcd_username}", member)
            token = self._token = str(reply["token"])
        return {**headers, "Authorization": token}


def _json(body: Request) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _reason(error: Exception) -> str:
    """Returns the reason in one line, without urllib3's prefix, which names its failed object."""
    text = str(error) if isinstance(error, SSLError | ssl.SSLError) else str(error).rpartition(": ")[2]
    return " ".join(text.split()) or type(error).__name__


def _unanswered(what: str, member: _Member, reason: str) -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"{what}: no answer from etcd at {member.url} ({reason}); the request may or may not have been carried out"
    )


def _checked(status: int, answer: bytes, what: str, member: _Member) -> dict[str, Any]:
    """Returns the answer unless it is an error."""
    try:
        reply = json.loads(answer)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        if status >= 500:
            raise _unanswered(what, member, f"HTTP status {status}")
        raise EtcdRefusedError(
            f"{what}: {member.url} answers with HTTP status {status} and is no etcd 3.4 or newer; correct "
            "`etcd.endpoints`"
        )
    failure = reply.get("error")
    if status == 200 and failure is None:
        return reply
    # A stream reports its failure as an object.
    details = failure if isinstance(failure, dict) else reply
    code = int(details.get("code") or details.get("grpc_code") or 2)
    message = str(details.get("message") or failure)
    if any(problem in message for problem in _TOKEN_PROBLEMS):
        raise _TokenError(message)
    if code == _RESOURCE_EXHAUSTED and "database space exceeded" in message:
        raise CoordinationUnavailableError(
            f"{what}: the database of etcd at {member.url} is full: compact and defragment it, disarm its alarm "
            "(`etcdctl alarm disarm`), and see that it compacts itself (--auto-compaction-retention)"
        )
    if code == _RESOURCE_EXHAUSTED and "too many requests" in message:
        raise CoordinationUnavailableError(f"{what}: etcd at {member.url} is overloaded: {message}")
    if "request is too large" in message or "message larger than max" in message:
        raise EtcdRefusedError(
            f"{what}: the transaction is too large for etcd at {member.url}: start it with --max-request-bytes=4194304"
        )
    if code in (_PERMISSION_DENIED, _UNAUTHENTICATED) or any(problem in message for problem in _USER_PROBLEMS):
        raise EtcdRefusedError(
            f"{what}: etcd at {member.url} refuses the user: {message}; `etcd.username` and `etcd.password` name "
            "a user whose role may read and write all keys below `etcd.prefix`"
        )
    if code in _NO_ANSWER:
        raise _unanswered(what, member, message)
    raise EtcdRefusedError(f"{what}: etcd at {member.url} refuses: {message}")
