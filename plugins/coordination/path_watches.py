"""Callbacks on paths: the part that the watches of all coordinations share."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

_log = logging.getLogger(__name__)
Callback = Callable[[], None]


class PathWatch:
    """One callback on one path. `forget` is called when it is cancelled."""

    def __init__(self, path: str, callback: Callback, forget: Callable[[PathWatch], None] = lambda _: None) -> None:
        self.path = path
        self.cancelled = False
        self._callback = callback
        self._forget = forget

    def cancel(self) -> None:
        self.cancelled = True
        self._forget(self)

    def fire(self) -> None:
        """Calls the callback unless the watch is cancelled; an error of it is logged, so that others are called."""
        if self.cancelled:
            return
        try:
            self._callback()
        except Exception:
            _log.exception("watch callback on %s failed", self.path)


class WatchTable:
    """Watches by path. Thread-safe."""

    def __init__(self) -> None:
        self._watches: dict[str, dict[PathWatch, None]] = {}
        self._lock = threading.Lock()

    def add(self, path: str, callback: Callback) -> PathWatch:
        watch = PathWatch(path, callback, self._remove)
        with self._lock:
            self._watches.setdefault(path, {})[watch] = None
        return watch

    def _remove(self, watch: PathWatch) -> None:
        with self._lock:
            left = self._watches.get(watch.path, {})
            left.pop(watch, None)
            if not left:
                self._watches.pop(watch.path, None)

    def fire(self, paths: Iterable[str] | None, is_stopping: Callable[[], bool]) -> None:
        """Calls the watches of these paths, or all watches (None), until `is_stopping` returns True."""
        with self._lock:
            chosen = [
                watch for path in (self._watches if paths is None else paths) for watch in self._watches.get(path, ())
            ]
        for watch in chosen:
            if is_stopping():
                return
            watch.fire()
