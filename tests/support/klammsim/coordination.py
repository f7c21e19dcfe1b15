"""A coordination in memory: it passes the contract suite, and the simulation decides when a session expires."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from klamm.core.errors import CoordinationError
from klamm.core.interfaces.coordination import (
    ANY_VERSION,
    BadVersionError,
    Check,
    CoordinationUnavailableError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SessionEvent,
    SessionExpiredError,
    Set,
    Stat,
    Watch,
)
from klamm.plugins.coordination.tree_paths import ancestors, check_operations, check_path, check_size, parent_of

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Node:
    data: bytes
    creation_id: int
    owner: int
    ctime_ms: int
    mtime_ms: int
    version: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        return Stat(self.version, self.creation_id, self.owner, self.ctime_ms, self.mtime_ms)


class SimTree:
    """The service: nodes, sessions and watches. `observer` sees each transaction that was applied, before watches."""

    def __init__(
        self, clock_ms: Callable[[], int], observer: Callable[[Sequence[Operation]], None] | None = None
    ) -> None:
        self.lock = threading.RLock()
        self._clock_ms = clock_ms
        self._observer = observer
        self._nodes = {"/": _Node(b"", 0, 0, clock_ms(), clock_ms())}
        self._creations = 0
        self._sessions: dict[int, SimCoordination] = {}
        self._opened = 0
        self._watches: list[_SimWatch] = []

    # -- sessions ------------------------------------------------------------------------------------------------

    def open_session(self, coordination: SimCoordination) -> int:
        with self.lock:
            self._opened += 1
            self._sessions[self._opened] = coordination
            return self._opened

    def end_session(self, session_id: int) -> None:
        """Removes the session's ephemeral paths and watches; its owner is not told."""
        with self.lock:
            if self._sessions.pop(session_id, None) is None:
                return
            self._watches = [watch for watch in self._watches if watch.session_id != session_id]
            owned = [path for path, node in self._nodes.items() if node.owner == session_id]
            self.apply([Delete(path) for path in owned], 0)

    def expire(self, session_id: int) -> None:
        """Ends the session as `end_session` does, and tells its owner."""
        with self.lock:
            owner = self._sessions.get(session_id)
            self.end_session(session_id)
        if owner is not None:
            owner.expired(session_id)

    def is_live(self, session_id: int) -> bool:
        return session_id in self._sessions

    # -- nodes ---------------------------------------------------------------------------------------------------

    def find(self, path: str) -> tuple[bytes, Stat] | None:
        with self.lock:
            node = self._nodes.get(path)
            return (node.data, node.stat()) if node is not None else None

    def children(self, path: str) -> list[str]:
        with self.lock:
            if path not in self._nodes:
                raise NoNodeError(f"{path} is not there")
            return sorted(self._nodes[path].children)

    def subtree(self, path: str) -> list[str]:
        """Returns the path and all paths below it, the deepest first."""
        found = [path]
        for name in sorted(self._nodes[path].children):
            found = self.subtree(f"{path.rstrip('/')}/{name}") + found
        return found

    def apply(self, operations: Sequence[Operation], session_id: int) -> None:
        """Applies all operations or none."""
        undo: list[Callable[[], object]] = []
        touched: dict[str, None] = {}
        with self.lock:
            try:
                for operation in operations:
                    self._apply_one(operation, session_id, undo, touched)
            except CoordinationError:
                for step in reversed(undo):
                    step()
                raise
            if self._observer is not None and operations:
                self._observer(operations)
            fired = [watch for watch in self._watches if watch.path in touched]
        for watch in fired:
            watch.fire()

    def _apply_one(
        self, operation: Operation, session_id: int, undo: list[Callable[[], object]], touched: dict[str, None]
    ) -> None:
        path = operation.path
        node = self._nodes.get(path)
        if isinstance(operation, Create):
            self._create(operation, node, session_id, undo)
            touched[path] = touched[parent_of(path)] = None
            return
        if node is None:
            raise NoNodeError(f"{path} is not there")
        if operation.version not in (ANY_VERSION, node.version):
            raise BadVersionError(f"{path} is at version {node.version}, not {operation.version}")
        if isinstance(operation, Set):
            before = (node.data, node.version, node.mtime_ms)
            undo.append(lambda: _restore(node, before))
            node.data, node.version, node.mtime_ms = operation.data, node.version + 1, self._clock_ms()
            touched[path] = None
        elif isinstance(operation, Delete):
            if node.children or path == "/":
                raise NotEmptyError(f"{path} has children")
            siblings, name = self._nodes[parent_of(path)].children, path.rpartition("/")[2]
            del self._nodes[path]
            siblings.discard(name)
            undo += [lambda: self._nodes.update({path: node}), lambda: siblings.add(name)]
            touched[path] = touched[parent_of(path)] = None
        else:
            assert isinstance(operation, Check)

    def _create(self, operation: Create, node: _Node | None, session_id: int, undo: list[Callable[[], object]]) -> None:
        path = operation.path
        if node is not None:
            raise NodeExistsError(f"{path} exists already")
        parent = self._nodes.get(parent_of(path))
        if parent is None:
            raise NoNodeError(f"the parent of {path} does not exist")
        if parent.owner:
            raise CoordinationError(f"{path} cannot be created below an ephemeral path")
        now, name = self._clock_ms(), path.rpartition("/")[2]
        self._creations += 1
        self._nodes[path] = _Node(operation.data, self._creations, session_id if operation.ephemeral else 0, now, now)
        parent.children.add(name)
        undo += [lambda: self._nodes.pop(path), lambda: parent.children.discard(name)]

    def make_parents(self, path: str, session_id: int) -> None:
        for above in ancestors(path):
            if above not in self._nodes:
                self.apply([Create(above)], session_id)

    # -- watches -------------------------------------------------------------------------------------------------

    def add_watch(self, watch: _SimWatch) -> None:
        with self.lock:
            self._watches.append(watch)

    def remove_watch(self, watch: _SimWatch) -> None:
        with self.lock:
            self._watches = [kept for kept in self._watches if kept is not watch]


