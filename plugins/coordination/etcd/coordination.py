"""The `etcd` coordination: the tree in etcd's flat keys, sessions as leases."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from klamm.plugin import (
    ANY_VERSION,
    BadVersionError,
    CoordinationError,
    CoordinationUnavailableError,
    Create,
    Delete,
    NoNodeError,
    Operation,
    SessionEvent,
    SessionExpiredError,
    Set,
    Stat,
    Watch,
)

from ..session_shell import SessionShell, paths_of
from ..tree_paths import MOST_OPERATIONS, ancestors, check_operations, check_path, check_size
from .config import EtcdConfig
from .known_nodes import KnownNodes
from .nodes import EtcdKeys, EtcdNode, Request
from .session import EtcdSession
from .transactions import EtcdPlan, EtcdSnapshot, EtcdTransaction, EtcdWrite

_READS_AT_ONCE = 500
_LEVELS_AT_ONCE = 8
_LONGEST_PAUSE_S = 0.01


class EtcdCoordination(SessionShell):
    """Implements `klamm.core.interfaces.coordination.Coordination`."""

    def __init__(self, config: EtcdConfig) -> None:
        super().__init__()
        self._config = config
        self._keys = EtcdKeys(config.etcd_prefix)
        self._known = KnownNodes()
        self._session: EtcdSession | None = None

    @property
    def session_id(self) -> int:
        session = self._session
        return session.session_id if session else 0

    @property
    def session_timeout_s(self) -> float:
        return self._config.session_timeout_s

    @property
    def most_operations(self) -> int:
        session = self._session
        return session.most_operations if session else MOST_OPERATIONS

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, make_parents: bool = False) -> Stat:
        check_path(path)
        check_size(path, len(data))
        operation = Create(path, data, ephemeral)
        missing = ancestors(path) if make_parents else ()
        return self._create_until_known(
            path,
            lambda: self._apply([operation], path, missing).stat(path),
            ephemeral=ephemeral,
            timeout_s=self._config.request_timeout_s,
        )

    def get(self, path: str) -> tuple[bytes, Stat]:
        node = self._node(path)
        if node is None:
            raise NoNodeError(f"{path} does not exist")
        return node.data, node.stat

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        for path in paths:
            check_path(path)
        session = self._live()
        at_once = min(_READS_AT_ONCE, session.most_operations)
        found: list[tuple[bytes, Stat] | None] = []
        for first in range(0, len(paths), at_once):
            part = paths[first : first + at_once]
            what = f"{part[0]} and {len(part) - 1} more"
            _, kvs = session.read([{"key": self._keys.node(path)} for path in part], what)
            nodes = [EtcdNode.parse(path, one[0]) if one else None for path, one in zip(part, kvs, strict=True)]
            self._known.note({path: node.stored if node else None for path, node in zip(part, nodes, strict=True)})
            found += [(node.data, node.stat) if node is not None else None for node in nodes]
        return found

    def exists(self, path: str) -> Stat | None:
        node = self._node(path)
        return node.stat if node is not None else None

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        check_path(path)
        check_size(path, len(data))
        return self._apply([Set(path, data, version)], path).stat(path)

    def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None:
        check_path(path)
        if recursive:
            self._delete_subtree(path, version)
        else:
            self._apply([Delete(path, version)], path)

    def children(self, path: str) -> list[str]:
        check_path(path)
        node = {"key": self._keys.node(path), "keys_only": True}
        _, (found, below) = self._live().read([node, {**self._keys.children(path), "keys_only": True}], path)
        if not found:
            raise NoNodeError(f"{path} does not exist")
        return sorted(self._keys.name(kv["key"]) for kv in below)

    def transaction(self, operations: Sequence[Operation]) -> None:
        session = self._live()
        check_operations(operations, session.most_operations)
        if operations:
            self._apply(operations, paths_of(operations))

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        check_path(path)
        return self._live().watches.add(path, callback)

    @property
    def _is_open(self) -> bool:
        return self._session is not None

    def _open(self, timeout_s: float) -> None:
        self._drop()
        deadline, left_s = time.monotonic() + timeout_s, timeout_s
        while True:
            # Set before it opens, so that a listener that is called for the connection can read the session id.
            session = self._session = EtcdSession(self._config, self._keys, self._notify)
            try:
                session.open(left_s)
                break
            except BaseException as error:
                self._session = None
                left_s = deadline - time.monotonic()
                if not isinstance(error, SessionExpiredError) or left_s <= 0:
                    raise

    def _opened(self) -> None:
        self._notify(SessionEvent.CONNECTED)

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session:
            session.close()

    def _notify(self, event: SessionEvent) -> None:
        self._known.clear()  # each event comes with a connection that was lost, or a new one
        super()._notify(event)

    def _live(self) -> EtcdSession:
        session = self._session
        if session is None:
            raise CoordinationUnavailableError(f"the connection to etcd at {self._config.addresses} is not open")
        session.check_live(f"etcd at {self._config.addresses}")
        return session

    def _node(self, path: str) -> EtcdNode | None:
        check_path(path)
        _, (found,) = self._live().read([{"key": self._keys.node(path)}], path)
        node = EtcdNode.parse(path, found[0]) if found else None
        self._known.note({path: node.stored if node else None})
        return node

    def _apply(self, operations: Sequence[Operation], what: str, missing: Sequence[str] = ()) -> EtcdWrite:
        """Carries out the operations: first on the nodes as they are known from earlier requests, then as they are
        read, again while they change between the read and the write."""
        session = self._live()
        transaction = EtcdTransaction(self._keys, operations, missing)
        if (guess := self._known.guess(transaction)) and (write := self._try(session, transaction, guess, what)):
            return write
        deadline = time.monotonic() + self._config.request_timeout_s
        while True:
            revision, found = session.read(transaction.ranges(), what)
            snapshot = transaction.snapshot(found, revision)
            self._known.note(snapshot.nodes)
            plan = transaction.plan(snapshot, session.lease, _now_ms())
            if not plan.writes:
                return EtcdWrite(plan, revision)
            if write := self._commit(session, plan, what):
                return write
            _pause(what, deadline)

    def _try(
        self, session: EtcdSession, transaction: EtcdTransaction, guess: EtcdSnapshot, what: str
    ) -> EtcdWrite | None:
        """Carries out the operations on a guess. Returns None if it was wrong, or if too little is known to tell."""
        try:
            plan = transaction.plan(guess, session.lease, _now_ms())
        except CoordinationError:  # perhaps it is not so any more
            return None
        return self._commit(session, plan, what) if plan.writes else None

    def _commit(self, session: EtcdSession, plan: EtcdPlan, what: str) -> EtcdWrite | None:
        revision = session.commit(plan.compares, plan.writes, what)
        if revision is None:
            return None
        write = EtcdWrite(plan, revision)
        self._known.note_write(write)
        return write

    def _delete_subtree(self, path: str, version: int) -> None:
        """Deletes each level below as one range of keys, on the condition that there is no deeper one."""
        if path == "/":
            raise CoordinationError("/ cannot be deleted")
        session = self._live()
        deadline = time.monotonic() + self._config.request_timeout_s
        while True:
            node, depth = self._node(path), self._depth_below(session, path)
            if node is None:
                raise NoNodeError(f"{path} does not exist")
            if version not in (ANY_VERSION, node.stat.version):
                raise BadVersionError(f"{path} is at version {node.stat.version}, not {version}")
            key = self._keys.node(path)
            compares: list[Request] = [
                {"key": key, "target": "MOD", "mod_revision": str(node.mod_revision)},
                {**self._keys.below(path, depth + 1), "target": "CREATE", "create_revision": "0"},
            ]
            ranges = [{"key": key}, *(self._keys.below(path, level) for level in range(1, depth + 1))]
            if session.commit(compares, [{"request_delete_range": one} for one in ranges], path) is not None:
                return
            _pause(path, deadline)

    def _depth_below(self, session: EtcdSession, path: str) -> int:
        """Returns the number of levels below `path`."""
        depth = 0
        while True:
            levels = range(depth + 1, depth + 1 + _LEVELS_AT_ONCE)
            ranges = [{**self._keys.below(path, level), "keys_only": True, "limit": 1} for level in levels]
            _, found = session.read(ranges, path)
            for kvs in found:
                if not kvs:
                    return depth
                depth += 1


def _now_ms() -> int:
    return int(time.time() * 1000)


def _pause(what: str, deadline: float) -> None:
    """Waits a moment before the next try, so that one of several writers comes first."""
    if time.monotonic() > deadline:
        raise CoordinationUnavailableError(f"{what}: not written, since others changed it at every try")
    time.sleep(random.uniform(0, _LONGEST_PAUSE_S))
