"""Watches on the embedded tree: a thread follows the log of changes and calls the callbacks.

Every `POLL_S` it checks whether another connection has written (one `PRAGMA`, no page read); a write of this process
wakes it at once.
"""

from __future__ import annotations

import logging
import threading
import weakref
from pathlib import Path
from sqlite3 import Error as SqliteError

from ..path_watches import Callback, PathWatch, WatchTable
from .tree import connect

POLL_S = 0.05
_log = logging.getLogger(__name__)
_followers: weakref.WeakSet[ChangeFollower] = weakref.WeakSet()
_followers_lock = threading.Lock()


class ChangeFollower:
    """Calls the watches whose path changed, on its own thread, from `start` to `stop`."""

    def __init__(self, file: Path) -> None:
        self._file = file.resolve()
        self._watches = WatchTable()
        self._wake = threading.Event()
        self._all = False
        self._stopping = False
        self._db = connect(self._file)
        self._thread = threading.Thread(target=self._run, name="klamm-embedded-watches", daemon=True)

    def start(self) -> None:
        with _followers_lock:
            _followers.add(self)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread; no callback starts after this returns, unless it is called from a callback."""
        with _followers_lock:
            _followers.discard(self)
        self._stopping = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def add(self, path: str, callback: Callback) -> PathWatch:
        return self._watches.add(path, callback)

    def fire_all(self) -> None:
        """Calls all watches, as after a reconnect."""
        self._all = True
        self._wake.set()

    def _run(self) -> None:
        version, seen = -1, -1
        while not self._stopping:
            woken = self._wake.wait(POLL_S)
            self._wake.clear()
            if self._all:
                self._all = False
                self._fire(None)
            try:
                before, version = version, self._db.execute("PRAGMA data_version").fetchone()[0]
                if woken or before != version:
                    seen = self._follow(seen)
            except SqliteError as error:  # the heartbeat reports it as SUSPENDED; the next check finds all changes
                version = -1
                _log.warning("coordination file %s: %s", self._file, error)
        self._db.close()

    def _follow(self, seen: int) -> int:
        newest = int(self._db.execute("SELECT coalesce(max(seq), 0) FROM changes").fetchone()[0])
        rows = self._db.execute("SELECT path FROM changes WHERE seq > ? AND seq <= ?", (seen, newest)).fetchall()
        # At the first check, and if changes were pruned before they were read, any path may have changed.
        unknown = seen < 0 or len(rows) != newest - seen
        self._fire(None if unknown else {row[0] for row in rows})
        return newest

    def _fire(self, paths: set[str] | None) -> None:
        self._watches.fire(paths, lambda: self._stopping)


def wake_followers(file: Path) -> None:
    """Wakes this process's followers of `file` after a write."""
    resolved = file.resolve()
    with _followers_lock:
        chosen = [follower for follower in _followers if follower._file == resolved]
    for follower in chosen:
        follower._wake.set()
