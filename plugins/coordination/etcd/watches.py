"""Watches: one stream of all changes below the prefix, from which the callbacks of the changed paths are called.

The stream needs no history: each time that it is opened, all watches are called, since each may have missed a change.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from klamm.plugin import CoordinationError

from ..path_watches import Callback, PathWatch, WatchTable
from ..tree_paths import parent_of
from .gateway import EtcdGateway, EtcdStream
from .nodes import EtcdKeys, KeyValue

_log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


class EtcdWatches:
    """The watches of one session. Its thread keeps the stream open from `start` to `stop`, and calls `on_stream` with
    True when it is open and with False when it has ended. `on_session_deleted` is called when `session_key` is
    deleted."""

    def __init__(
        self,
        gateway: EtcdGateway,
        keys: EtcdKeys,
        session_key: str,
        on_stream: Callable[[bool], None],
        on_session_deleted: Callable[[], None],
        open_timeout_s: float,
    ) -> None:
        self._gateway = gateway
        self._keys = keys
        self._session_key = session_key
        self._on_stream = on_stream
        self._on_session_deleted = on_session_deleted
        self._open_timeout_s = open_timeout_s
        self._lock = threading.Lock()
        self._watches = WatchTable()
        self._stream: EtcdStream | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="klamm-etcd-watches", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; at most one callback that is about to start is still called."""
        self._stopping.set()
        self.reopen()

    def join(self) -> None:
        """Waits for the end of the thread, unless it is called from a callback."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def reopen(self) -> None:
        """Ends the stream, for instance because its member does not answer; the thread opens it again."""
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.shut()

    def add(self, path: str, callback: Callback) -> PathWatch:
        """Adds a watch. While there is no stream, the watch is called as soon as there is one."""
        return self._watches.add(path, callback)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                stream = self._gateway.open_stream(
                    "watch", {"create_request": self._keys.everything()}, "watches", self._open_timeout_s
                )
            except CoordinationError as error:  # the session reports that etcd is unavailable
                _log.debug("no stream of changes: %s", error)
            except Exception as error:  # without this thread the process would not see any change any more
                _log.exception("the stream of changes is opened again: %s", error)
            else:
                with self._lock:
                    self._stream = stream
                try:
                    if self._follow(stream):
                        pause_s = _FIRST_PAUSE_S
                except Exception as error:  # without this thread the process would not see any change any more
                    _log.exception("the stream of changes is opened again: %s", error)
                    self._on_stream(False)
                finally:
                    with self._lock:
                        self._stream = None
                    self._gateway.close_stream(stream)
            if self._stopping.wait(pause_s):
                return
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _follow(self, stream: EtcdStream) -> bool:
        """Calls the watches until the stream ends; returns False if it could not be opened."""
        begun = False
        for reply in stream.results():
            result: dict[str, Any] = reply.get("result") or {}
            if self._stopping.is_set() or "error" in reply or result.get("canceled"):
                break
            if result.get("created") and not begun:
                begun = True
                stream.established()
                self._on_stream(True)
                self._watches.fire(None, self._stopping.is_set)
            self._dispatch(result.get("events", ()))
        if begun:
            self._on_stream(False)
        return begun

    def _dispatch(self, events: Iterable[dict[str, Any]]) -> None:
        changed: dict[str, None] = {}
        for event in events:
            kv: KeyValue = event["kv"]
            deleted = event.get("type") == "DELETE"
            path = self._keys.path(kv["key"])
            if path is None:
                if deleted and kv["key"] == self._session_key:
                    self._on_session_deleted()
                continue
            changed[path] = None
            if deleted or self._keys.is_new(kv):
                changed[parent_of(path)] = None
        self._watches.fire(changed, self._stopping.is_set)
