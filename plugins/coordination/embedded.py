"""The `embedded` coordination: an SQLite file shared by the processes of one host, for a broker without Java.

States: closed → live (`start`) → suspended (the file cannot be read or written) → live, or → expired (the session
was ended by another process, since its heartbeat was late) → live (`restart`). `close` ends the session at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

from klamm.core.errors import CoordinationError
from klamm.core.interfaces.coordination import (
    ANY_VERSION,
    CoordinationUnavailableError,
    NoNodeError,
    Operation,
    SessionEvent,
    SessionExpiredError,
    Stat,
    Watch,
)

from .embedded_config import EmbeddedConfig
from .embedded_tree import EmbeddedTree, WriteTransaction
from .embedded_watches import ChangeFollower, wake_followers
from .tree_paths import check_operations, check_path, check_size

__all__ = ["EmbeddedConfig", "EmbeddedCoordination"]

_log = logging.getLogger(__name__)


class _State(Enum):
    CLOSED = "closed"
    LIVE = "live"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


class EmbeddedCoordination:
    """See `klamm.core.interfaces.coordination.Coordination`. `clock` gives seconds since the epoch, the same for
    all who share the file."""

    def __init__(self, config: EmbeddedConfig, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock
        self._lock = threading.RLock()
        self._state = _State.CLOSED
        self._session_id = 0
        self._tree: EmbeddedTree | None = None
        self._follower: ChangeFollower | None = None
        self._heartbeat: _Heartbeat | None = None
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._kept_until = 0.0
        self._beaten = 0.0

    def start(self, timeout_s: float = 10.0) -> None:  # noqa: ARG002 - SQLite's own busy time-out bounds it
        with self._lock:
            if self._state is not _State.CLOSED:
                return
            try:
                self._tree = EmbeddedTree(self._config.path, self._clock)
            except CoordinationUnavailableError as error:
                raise CoordinationUnavailableError(
                    f"{error}; give `coordination.path` a file that can be written"
                ) from error
            self._open_session(self._tree)
        self._tell(SessionEvent.CONNECTED)

    def restart(self, timeout_s: float = 10.0) -> None:
        with self._lock:
            if self._state is _State.CLOSED:
                self.start(timeout_s)
                return
            if self._state is not _State.EXPIRED or self._tree is None:
                return  # another user of this object has restarted it already
            self._stop_threads()
            self._open_session(self._tree)
        self._tell(SessionEvent.CONNECTED)

    def close(self) -> None:
        with self._lock:
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

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        with self._lock:
            self._listeners.append(callback)

    def _open_session(self, tree: EmbeddedTree) -> None:
        self._beaten = time.monotonic()
        with tree.write(0) as transaction:
            if not self._others_were_kept(transaction):
                transaction.end_expired_sessions()
            self._session_id = transaction.open_session(self._config.session_timeout_ms)
        self._follower = ChangeFollower(self._config.path)
        self._follower.start()
        self._state = _State.LIVE
        self._heartbeat = _Heartbeat(self._beat, self.session_timeout_s / 3)
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
        return tree

    @contextmanager
    def _write(self) -> Iterator[WriteTransaction]:
        """A write of the live session, which it renews: a write is a heartbeat too."""
        tree = self._live_tree()
        try:
            with tree.write(self._session_id) as transaction:
                transaction.renew_session(self._config.session_timeout_ms)
                yield transaction
        except SessionExpiredError:
            if heartbeat := self._heartbeat:
                heartbeat.hurry()  # it finds the same, and tells the listeners on its own thread
            raise
        wake_followers(self._config.path)

    def _beat(self, due: bool) -> bool:
        """Look for others that have missed their heartbeats, and when it is `due`, give our own; False once the
        session has expired."""
        tree, session_id = self._tree, self._session_id
        if tree is None:
            return False
        try:
            return self._beat_of(tree, session_id, due)
        finally:
            self._beaten = time.monotonic()

    def _beat_of(self, tree: EmbeddedTree, session_id: int, due: bool) -> bool:
        try:
            expire_others = tree.has_expired_sessions()
            if due or expire_others or self._state is _State.SUSPENDED:
                with tree.write(session_id) as transaction:
                    transaction.renew_session(self._config.session_timeout_ms)
                    if not self._others_were_kept(transaction):
                        transaction.end_expired_sessions()
        except SessionExpiredError:
            self._move(session_id, _State.EXPIRED, SessionEvent.EXPIRED)
            return False
        except CoordinationError as error:
            _log.warning("heartbeat of session %d: %s", session_id, error)
            self._move(session_id, _State.SUSPENDED, SessionEvent.SUSPENDED)
            return True
        if expire_others:
            wake_followers(self._config.path)
        if self._move(session_id, _State.LIVE, SessionEvent.CONNECTED) and (follower := self._follower):
            follower.fire_all()
        return True

    def _others_were_kept(self, transaction: WriteTransaction) -> bool:
        """Whether, a session time-out ago or less, somebody held the lock so long that sessions could not be renewed,
        or this process was stopped, perhaps while it held the lock: late heartbeats then say nothing, as after a
        restart of ZooKeeper. Heartbeats are a third of the time-out apart, so less than another third ends none."""
        now = time.monotonic()
        third_s = self.session_timeout_s / 3
        if transaction.waited_s > third_s or now - self._beaten > 2 * third_s or self._state is _State.SUSPENDED:
            self._kept_until = now + self.session_timeout_s
        return now < self._kept_until

    def _move(self, session_id: int, state: _State, event: SessionEvent) -> bool:
        """To another state, and say so; False where `session_id` is in that state, or over."""
        if self._session_id != session_id or self._state in (state, _State.CLOSED):
            return False
        self._state = state
        self._tell(event)
        return True

    def _tell(self, event: SessionEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # a listener is anyone's code; the others must still be told
                _log.exception("session listener failed on %s", event.name)


class _Heartbeat:
    """Calls `beat` every `LOOK_S` or oftener on its own thread, with True every `interval_s`, until it returns False or
    `stop`."""

    LOOK_S = 0.5

    def __init__(self, beat: Callable[[bool], bool], interval_s: float) -> None:
        self._beat = beat
        self._wait_s = min(interval_s, self.LOOK_S)
        self._every = max(1, int(interval_s / self._wait_s))
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="klamm-embedded-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """A beat that is due, now."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        waits = 0
        while not self._stopping:
            hurried = self._wake.wait(self._wait_s)
            self._wake.clear()
            waits += 1
            due = hurried or waits >= self._every
            if self._stopping or not self._beat(due):
                return
            waits = 0 if due else waits
