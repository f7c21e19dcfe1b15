"""The `zookeeper` coordination, the default: real sessions through kazoo.

The chroot of `zookeeper.connect` is put before every path, and created at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import ZnodeStat

from klamm.plugin import (
    ANY_VERSION,
    Check,
    CoordinationUnavailableError,
    Create,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    Stat,
    Watch,
)

from ..session_shell import SessionShell, paths_of
from ..tree_paths import ancestors, check_operations, check_path, check_size
from .config import ZooKeeperConfig
from .kazoo_session import KazooSession, PendingResult, read_many
from .watches import ZooKeeperWatches

_DELETE_ROUNDS = 10
_READS_AT_ONCE = 500
"""Paths in one request of `get_many`."""


class ZooKeeperCoordination(SessionShell):
    """Implements `klamm.core.interfaces.coordination.Coordination`."""

    def __init__(self, config: ZooKeeperConfig) -> None:
        super().__init__()
        self._config = config
        self._session: KazooSession | None = None
        self._watches: ZooKeeperWatches | None = None

    @property
    def session_id(self) -> int:
        session = self._session
        return session.session_id if session else 0

    @property
    def session_timeout_s(self) -> float:
        return self._config.session_timeout_ms / 1000

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, make_parents: bool = False) -> Stat:
        check_path(path)
        check_size(path, len(data))
        if make_parents:
            self._make_parents(path)
        create = partial(self._create, path, data, ephemeral=ephemeral)
        return self._create_until_known(path, create, ephemeral=ephemeral, timeout_s=self._config.request_timeout_s)

    def get(self, path: str) -> tuple[bytes, Stat]:
        check_path(path)
        data, stat = self._read(path, lambda zk: zk.get_async(self._full(path)))
        return data, _stat(stat)

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        for path in paths:
            check_path(path)
        found: list[tuple[bytes, Stat] | None] = []
        for first in range(0, len(paths), _READS_AT_ONCE):
            part = paths[first : first + _READS_AT_ONCE]
            full = [self._full(path) for path in part]
            nodes = self._read(f"{part[0]} and {len(part) - 1} more", partial(read_many, paths=full))
            found += [None if node is None else (node[0], _stat(node[1])) for node in nodes]
        return found

    def exists(self, path: str) -> Stat | None:
        check_path(path)
        stat = self._read(path, lambda zk: zk.exists_async(self._full(path)))
        return _stat(stat) if stat else None

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        check_path(path)
        check_size(path, len(data))
        return _stat(self._live().call(path, lambda zk: zk.set_async(self._full(path), data, version)))

    def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None:
        check_path(path)
        if not recursive:
            self._delete(path, version)
            return
        if version != ANY_VERSION:
            self.transaction([Check(path, version)])  # before anything below it is deleted
        for _ in range(_DELETE_ROUNDS):
            self._delete_below(path)
            try:
                self._delete(path, version)
            except NotEmptyError:
                continue  # a child was created in the meantime
            return
        raise NotEmptyError(f"{path} got new children during {_DELETE_ROUNDS} attempts to delete it")

    def children(self, path: str) -> list[str]:
        check_path(path)
        return sorted(self._read(path, lambda zk: zk.get_children_async(self._full(path))))

    def transaction(self, operations: Sequence[Operation]) -> None:
        check_operations(operations, prefix=len(self._config.chroot))
        if not operations:
            return
        paths = paths_of(operations)
        session = self._live()
        results = session.call(paths, lambda zk: self._request(zk, operations).commit_async())
        for operation, result in zip(operations, results, strict=True):
            # ZooKeeper marks the operations before the failed one as rolled back, and those after it as inconsistent.
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                raise session.refused(result, operation.path)

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        check_path(path)
        watches = self._watches
        if watches is None:
            raise self._closed()
        return watches.add(self._full(path), callback)

    @property
    def _is_open(self) -> bool:
        return self._session is not None

    def _open(self, timeout_s: float) -> None:
        self._drop()
        config = self._config
        session = KazooSession(config.hosts, self.session_timeout_s, config.request_timeout_s, self._notify)
        # Set before it opens, so that a listener that is called for the connection can read the session id.
        self._session, self._watches = session, ZooKeeperWatches(session)
        self._watches.start()
        try:
            session.open(timeout_s)
            if config.chroot:
                self._make_parents("/", itself=True)
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        session, watches = self._session, self._watches
        self._session = self._watches = None
        if session:
            session.close()
        if watches:
            watches.stop()

    def _opened(self) -> None:
        """kazoo's session calls the listeners itself."""

    def _live(self) -> KazooSession:
        session = self._session
        if session is None:
            raise self._closed()
        return session

    def _closed(self) -> CoordinationUnavailableError:
        return CoordinationUnavailableError(f"the connection to ZooKeeper at {self._config.hosts} is not open")

    def _full(self, path: str) -> str:
        return (self._config.chroot + path).rstrip("/") or "/"

    def _read(self, path: str, request: Callable[[KazooClient], PendingResult]) -> Any:
        return self._live().call(path, request, repeatable=True)

    def _create(self, path: str, data: bytes, *, ephemeral: bool) -> Stat:
        _, stat = self._live().call(
            path, lambda zk: zk.create_async(self._full(path), data, ephemeral=ephemeral, include_data=True)
        )
        return _stat(stat)

    def _make_parents(self, path: str, *, itself: bool = False) -> None:
        """Creates the paths above, the chroot included. A lost response does no harm, since the paths are empty."""
        full = self._full(path)
        for parent in [*ancestors(full), *([full] if itself else [])]:
            if self._read(parent, lambda zk, parent=parent: zk.exists_async(parent)):  # type: ignore[misc]
                continue
            try:
                self._live().call(parent, lambda zk, parent=parent: zk.create_async(parent), repeatable=True)  # type: ignore[misc]
            except NodeExistsError:
                continue

    def _delete(self, path: str, version: int) -> None:
        self._live().call(path, lambda zk: zk.delete_async(self._full(path), version))

    def _delete_below(self, path: str) -> None:
        for name in self.children(path):
            child = f"{path.rstrip('/')}/{name}"
            try:
                self._delete_below(child)
                self._delete(child, ANY_VERSION)
            except (NoNodeError, NotEmptyError):
                continue  # another process deletes too, or a child was created: the next round finds it

    def _request(self, zk: KazooClient, operations: Sequence[Operation]) -> TransactionRequest:
        request = zk.transaction()
        for operation in operations:
            full = self._full(operation.path)
            if isinstance(operation, Check):
                request.check(full, operation.version)
            elif isinstance(operation, Create):
                request.create(full, operation.data, ephemeral=operation.ephemeral)
            elif isinstance(operation, Set):
                request.set_data(full, operation.data, operation.version)
            else:
                request.delete(full, operation.version)
        return request


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.version, stat.czxid, stat.ephemeralOwner, stat.ctime, stat.mtime)