def _restore(node: _Node, before: tuple[bytes, int, int]) -> None:
    node.data, node.version, node.mtime_ms = before


class _SimWatch:
    def __init__(self, tree: SimTree, session_id: int, path: str, callback: Callable[[], None]) -> None:
        self.session_id = session_id
        self.path = path
        self._tree = tree
        self._callback = callback

    def fire(self) -> None:
        try:
            self._callback()
        except Exception:  # a callback may raise any error; the others must still be called
            _log.exception("watch of %s failed", self.path)

    def cancel(self) -> None:
        self._tree.remove_watch(self)


class SimCoordination:
    """A client of the tree, with one session at a time. See `klamm.core.interfaces.coordination.Coordination`."""

    def __init__(self, tree: SimTree, session_timeout_s: float = 10.0) -> None:
        self._tree = tree
        self._session_id = 0
        self._expired = False
        self._timeout_s = session_timeout_s
        self._listeners: list[Callable[[SessionEvent], None]] = []

    def start(self, timeout_s: float = 10.0) -> None:
        if self._session_id == 0:
            self._open()

    def restart(self, timeout_s: float = 10.0) -> None:
        if self.session_id == 0:
            self._open()

    def _open(self) -> None:
        self._session_id = self._tree.open_session(self)
        self._expired = False
        self._tell(SessionEvent.CONNECTED)

    def close(self) -> None:
        session_id, self._session_id, self._expired = self._session_id, 0, False
        if session_id:
            self._tree.end_session(session_id)

    def expired(self, session_id: int) -> None:
        """Receives that the tree has ended the session."""
        if session_id == self._session_id:
            self._expired = True
            self._tell(SessionEvent.EXPIRED)

    @property
    def session_id(self) -> int:
        return 0 if self._expired else self._session_id

    @property
    def session_timeout_s(self) -> float:
        return self._timeout_s

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, make_parents: bool = False) -> Stat:
        check_path(path)
        check_size(path, len(data))
        session_id = self._live()
        with self._tree.lock:
            if make_parents:
                self._tree.make_parents(path, session_id)
            self._tree.apply([Create(path, data, ephemeral)], session_id)
            return self._stat(path)

    def get(self, path: str) -> tuple[bytes, Stat]:
        check_path(path)
        self._live()
        found = self._tree.find(path)
        if found is None:
            raise NoNodeError(f"{path} is not there")
        return found

    def exists(self, path: str) -> Stat | None:
        check_path(path)
        self._live()
        found = self._tree.find(path)
        return found[1] if found else None

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        check_path(path)
        check_size(path, len(data))
        with self._tree.lock:
            self._tree.apply([Set(path, data, version)], self._live())
            return self._stat(path)

    def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None:
        check_path(path)
        session_id = self._live()
        with self._tree.lock:
            if recursive and self._tree.find(path) is not None:
                below = self._tree.subtree(path)
                self._tree.apply([Check(path, version), *(Delete(node) for node in below)], session_id)
            else:
                self._tree.apply([Delete(path, version)], session_id)

    def children(self, path: str) -> list[str]:
        check_path(path)
        self._live()
        return self._tree.children(path)

    def transaction(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)
        self._tree.apply(operations, self._live())

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        check_path(path)
        watch = _SimWatch(self._tree, self._live(), path, callback)
        self._tree.add_watch(watch)
        return watch

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        self._listeners.append(callback)

    def _live(self) -> int:
        if self._expired:
            raise SessionExpiredError(f"session {self._session_id} has expired")
        if self._session_id == 0:
            raise CoordinationUnavailableError("the simulated coordination is closed")
        return self._session_id

    def _stat(self, path: str) -> Stat:
        found = self._tree.find(path)
        assert found is not None
        return found[1]

    def _tell(self, event: SessionEvent) -> None:
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:  # a listener may raise any error; the others must still be called
                _log.exception("session listener failed on %s", event.name)
