"""The `embedded` coordination: an SQLite file shared by the processes of one host, for a broker without Java.

States: closed → live (`start`) → suspended (the file cannot be read or written) → live, or → expired (another process
ended the session because its heartbeat was late) → live (`restart`). `close` ends the session at once.

A file that was removed or replaced under a live session counts as one that cannot be read or written, until it is back:
processes that start now, and those that have it open, would be two clusters. No session is opened in another file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

from klamm.plugin import (
    ANY_VERSION,
    CoordinationError,
    CoordinationUnavailableError,
    NoNodeError,
    Operation,
    SessionEvent,
    SessionExpiredError,
    Stat,
    Watch,
    fault_point,
)

from ..session_shell import SessionShell
from ..tree_paths import check_operations, check_path, check_size
from .config import EmbeddedConfig
from .tree import Clocks, EmbeddedTree, FileLostError, WriteTransaction
from .watches import ChangeFollower, wake_followers

__all__ = ["EmbeddedConfig", "EmbeddedCoordination"]

_log = logging.getLogger(__name__)


class _State(Enum):
    CLOSED = "closed"
    LIVE = "live"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


class EmbeddedCoordination(SessionShell):
    """Implements `klamm.core.interfaces.coordination.Coordination`."""

    def __init__(self, config: EmbeddedConfig, clocks: Clocks | None = None) -> None:
        super().__init__()
        self._config = config
        self._clocks = clocks or Clocks()
        self._state = _State.CLOSED
        self._session_id = 0
        self._tree: EmbeddedTree | None = None
        self._follower: ChangeFollower | None = None
        self._heartbeat: _Heartbeat | None = None
        self._grace_until = 0.0
        self._last_heartbeat = 0.0
        self._lost: FileLostError | None = None

    @property
    def session_id(self) -> int:
        return self._session_id if self._state in (_State.LIVE, _State.SUSPENDED) else 0

    @property
    def session_timeout_s(self) -> float:
        return self._config.session_timeout_ms / 1000

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, make_parents: bool = False) -> Stat:
        check_path(path)
        check_size(path, len(data))
        with self._write() as transaction:
            if make_parents:
                transaction.make_parents(path)
            transaction.create(path, data, ephemeral=ephemeral)
            return transaction.stat(path)

    def get(self, path: str) -> tuple[bytes, Stat]:
        check_path(path)
        found = self._live_tree().read(path)
        if found is None:
            raise NoNodeError(f"{path} is not there")
        return found

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        for path in paths:
            check_path(path)
        return self._live_tree().read_many(paths)

    def exists(self, path: str) -> Stat | None:
        check_path(path)
        found = self._live_tree().read(path)
        return found[1] if found else None

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        check_path(path)
        check_size(path, len(data))
        with self._write() as transaction:
            transaction.set(path, data, version)
            return transaction.stat(path)

    def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None:
        check_path(path)
        with self._write() as transaction:
            (transaction.delete_subtree if recursive else transaction.delete)(path, version)

    def children(self, path: str) -> list[str]:
        check_path(path)
        names = self._live_tree().children(path)
        if names is None:
            raise NoNodeError(f"{path} is not there")
        return sorted(names)

    def transaction(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)
        if not operations:
            return
        with self._write() as transaction:
            for operation in operations:
                transaction.apply(operation)

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        check_path(path)
        with self._lock:
            self._live_tree()
            assert self._follower is not None  # as long as there is a tree
            return self._follower.add(path, callback)

    @property
    def _is_open(self) -> bool:
        return self._state is not _State.CLOSED

    def _open(self, timeout_s: float) -> None:  # noqa: ARG002 - SQLite's own busy time-out limits the wait
        if self._tree is None or not self._is_open:
            is_new = not self._config.path.exists()
            try:
                self._tree = EmbeddedTree(self._config.path, self._clocks)
            except CoordinationUnavailableError as error:
                raise CoordinationUnavailableError(f"{error}; set `coordination.path` to a writable file") from error
            if is_new:
                _log.info("coordination file %s did not exist, and was made", self._config.path)
        self._stop_threads()
        self._open_session(self._tree)

    def _opened(self) -> None:
        self._notify(SessionEvent.CONNECTED)

    def _drop(self) -> None:
        tree, session_id, state = self._tree, self._session_id, self._state
        self._tree, self._session_id, self._state = None, 0, _State.CLOSED
        self._stop_threads()
        if tree is None:
            return
        try:
            if state is not _State.EXPIRED:
                with tree.write(session_id) as transaction:
                    transaction.end_session(session_id)
                wake_followers(self._config.path)
        except CoordinationUnavailableError as error:
            _log.warning("session %d could not be ended, so it will expire: %s", session_id, error)
        finally:
            tree.close()

    def _open_session(self, tree: EmbeddedTree) -> None:
        tree.check_file()  # a new session's follower of changes would create it
        self._last_heartbeat = self._clocks.monotonic()
        with tree.write(0) as transaction:
            if not self._in_grace_period(transaction):
                transaction.end_expired_sessions()
            self._session_id = transaction.open_session(self._config.session_timeout_ms)
        self._follower = ChangeFollower(self._config.path)
        self._follower.start()
        self._state = _State.LIVE
        self._heartbeat = _Heartbeat(self._send_heartbeat, self.session_timeout_s / 3)
        self._heartbeat.start()

    def _stop_threads(self) -> None:
        if self._heartbeat:
            self._heartbeat.stop()
        if self._follower:
            self._follower.stop()
        self._heartbeat = self._follower = None

    def _live_tree(self) -> EmbeddedTree:
        tree = self._tree
        if tree is None:
            raise CoordinationUnavailableError(f"coordination file {self._config.path} is closed")
        if self._state is _State.EXPIRED:
            raise SessionExpiredError(f"session {self._session_id} has expired")
        if self._lost is not None:
            raise CoordinationUnavailableError(str(self._lost))
        return tree

    @contextmanager
    def _write(self) -> Iterator[WriteTransaction]:
        """Yields a write transaction of the live session, which it renews: a write is also a heartbeat."""
        tree = self._live_tree()
        fault_point("coordination.write")
        tree.check_file()
        try:
            with tree.write(self._session_id) as transaction:
                transaction.renew_session(self._config.session_timeout_ms)
                yield transaction
        except SessionExpiredError:
            if heartbeat := self._heartbeat:
                heartbeat.run_now()  # it detects the expiry too, and calls the listeners on its own thread
            raise
        wake_followers(self._config.path)
        fault_point("coordination.answered")

    def _send_heartbeat(self, due: bool) -> bool:
        """Ends the sessions of processes that have missed their heartbeats, and renews this session if `due`. Returns
        False once this session has expired."""
        tree, session_id = self._tree, self._session_id
        if tree is None:
            return False
        try:
            return self._heartbeat_of(tree, session_id, due)
        finally:
            self._last_heartbeat = self._clocks.monotonic()

    def _heartbeat_of(self, tree: EmbeddedTree, session_id: int, due: bool) -> bool:
        try:
            tree.check_file()
            expire_others = tree.has_expired_sessions()
            if due or expire_others or self._state is _State.SUSPENDED:
                with tree.write(session_id) as transaction:
                    transaction.renew_session(self._config.session_timeout_ms)
                    if not self._in_grace_period(transaction):
                        transaction.end_expired_sessions()
        except SessionExpiredError:
            self._move(session_id, _State.EXPIRED, SessionEvent.EXPIRED)
            return False
        except FileLostError as error:
            if self._lost is None:
                _log.error("%s", error)
            self._lost = error
            self._move(session_id, _State.SUSPENDED, SessionEvent.SUSPENDED)
            return True
        except CoordinationError as error:
            _log.warning("heartbeat of session %d: %s", session_id, error)
            self._move(session_id, _State.SUSPENDED, SessionEvent.SUSPENDED)
            return True
        if self._lost is not None:
            _log.info("coordination file %s is back", self._config.path)
            self._lost = None
        if expire_others:
            wake_followers(self._config.path)
        if self._move(session_id, _State.LIVE, SessionEvent.CONNECTED) and (follower := self._follower):
            follower.fire_all()
        return True

    def _in_grace_period(self, transaction: WriteTransaction) -> bool:
        """Returns whether late heartbeats must not end sessions now.

        A grace period of one session time-out starts whenever another process held the lock so long that sessions
        could not be renewed, or this process was stopped, perhaps while it held the lock; as after a restart of
        ZooKeeper. Heartbeats are a third of the time-out apart, so a delay of less than another third ends no
        session.
        """
        now = self._clocks.monotonic()
        third_s = self.session_timeout_s / 3
        if (
            transaction.waited_s > third_s
            or now - self._last_heartbeat > 2 * third_s
            or self._state is _State.SUSPENDED
        ):
            self._grace_until = now + self.session_timeout_s
        return now < self._grace_until

    def _move(self, session_id: int, state: _State, event: SessionEvent) -> bool:
        """Changes the state and calls the listeners. Returns False, and changes nothing, if the session is in that
        state already or has ended."""
        if self._session_id != session_id or self._state in (state, _State.CLOSED):
            return False
        self._state = state
        self._notify(event)
        return True


class _Heartbeat:
    """Calls `beat` on its own thread at least every `CHECK_S`, with True every `interval_s`, until it returns False or
    `stop` is called."""

    CHECK_S = 0.5

    def __init__(self, beat: Callable[[bool], bool], interval_s: float) -> None:
        self._beat = beat
        self._wait_s = min(interval_s, self.CHECK_S)
        self._every = max(1, int(interval_s / self._wait_s))
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="klamm-embedded-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run_now(self) -> None:
        """Makes the thread call `beat` with True now."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        waits = 0
        while not self._stopping:
            woken = self._wake.wait(self._wait_s)
            self._wake.clear()
            waits += 1
            due = woken or waits >= self._every
            if self._stopping or not self._beat(due):
                return
            waits = 0 if due else waits
