"""Transactions, checked against what was read and carried out only if nothing of it has changed since.

etcd's own transactions know neither the order of operations nor parents. So all nodes that the operations depend on are
read at one revision, the operations are applied to them here, in order, and the result is written on the condition that
each of these keys still has the mod revision that it was read with. If not, all is read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from klamm.plugin import (
    ANY_VERSION,
    BadVersionError,
    Check,
    CoordinationError,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    Stat,
)

from ..tree_paths import parent_of
from .nodes import EtcdKeys, EtcdNode, KeyValue, Request, StoredNode, value


@dataclass(frozen=True, slots=True)
class _Draft:
    """A node while the operations are applied. `version` is -1 if it was not read, because nothing depends on it;
    creation id 0: created by this transaction. `data` is None if the node's data do not change."""

    data: bytes | None
    version: int
    creation_id: int
    lease: int
    ctime_ms: int


@dataclass(frozen=True, slots=True)
class EtcdSnapshot:
    """The data that a transaction depends on, at one revision: its nodes by path, and the names below each path that
    it deletes."""

    revision: int
    nodes: dict[str, StoredNode | None]
    children: dict[str, set[str]]


@dataclass(frozen=True, slots=True)
class EtcdPlan:
    """What to send: the conditions, and the writes (none if the operations only check)."""

    compares: list[Request]
    writes: list[Request]
    drafts: dict[str, _Draft | None]
    touched: list[str]
    now_ms: int

    def stored(self, path: str, revision: int) -> StoredNode | None:
        """Returns the node as it is when the plan was carried out at `revision`; None if it was deleted."""
        draft = self.drafts[path]
        if draft is None:
            return None
        return StoredNode(revision, draft.lease, draft.version, draft.creation_id or revision, draft.ctime_ms)


@dataclass(frozen=True, slots=True)
class EtcdWrite:
    """A plan that was carried out."""

    plan: EtcdPlan
    revision: int

    def stat(self, path: str) -> Stat:
        """Returns the properties of a path that was created or set."""
        node = self.plan.stored(path, self.revision)
        assert node is not None
        return Stat(node.version, node.creation_id, node.lease, node.ctime_ms, self.plan.now_ms)


class EtcdTransaction:
    """The operations of one transaction. `missing`: paths, from the top down, that are created before them unless
    they exist."""

    def __init__(self, keys: EtcdKeys, operations: Sequence[Operation], missing: Sequence[str] = ()) -> None:
        self._keys = keys
        self._operations = operations
        self._missing = missing
        self.created = [operation.path for operation in operations if isinstance(operation, Create)]
        named = [operation.path for operation in operations]
        self.paths = list(dict.fromkeys([*missing, *named, *map(parent_of, [*missing, *self.created])]))
        self.deleted = list(dict.fromkeys(one.path for one in operations if isinstance(one, Delete)))
        self.valued = {
            operation.path
            for operation in operations
            if not isinstance(operation, Create) and (isinstance(operation, Set) or operation.version != ANY_VERSION)
        }
        """Paths whose values are needed, not only their existence."""

    def ranges(self) -> list[Request]:
        """Returns what must be read: each node, with its value if that is needed, and then as many children of each
        deleted path as decide whether any remain."""
        nodes: list[Request] = [
            {"key": self._keys.node(path), "keys_only": path not in self.valued} for path in self.paths
        ]
        below = Counter(map(parent_of, self.deleted))
        return nodes + [
            {**self._keys.children(path), "keys_only": True, "limit": below[path] + 1} for path in self.deleted
        ]

    def snapshot(self, found: Sequence[Sequence[KeyValue]], revision: int) -> EtcdSnapshot:
        """Returns the keys that were `found` for `ranges` at `revision`."""
        nodes = {path: _stored(path, kvs[0]) if kvs else None for path, kvs in zip(self.paths, found, strict=False)}
        children = {
            path: {self._keys.name(kv["key"]) for kv in kvs}
            for path, kvs in zip(self.deleted, found[len(self.paths) :], strict=True)
        }
        return EtcdSnapshot(revision, nodes, children)

    def plan(self, snapshot: EtcdSnapshot, lease: int, now_ms: int) -> EtcdPlan:
        """Returns what to write. Raises the error of the first operation that fails."""
        drafts = _Drafts(
            {path: None if node is None else _draft(node) for path, node in snapshot.nodes.items()},
            {path: set(names) for path, names in snapshot.children.items()},
            lease,
            now_ms,
        )
        for path in self._missing:
            if drafts.nodes[path] is None:
                drafts.create(Create(path))
        for operation in self._operations:
            drafts.apply(operation)
        compares: list[Request] = [
            {"key": self._keys.node(path), "target": "MOD", "mod_revision": str(node.mod_revision if node else 0)}
            for path, node in snapshot.nodes.items()
        ]
        for path in self.deleted:  # no child has come since
            range_, next_revision = self._keys.children(path), str(snapshot.revision + 1)
            compares.append({**range_, "target": "CREATE", "result": "LESS", "create_revision": next_revision})
        writes = [self._write(path, drafts.nodes[path], now_ms) for path in drafts.touched]
        return EtcdPlan(compares, writes, drafts.nodes, list(drafts.touched), now_ms)

    def _write(self, path: str, draft: _Draft | None, now_ms: int) -> Request:
        key = self._keys.node(path)
        if draft is None:
            return {"request_delete_range": {"key": key}}
        assert draft.data is not None  # a touched node has been created or set
        text = value(draft.data, draft.version, draft.creation_id, draft.ctime_ms, now_ms)
        return {"request_put": {"key": key, "value": text, "lease": str(draft.lease)}}


