"""The coordination interface: what the Kafka paper needs of ZooKeeper, and conditional writes (design D5).

Blocking and thread-safe: the broker calls it from worker threads, clients from theirs. Callbacks (watches, session
events) come on a thread of the implementation, must return at once, and may not call methods of the coordination.
A coordination that fails at start stops the broker; one that goes away later raises `CoordinationUnavailableError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ..errors import CoordinationError

__all__ = [
    "ANY_VERSION",
    "BadVersionError",
    "Check",
    "Coordination",
    "CoordinationUnavailableError",
    "Create",
    "Delete",
    "NoNodeError",
    "NodeExistsError",
    "NotEmptyError",
    "Operation",
    "SessionEvent",
    "SessionExpiredError",
    "Set",
    "Stat",
    "Watch",
]

ANY_VERSION = -1


class NoNodeError(CoordinationError):
    """The path, or the parent of one to be created, is not there."""


class NodeExistsError(CoordinationError):
    """The path is there already."""


class BadVersionError(CoordinationError):
    """The node's version is not the one that the write asked for."""


class NotEmptyError(CoordinationError):
    """The path to be deleted has children."""


class SessionExpiredError(CoordinationError):
    """The session is over: its ephemeral paths are gone; call `restart` for a new one and register again."""


class CoordinationUnavailableError(CoordinationError):
    """No answer in time: the write may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of a path. `creation_id` grows over all creations (ZooKeeper's czxid; those of one transaction may
    share it): a broker's epoch or a group's generation. `ephemeral_owner` is the session id, 0 for a persistent path.
    Times in ms since the epoch."""

    version: int
    creation_id: int
    ephemeral_owner: int
    ctime_ms: int
    mtime_ms: int


@dataclass(frozen=True, slots=True)
class Check:
    """The path is there, at this version of its data (`ANY_VERSION`: at any)."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


Operation = Check | Create | Set | Delete


class SessionEvent(Enum):
    CONNECTED = "connected"
    """A session is up, new or the old one resumed."""
    SUSPENDED = "suspended"
    """The connection is gone; the session, and its ephemeral paths, may come back."""
    EXPIRED = "expired"
    """The session is over; ephemeral paths are gone; nothing works until `restart`."""


class Watch(Protocol):
    def cancel(self) -> None:
        """No callback starts after this returns (one may be running)."""
        ...


class Coordination(Protocol):
    """A tree of small nodes (data ≤ 1 MB) with ephemeral paths, watches and transactions. Paths begin with `/`."""

    def start(self, timeout_s: float = 10.0) -> None:
        """Open a session; `CoordinationUnavailableError` in one line (address, what to do) when it does not come up."""
        ...

    def restart(self, timeout_s: float = 10.0) -> None:
        """A new session after `SessionEvent.EXPIRED`; watches set before are gone. Nothing while a session is live: of
        several users of one object, the first to hear of the expiry has restarted it."""
        ...

    def close(self) -> None:
        """End the session at once: its ephemeral paths go."""
        ...

    @property
    def session_id(self) -> int:
        """Of the live session; 0 when there is none. Compare with `Stat.ephemeral_owner`."""
        ...

    @property
    def session_timeout_s(self) -> float: ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, make_parents: bool = False) -> Stat: ...

    def get(self, path: str) -> tuple[bytes, Stat]: ...

    def exists(self, path: str) -> Stat | None: ...

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat: ...

    def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None: ...

    def children(self, path: str) -> list[str]:
        """Returns the names, sorted. Raises `NoNodeError` if the path does not exist."""
        ...

    def transaction(self, operations: Sequence[Operation]) -> None:
        """All or none, in order; raises the error of the first operation that fails, with its path in the message."""
        ...

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call back, with nothing, after *any* change to the path (made, deleted, data) or its list of children, and
        after a reconnect. Level, not edge: callbacks may be merged or spurious, never lost; the callee reads again."""
        ...

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None: ...
