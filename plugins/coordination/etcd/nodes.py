"""Keys and values: how a path and its properties are stored in etcd.

The node `/a/b` is the key `<prefix>/2/a/b`: the depth comes first, so that the children of a path, without deeper
nodes, are one range of keys. The value begins with a line of four numbers, `version creation_id ctime_ms mtime_ms`,
and the data follow. Creation id 0 means the key's own mod revision, which the write that created the node could not
know. etcd's own version and create revision are not used: a transaction that deletes a path and creates it again is
one put of its key, which does not reset them, while the node's start again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from klamm.plugin import CoordinationError, Stat

KeyValue = Mapping[str, Any]
"""A key with its properties in a response; numbers are strings, bytes are in base64."""
Request = dict[str, Any]
"""A part of a request, in the form of etcd's JSON gateway."""


def encoded(data: bytes) -> str:
    return b64encode(data).decode("ascii")


class EtcdKeys:
    """The keys below one prefix, in base64."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def node(self, path: str) -> str:
        return encoded(self._node(path))

    def children(self, path: str) -> Request:
        """Returns the range of the keys of all children."""
        return self.below(path, 1)

    def below(self, path: str, levels: int) -> Request:
        """Returns the range of the keys of all nodes that are the given number of levels below `path`."""
        depth = _depth(path) + levels
        above = f"{self._prefix}/{depth}{path.rstrip('/')}"
        return {"key": encoded(f"{above}/".encode()), "range_end": encoded(f"{above}0".encode())}

    def session(self, session_id: int) -> str:
        return encoded(f"{self._prefix}/session/{session_id:x}".encode())

    def everything(self) -> Request:
        return {"key": encoded(f"{self._prefix}/".encode()), "range_end": encoded(f"{self._prefix}0".encode())}

    def path(self, key: str) -> str | None:
        """Returns the path whose key this is; None for the key of a session."""
        rest = b64decode(key).decode()[len(self._prefix) + 1 :]
        depth, slash, path = rest.partition("/")
        return slash + path if depth.isdecimal() else None

    def is_new(self, kv: KeyValue) -> bool:
        """Returns whether the last write of the key created its node."""
        return b64decode(kv.get("value", "")).partition(b"\n")[0].split()[1:2] == [b"0"]

    def name(self, key: str) -> str:
        """Returns the last part of the path."""
        return b64decode(key).decode().rpartition("/")[2]

    def _node(self, path: str) -> bytes:
        return f"{self._prefix}/{_depth(path)}{path}".encode()


def _depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


@dataclass(frozen=True, slots=True)
class StoredNode:
    """The properties of a stored node that a write depends on. `version` is -1 if only the key was read, not its
    value."""

    mod_revision: int
    lease: int
    version: int = -1
    creation_id: int = 0
    ctime_ms: int = 0


@dataclass(frozen=True, slots=True)
class EtcdNode:
    """A node as it was read."""

    data: bytes
    stat: Stat
    mod_revision: int

    @classmethod
    def parse(cls, path: str, kv: KeyValue) -> EtcdNode:
        """Parses a value. Raises `CoordinationError` for one that Klamm has not written."""
        header, newline, data = b64decode(kv.get("value", "")).partition(b"\n")
        try:
            version, creation_id, ctime_ms, mtime_ms = map(int, header.split())
        except ValueError:
            newline = b""
        if not newline:
            raise CoordinationError(f"{path}: its key in etcd was not written by Klamm; choose another `etcd.prefix`")
        mod_revision = int(kv["mod_revision"])
        stat = Stat(version, creation_id or mod_revision, int(kv.get("lease", 0)), ctime_ms, mtime_ms)
        return cls(data, stat, mod_revision)

    @property
    def stored(self) -> StoredNode:
        stat = self.stat
        return StoredNode(self.mod_revision, stat.ephemeral_owner, stat.version, stat.creation_id, stat.ctime_ms)


def value(data: bytes, version: int, creation_id: int, ctime_ms: int, mtime_ms: int) -> str:
    return encoded(b"%d %d %d %d\n%b" % (version, creation_id, ctime_ms, mtime_ms, data))