def _stored(path: str, kv: KeyValue) -> StoredNode:
    if "value" not in kv:
        return StoredNode(int(kv["mod_revision"]), int(kv.get("lease", 0)))
    return EtcdNode.parse(path, kv).stored


def _draft(node: StoredNode) -> _Draft:
    return _Draft(None, node.version, node.creation_id, node.lease, node.ctime_ms)


class _Drafts:
    """The nodes that a transaction depends on, to which its operations are applied in order. `children`: the names
    below each path that is deleted."""

    def __init__(
        self, nodes: dict[str, _Draft | None], children: dict[str, set[str]], session_id: int, now_ms: int
    ) -> None:
        self.nodes = nodes
        self.touched: dict[str, None] = {}
        self._children = children
        self._session_id = session_id
        self._now_ms = now_ms

    def apply(self, operation: Operation) -> None:
        """Applies one operation; its errors name the path."""
        if isinstance(operation, Create):
            self.create(operation)
            return
        node = self._check(operation.path, operation.version)
        if isinstance(operation, Set):
            self._put(operation.path, replace(node, data=operation.data, version=node.version + 1))
        elif isinstance(operation, Delete):
            self._delete(operation.path)
        else:
            assert isinstance(operation, Check)

    def create(self, operation: Create) -> None:
        path, parent = operation.path, parent_of(operation.path)
        if self.nodes[path] is not None:
            raise NodeExistsError(f"{path} already exists")
        above = self.nodes[parent]
        if above is None:
            raise NoNodeError(f"{path} cannot be created: its parent {parent} does not exist")
        if above.lease:
            raise CoordinationError(f"{path} cannot be created: its parent {parent} is ephemeral")
        self._put(path, _Draft(operation.data, 0, 0, self._session_id if operation.ephemeral else 0, self._now_ms))
        self._children.get(parent, set()).add(path.rpartition("/")[2])

    def _check(self, path: str, version: int) -> _Draft:
        node = self.nodes[path]
        if node is None:
            raise NoNodeError(f"{path} does not exist")
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(f"{path} is at version {node.version}, not {version}")
        return node

    def _delete(self, path: str) -> None:
        if path == "/":
            raise CoordinationError("/ cannot be deleted")
        if self._children[path]:
            raise NotEmptyError(f"{path} has children")
        self.nodes[path] = None
        self.touched[path] = None
        self._children.get(parent_of(path), set()).discard(path.rpartition("/")[2])

    def _put(self, path: str, node: _Draft) -> None:
        self.nodes[path] = node
        self.touched[path] = None
