"""A coordination in memory: it passes the contract suite, and the simulation decides when a session expires."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from klamm.core.errors import CoordinationError
from klamm.core.faults import fault_point
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
from klamm.plugins.coordination.tree_paths import (
    MOST_OPERATIONS,
    ancestors,
    check_operations,
    check_path,
    check_size,
    parent_of,
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Node:
    found: tuple[bytes, Stat]
    """Data and properties, replaced whole, so that they are read without the lock."""
    children: tuple[str, ...] = ()
    """The names, sorted."""


@dataclass(frozen=True)
class TreeCopy:
    """A backup of a tree, with the sessions of its time."""

    nodes: dict[str, tuple[tuple[bytes, Stat], tuple[str, ...]]]
    sessions: frozenset[int]
    creations: int


class SimTree:
    """The service: nodes, sessions and watches. `observer` sees each transaction that was applied, before watches."""

    def __init__(
        self, clock_ms: Callable[[], int], observer: Callable[[Sequence[Operation]], None] | None = None
    ) -> None:
        self.lock = threading.RLock()
        self._clock_ms = clock_ms
        self._observer = observer
        self._nodes = {"/": _Node((b"", Stat(0, 0, 0, clock_ms(), clock_ms())))}
        self._creations = 0
        self.changes = 0
        """The number of transactions that were applied: while it stays, every read has the same answer as before."""
        self._sessions: dict[int, SimCoordination | None] = {}
        """The owner of a session that only a backup has is not there."""
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
            if session_id not in self._sessions:
                return
            del self._sessions[session_id]
            self._watches = [watch for watch in self._watches if watch.session_id != session_id]
            owned = [path for path, node in self._nodes.items() if node.found[1].ephemeral_owner == session_id]
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

    # -- backups -------------------------------------------------------------------------------------------------

    def copy(self) -> TreeCopy:
        nodes = {path: (node.found, node.children) for path, node in self._nodes.items()}
        return TreeCopy(nodes, frozenset(self._sessions), self._creations)

    def restore(self, copy: TreeCopy) -> list[int]:
        """Puts the copy in the tree's place, as under clients that connect again: who has a session of the copy keeps
        it, with its watches, which are all called; any other session is over. Returns the sessions of the copy whose
        owners are gone.
        """
        for session_id in set(self._sessions) - copy.sessions:
            self.expire(session_id)
        with self.lock:
            self._nodes = {path: _Node(found, children) for path, (found, children) in copy.nodes.items()}
            self._creations = copy.creations
            self.changes += 1
            gone = sorted(copy.sessions - set(self._sessions))
            self._sessions |= dict.fromkeys(gone)
            fired = list(self._watches)
        for watch in fired:
            watch.fire()
        return gone

    # -- nodes ---------------------------------------------------------------------------------------------------

    def find(self, path: str) -> tuple[bytes, Stat] | None:
        node = self._nodes.get(path)
        return node.found if node is not None else None

    def children(self, path: str) -> list[str]:
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(f"{path} is not there")
        return list(node.children)

    def subtree(self, path: str) -> list[str]:
        """Returns the path and all paths below it, the deepest first."""
        found = [path]
        for name in self._nodes[path].children:
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
            if not operations:
                return
            self.changes += 1
            if self._observer is not None:
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
        before = node.found
        stat = before[1]
        if operation.version not in (ANY_VERSION, stat.version):
            raise BadVersionError(f"{path} is at version {stat.version}, not {operation.version}")
        if isinstance(operation, Set):
            undo.append(lambda: setattr(node, "found", before))
            changed = Stat(stat.version + 1, stat.creation_id, stat.ephemeral_owner, stat.ctime_ms, self._clock_ms())
            node.found = (operation.data, changed)
            touched[path] = None
        elif isinstance(operation, Delete):
            if node.children or path == "/":
                raise NotEmptyError(f"{path} has children")
            parent = self._nodes[parent_of(path)]
            siblings, name = parent.children, path.rpartition("/")[2]
            del self._nodes[path]
            parent.children = tuple(sibling for sibling in siblings if sibling != name)
            undo += [lambda: self._nodes.update({path: node}), lambda: setattr(parent, "children", siblings)]
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
        if parent.found[1].ephemeral_owner:
            raise CoordinationError(f"{path} cannot be created below an ephemeral path")
        now, siblings = self._clock_ms(), parent.children
        self._creations += 1
        owner = session_id if operation.ephemeral else 0
        self._nodes[path] = _Node((operation.data, Stat(0, self._creations, owner, now, now)))
        parent.children = tuple(sorted((*siblings, path.rpartition("/")[2])))
        undo += [lambda: self._nodes.pop(path), lambda: setattr(parent, "children", siblings)]

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

    @property
    def most_operations(self) -> int:
        return MOST_OPERATIONS

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, make_parents: bool = False) -> Stat:
        check_path(path)
        check_size(path, len(data))
        session_id = self._live()
        with self._writing(session_id):
            if make_parents:
                self._tree.make_parents(path, session_id)
            self._tree.apply([Create(path, data, ephemeral)], session_id)
            return self._stat(path)

    def get(self, path: str) -> tuple[bytes, Stat]:
        found = self._found(path)
        self._live()
        if found is None:
            raise NoNodeError(f"{path} is not there")
        return found

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        self._live()
        return [self._found(path) for path in paths]

    def exists(self, path: str) -> Stat | None:
        check_path(path)
        self._live()
        found = self._tree.find(path)
        return found[1] if found else None

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        check_path(path)
        check_size(path, len(data))
        session_id = self._live()
        with self._writing(session_id):
            self._tree.apply([Set(path, data, version)], session_id)
            return self._stat(path)

    def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None:
        check_path(path)
        session_id = self._live()
        with self._writing(session_id):
            if recursive and self._tree.find(path) is not None:
                below = self._tree.subtree(path)
                self._tree.apply([Check(path, version), *(Delete(node) for node in below)], session_id)
            else:
                self._tree.apply([Delete(path, version)], session_id)

    def children(self, path: str) -> list[str]:
        self._live()
        try:
            return self._tree.children(path)
        except NoNodeError:
            check_path(path)
            raise

    def transaction(self, operations: Sequence[Operation]) -> None:
        check_operations(operations)
        session_id = self._live()
        with self._writing(session_id):
            self._tree.apply(operations, session_id)

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        check_path(path)
        watch = _SimWatch(self._tree, self._live(), path, callback)
        self._tree.add_watch(watch)
        return watch

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        self._listeners.append(callback)

    @contextmanager
    def _writing(self, session_id: int) -> Iterator[None]:
        """Runs the block as one write of the session. Raises `SessionExpiredError` if it ends before the write."""
        fault_point("coordination.write")
        with self._tree.lock:
            if not self._tree.is_live(session_id):
                raise SessionExpiredError(f"session {session_id} has expired")
            yield
        fault_point("coordination.answered")

    def _found(self, path: str) -> tuple[bytes, Stat] | None:
        found = self._tree.find(path)
        if found is None:
            check_path(path)  # a path in the tree was checked when it was created
        return found

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
