"""What every coordination does around its store: its life cycle, the listeners of its session, and the creation of a
path whose answer was lost."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from klamm.plugin import CoordinationUnavailableError, NodeExistsError, Operation, SessionEvent, Stat

from .tree_paths import MOST_OPERATIONS

_log = logging.getLogger(__name__)


class UnknownOutcomeError(CoordinationUnavailableError):
    """A write was sent, and no response came."""


class SessionShell(ABC):
    """States: closed → live (`start`) → suspended → live, or → expired → live (`restart`, with a new session and no
    watches). `_open` and `_drop` are called under the lock."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: list[Callable[[SessionEvent], None]] = []

    def start(self, timeout_s: float = 10.0) -> None:
        with self._lock:
            if self._is_open:
                return
            self._open(timeout_s)
        self._opened()

    def restart(self, timeout_s: float = 10.0) -> None:
        with self._lock:
            if self.session_id != 0:
                return  # another user of this object has restarted it already
            self._open(timeout_s)
        self._opened()

    def close(self) -> None:
        with self._lock:
            self._drop()

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        with self._lock:
            self._listeners.append(callback)

    @property
    def most_operations(self) -> int:
        return MOST_OPERATIONS

    @property
    @abstractmethod
    def session_id(self) -> int:
        """Returns 0 if there is no session, or it has expired."""

    @abstractmethod
    def exists(self, path: str) -> Stat | None: ...

    @property
    @abstractmethod
    def _is_open(self) -> bool:
        """False before `start` and after `close`."""

    @abstractmethod
    def _open(self, timeout_s: float) -> None:
        """Opens a new session in place of one that has expired."""

    @abstractmethod
    def _drop(self) -> None:
        """Ends the session, if there is one."""

    @abstractmethod
    def _opened(self) -> None:
        """Called without the lock after `_open`: calls the listeners, unless the session's own events do."""

    def _notify(self, event: SessionEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # a listener may raise anything; the others must still be called
                _log.exception("session listener failed on %s", event.name)

    def _create_until_known(self, path: str, create: Callable[[], Stat], *, ephemeral: bool, timeout_s: float) -> Stat:
        """Calls `create` until its outcome is known. An ephemeral path has its session as owner. The creator of a
        persistent path cannot be found out, so that outcome stays unknown."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return create()
            except UnknownOutcomeError:
                if not ephemeral or time.monotonic() > deadline:
                    raise
            found = self.exists(path)
            if found is not None and found.ephemeral_owner == self.session_id:
                return found
            if found is not None:
                raise NodeExistsError(f"{path} already exists")


def paths_of(operations: Sequence[Operation]) -> str:
    """Returns the first paths of a transaction, for a message."""
    return ", ".join(operation.path for operation in operations[:3]) + (", …" if len(operations) > 3 else "")
