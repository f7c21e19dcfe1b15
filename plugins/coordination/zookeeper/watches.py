"""Level-triggered watches, made from ZooKeeper's one-shot watches.

A path has a data watch (created, deleted, changed) and, while it exists, a child watch. When one fires, or the
connection was lost (kazoo then fires all of them), a thread sets it again *first* and then calls the callbacks: a
change after a callback's read fires again. A path whose last callback is cancelled is removed when it fires next.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from klamm.plugin import CoordinationError, CoordinationUnavailableError, NoNodeError, SessionExpiredError

from ..path_watches import Callback, PathWatch
from .kazoo_session import KazooSession

_log = logging.getLogger(__name__)
_RETRY_S: Final = 1.0


class _WatchedPath:
    """The watches of one path that are set at the server; `lock` is held while they are being set."""

    def __init__(self, path: str, fired: Callable[[_WatchedPath], None]) -> None:
        self.path = path
        self.watches: list[PathWatch] = []
        self.lock = threading.Lock()
        self._fired = fired
        self._data_set = False
        self._children_set = False

    def arm(self, session: KazooSession) -> None:
        """Sets the watches that are not set. Raises the errors of `KazooSession.call`; a watch that could not be set
        stays unset."""
        with self.lock:
            if not self._data_set:
                self._data_set = True
                try:
                    session.call(self.path, lambda zk: zk.exists_async(self.path, self._on_data), repeatable=True)
                except Exception:
                    self._data_set = False
                    raise
            if not self._children_set:
                self._children_set = True
                try:
                    session.call(
                        self.path, lambda zk: zk.get_children_async(self.path, self._on_children), repeatable=True
                    )
                except NoNodeError:
                    self._children_set = False  # the data watch reports its creation
                except Exception:
                    self._children_set = False
                    raise

    def _on_data(self, event: object) -> None:  # noqa: ARG002 - every event means: read again
        self._data_set = False
        self._fired(self)

    def _on_children(self, event: object) -> None:  # noqa: ARG002
        self._children_set = False
        self._fired(self)


class ZooKeeperWatches:
    """All watches of one session. One thread calls them, from `start` to `stop` or the session's expiry."""

    def __init__(self, session: KazooSession) -> None:
        self._session = session
        self._paths: dict[str, _WatchedPath] = {}
        self._fired: dict[_WatchedPath, None] = {}  # each path once, in order
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="klamm-zookeeper-watches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread; no callback starts after this returns, unless it is called from a callback. Close the
        session first, which ends the thread's waits."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def add(self, path: str, callback: Callback) -> PathWatch:
        """Adds a watch, which is set when this returns, or as soon as ZooKeeper is reachable again (then it also
        fires)."""
        watch = PathWatch(path, callback)
        with self._changed:
            watched = self._paths.get(path)
            if watched is None:
                watched = self._paths[path] = _WatchedPath(path, self._mark)
            watched.watches = [w for w in watched.watches if not w.cancelled] + [watch]
        try:
            watched.arm(self._session)
        except SessionExpiredError:
            raise
        except CoordinationUnavailableError:
            self._mark(watched)
        return watch

    def _mark(self, watched: _WatchedPath) -> None:
        with self._changed:
            self._fired[watched] = None
            self._changed.notify_all()

    def _run(self) -> None:
        while (watched := self._next()) is not None:
            try:
                watched.arm(self._session)
            except SessionExpiredError:
                return  # watches end with their session
            except CoordinationUnavailableError:
                self._mark(watched)  # `arm` has waited for a connection until its time-out; wait again
                continue
            except Exception as error:  # without this thread the process would not see any change any more
                said = "a watch could not be set, it is tried again in %g s: %s"
                _log.error(said, _RETRY_S, error, exc_info=not isinstance(error, CoordinationError))
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping, _RETRY_S)
                self._mark(watched)
                continue
            for watch in list(watched.watches):
                if self._stopping:
                    return
                watch.fire()

    def _next(self) -> _WatchedPath | None:
        """Returns the next path that fired and is still watched; None after `stop`."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._stopping or self._fired)
                if self._stopping:
                    return None
                watched = next(iter(self._fired))
                del self._fired[watched]
                watched.watches = [watch for watch in watched.watches if not watch.cancelled]
                if watched.watches:
                    return watched
                if self._paths.get(watched.path) is watched:
                    del self._paths[watched.path]
