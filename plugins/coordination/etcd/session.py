"""One session: a lease, kept alive by a thread, and a key that lives as long as the lease.

An expired lease does not refuse writes. So every request, even a read, is a transaction that depends on the
session's key, which etcd deletes with the lease. States: live → suspended (no answer, or no stream of changes) →
live, or → expired; or → closed.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from klamm.plugin import (
    CoordinationError,
    CoordinationUnavailableError,
    SessionEvent,
    SessionExpiredError,
    fault_point,
)

from ..tree_paths import MOST_OPERATIONS
from .config import EtcdConfig
from .gateway import EtcdGateway, EtcdRefusedError
from .nodes import EtcdKeys, KeyValue, Request, encoded, value
from .watches import EtcdWatches

_log = logging.getLogger(__name__)
_RETRY_S = 0.2
_CLOSE_S = 2.0
_LIMITS = (8192, 4096, 2048, 1024, 512, 256, 128, 64)
"""Numbers of operations that are tried to determine the server's `--max-txn-ops`."""
_WANTED_OPERATIONS = 1024
"""The number of operations in a change of 500 partitions."""


class EtcdSession:
    """Can be opened and closed once. `on_event` is called on the session's thread; the caller itself announces that
    the session was opened."""

    def __init__(self, config: EtcdConfig, keys: EtcdKeys, on_event: Callable[[SessionEvent], None]) -> None:
        self._config = config
        self._keys = keys
        self._on_event = on_event
        self._gateway = EtcdGateway(config)
        self._changed = threading.Condition()
        self._pending: list[SessionEvent] = []
        self._renewed = True
        self._renewed_s = 0.0  # when the last answered request that renewed the lease was sent
        self._streaming = False
        self._connected = False
        self._opened = False
        self._check_now = False
        self._expired = False
        self._closing = False
        self._lease = 0
        self._key = ""
        self._created = ""
        self._watches: EtcdWatches | None = None
        self._thread = threading.Thread(target=self._run, name="klamm-etcd-session", daemon=True)
        self.most_operations = 0

    def open(self, timeout_s: float) -> None:
        """Opens the session and the stream of changes. Raises `CoordinationUnavailableError`, with what to do, if no
        member answers within `timeout_s`, and `SessionExpiredError` if the session ends meanwhile; listeners are not
        called then."""
        deadline = time.monotonic() + timeout_s
        try:
            self._grant(deadline)
            self.most_operations = self._find_most_operations(deadline)
            third_s = self._config.session_timeout_s / 3
            self._watches = EtcdWatches(self._gateway, self._keys, self._key, self._on_stream, self._expire, third_s)
            self._watches.start()
            self._thread.start()
            with self._changed:
                self._changed.wait_for(lambda: self._connected or self._expired, max(0.1, deadline - time.monotonic()))
                if self._expired:
                    raise self._expired_early()
                if not self._connected:
                    raise CoordinationUnavailableError("there is no stream of changes")
                self._opened = True
        except CoordinationUnavailableError as error:
            self.close()
            raise CoordinationUnavailableError(
                f"no etcd responds at {self._config.addresses} within {timeout_s:g} s ({error.__cause__ or error}); "
                "start one with `klamm etcd`, or correct `etcd.endpoints`"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the session; if etcd is reachable, its ephemeral paths are deleted at once."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        if self._watches is not None:
            self._watches.stop()
        if self._lease and not self._expired:
            try:
                self._gateway.call("lease/revoke", {"ID": str(self._lease)}, "end of the session", timeout_s=_CLOSE_S)
            except CoordinationError as error:
                _log.warning("session %#x could not be ended, so it will expire: %s", self._lease, error)
        self._gateway.close()  # threads that wait for an answer give up
        if self._watches is not None:
            self._watches.join()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def session_id(self) -> int:
        return 0 if self._expired or self._closing else self._lease

    @property
    def lease(self) -> int:
        """The session id, which remains the same when the session is over."""
        return self._lease

    @property
    def watches(self) -> EtcdWatches:
        assert self._watches is not None  # from `open` on
        return self._watches

    def check_live(self, what: str) -> None:
        """Raises `SessionExpiredError` or `CoordinationUnavailableError` if it is known to be over."""
        if self._expired:
            raise SessionExpiredError(f"{what} is not accessible: the session has expired")
        if self._closing:
            raise CoordinationUnavailableError(f"{what}: the connection to etcd is closed")

    def read(self, ranges: Sequence[Request], what: str) -> tuple[int, list[list[KeyValue]]]:
        """Returns the revision at which all ranges were read, and the keys in each."""
        self.check_live(what)
        reads = [{"request_range": one} for one in [{"key": self._key, "keys_only": True}, *ranges]]
        reply = self._gateway.call("kv/txn", {"success": reads}, what, repeatable=True)
        found = [answer["response_range"].get("kvs", []) for answer in reply["responses"]]
        if not found[0] or found[0][0]["create_revision"] != self._created:
            self._expire()
            self.check_live(what)
        return int(reply["header"]["revision"]), found[1:]

    def commit(self, compares: Sequence[Request], writes: Sequence[Request], what: str) -> int | None:
        """Writes if all conditions hold and the session is live; returns the revision, or None if not. Raises
        `UnknownOutcomeError` if no answer comes."""
        self.check_live(what)
        self._renew_before_commit(what)
        live = {"key": self._key, "target": "CREATE", "create_revision": self._created}
        fault_point("coordination.write")
        try:
            reply = self._gateway.call("kv/txn", {"compare": [live, *compares], "success": list(writes)}, what)
        except EtcdRefusedError as error:
            if "lease not found" in str(error):  # it ended after the conditions were checked
                return None
            raise
        fault_point("coordination.answered")
        return int(reply["header"]["revision"]) if reply.get("succeeded") else None

    def _grant(self, deadline: float) -> None:
        """Makes the lease, its key, and the root of the tree."""

        def left_s() -> float:
            return max(0.1, deadline - time.monotonic())

        ttl = math.ceil(self._config.session_timeout_s)
        asked_s = time.monotonic()
        reply = self._gateway.call(
            "lease/grant", {"TTL": str(ttl), "ID": "0"}, "session", repeatable=True, timeout_s=left_s()
        )
        lease = int(reply["ID"])
        self._key = self._keys.session(lease)
        root, now_ms = self._keys.node("/"), int(time.time() * 1000)
        owner = encoded(f"{socket.gethostname()} {os.getpid()}".encode())
        own = [
            {"request_put": {"key": self._key, "value": owner, "lease": str(lease)}},
            {"request_range": {"key": self._key, "keys_only": True}},
        ]
        made = {
            "compare": [{"key": root, "target": "CREATE", "create_revision": "0"}],
            "success": [*own, {"request_put": {"key": root, "value": value(b"", 0, 0, now_ms, now_ms)}}],
            "failure": own,
        }
        try:
            reply = self._gateway.call("kv/txn", made, "session", repeatable=True, timeout_s=left_s())
        except EtcdRefusedError as error:
            if "lease not found" in str(error):
                raise self._expired_early() from error
            raise
        self._created = reply["responses"][1]["response_range"]["kvs"][0]["create_revision"]
        self._lease = lease
        self._renewed_s = asked_s

    def _expired_early(self) -> SessionExpiredError:
        return SessionExpiredError(
            f"sessions of {self._config.session_timeout_s:g} s at etcd at {self._config.addresses} end before they are "
            "open: this machine or etcd is too busy for `etcd.session.timeout.ms`"
        )

    def _find_most_operations(self, deadline: float) -> int:
        """Determines the number of operations in one transaction: each may need two conditions, and the session one.

        etcd counts the conditions before it evaluates any, and refuses the first without a key: nothing is read.
        With keys it compared all 8,192, for seconds on a busy machine, in which other brokers' sessions of 2 s
        ended.
        """
        for limit in _LIMITS:
            left_s = max(0.1, deadline - time.monotonic())
            try:
                self._gateway.call(
                    "kv/txn",
                    {"compare": [{}] * limit},
                    "size of transactions",
                    repeatable=True,
                    timeout_s=left_s,
                )
            except EtcdRefusedError as error:
                if "too many operations" in str(error):
                    continue
                if "key is not provided" not in str(error):
                    raise
            most = min(MOST_OPERATIONS, (limit - 1) // 2)
            if most < _WANTED_OPERATIONS:
                _log.warning(
                    "etcd at %s takes %d operations in one transaction, so a change has at most %d parts: start it "
                    "with --max-txn-ops=%d",
                    self._config.addresses, limit, most, _LIMITS[0],
                )  # fmt: skip
            return most
        raise EtcdRefusedError(f"etcd at {self._config.addresses} takes fewer than {_LIMITS[-1]} operations at once")

    def _on_stream(self, is_open: bool) -> None:
        if is_open:
            self._set(streaming=True)
        else:
            self._set(streaming=False, renewed=False)
            with self._changed:
                self._check_now = True
                self._changed.notify_all()

    def _set(self, *, streaming: bool | None = None, renewed: bool | None = None) -> None:
        """Sets the known state; the session's thread reports the resulting events."""
        with self._changed:
            self._streaming = self._streaming if streaming is None else streaming
            self._renewed = self._renewed if renewed is None else renewed
            connected = self._streaming and self._renewed
            if connected != self._connected and not self._expired:
                self._connected = connected
                if self._opened:
                    self._pending.append(SessionEvent.CONNECTED if connected else SessionEvent.SUSPENDED)
            self._changed.notify_all()

    def _expire(self) -> None:
        with self._changed:
            if self._expired or self._closing:
                return
            self._expired = True
            if self._opened:
                self._pending.append(SessionEvent.EXPIRED)
            self._changed.notify_all()

    def _run(self) -> None:
        """Keeps the lease alive, and reports events."""
        every_s = self._config.session_timeout_s / 3
        due = time.monotonic() + every_s
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._pending or self._closing or self._check_now, max(0.0, due - time.monotonic())
                )
                if self._closing:
                    return
                pending, self._pending = self._pending, []
                check, self._check_now = self._check_now or time.monotonic() >= due, False
            if SessionEvent.EXPIRED in pending:
                self.watches.stop()
            for event in pending:
                _log.info("etcd session %#x at %s: %s", self._lease, self._config.addresses, event.value)
                self._on_event(event)
            if SessionEvent.EXPIRED in pending:
                return
            if check:
                asked_s = time.monotonic()
                due = asked_s + every_s if self._renew() else time.monotonic() + _RETRY_S

    def _renew(self) -> bool:
        """Returns whether etcd has answered."""
        try:
            self._keep_alive("session")
        except CoordinationError as error:
            _log.debug("no answer to the keep-alive of session %#x: %s", self._lease, error)
            self._set(renewed=False)
            self.watches.reopen()  # its member may be the one that does not answer
            return False
        return True

    def _renew_before_commit(self, what: str) -> None:
        """Renews the lease unless it was renewed within a third of the time-out, for a commit that is about to be
        sent. A transaction does not renew a lease, and the thread that does may be late. Raises
        `CoordinationUnavailableError` without an answer, `SessionExpiredError` if the lease is over."""
        if time.monotonic() - self._renewed_s > self._config.session_timeout_s / 3:
            self._keep_alive(what)
            self.check_live(what)

    def _keep_alive(self, what: str) -> None:
        asked_s = time.monotonic()
        reply = self._gateway.call(
            "lease/keepalive",
            {"ID": str(self._lease)},
            what,
            repeatable=True,
            timeout_s=self._config.session_timeout_s / 4,
        )
        result: dict[str, Any] = reply["result"]
        if int(result.get("TTL", 0)) <= 0:
            self._expire()
        else:
            self._renewed_s = max(self._renewed_s, asked_s)
            self._set(renewed=True)
