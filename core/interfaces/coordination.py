"""The coordination interface: the operations that the Kafka paper needs of ZooKeeper, and conditional writes (design
D5).

Blocking and thread-safe: the broker calls it from worker threads, clients from theirs. Callbacks (watches, session
events) run on a thread of the implementation, must return at once, and may not call methods of the coordination. A
coordination that fails at start stops the broker; one that becomes unavailable later raises
`CoordinationUnavailableError`.

Reads of one session see its own writes and never go back. If the service has several servers (a ZooKeeper ensemble),
a session may see the writes of another session later than that session itself sees them: a conditional write or a
watch decides, not a read.
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
    """The path, or the parent of one to be created, does not exist."""


class NodeExistsError(CoordinationError):
    """The path already exists."""


class BadVersionError(CoordinationError):
    """The node's version is not the one that the write requires."""


class NotEmptyError(CoordinationError):
    """The path to be deleted has children."""


class SessionExpiredError(CoordinationError):
    """The session has ended: its ephemeral paths are deleted; call `restart` for a new one and register again."""


class CoordinationUnavailableError(CoordinationError):
    """No answer arrived in time: the write may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Stat:
    """The properties of a path. `creation_id` grows over all creations (ZooKeeper's czxid; those of one transaction may
    share it): a broker's epoch or a group's generation. `ephemeral_owner` is the session id, 0 for a persistent path.
    Times in ms since the epoch.
    """

    version: int
    creation_id: int
    ephemeral_owner: int
    ctime_ms: int
    mtime_ms: int


@dataclass(frozen=True, slots=True)
class Check:
    """Checks that the path exists, at this version of its data (`ANY_VERSION`: at any)."""

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
    """A session is up, a new one or the earlier one again. It was renewed at most two thirds of its time-out ago."""
    SUSPENDED = "suspended"
    """The connection is lost; the session, and its ephemeral paths, may come back."""
    EXPIRED = "expired"
    """The session has ended; ephemeral paths are deleted; every operation fails until `restart`."""


class Watch(Protocol):
    def cancel(self) -> None:
        """Cancels the watch: no callback starts after this returns (one may be running)."""
        ...


class Coordination(Protocol):
    """A tree of small nodes (data ≤ 1 MB) with ephemeral paths, watches and transactions. Paths begin with `/`."""

    def start(self, timeout_s: float = 10.0) -> None:
        """Opens a session. Raises `CoordinationUnavailableError` in one line (address, what to do) if it cannot be
        opened.
        """
        ...

    def restart(self, timeout_s: float = 10.0) -> None:
        """Opens a new session after `SessionEvent.EXPIRED`; watches set before are void. Does nothing while a
        session is live: if several users share the object, the first that learns of the expiry restarts it."""
        ...

    def close(self) -> None:
        """Ends the session at once: its ephemeral paths are deleted."""
        ...

    @property
    def session_id(self) -> int:
        """The id of the live session; 0 when there is none. Compare it with `Stat.ephemeral_owner`."""
        ...

    @property
    def session_timeout_s(self) -> float: ...

    @property
    def most_operations(self) -> int:
        """The most operations of one transaction. More raise `CoordinationError`, as too much data does, with the
        code MESSAGE_TOO_LARGE. It may depend on the server, so read it after `start`."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, make_parents: bool = False) -> Stat: ...

    def get(self, path: str) -> tuple[bytes, Stat]: ...

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        """Returns data and properties of each path, in the order of `paths`; None for a path that does not exist.
        Costs few round trips, whatever the number of paths. It is no snapshot: each path is read at its own time."""
        ...

    def exists(self, path: str) -> Stat | None: ...

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat: ...

    def delete(self, path: str, version: int = ANY_VERSION, *, recursive: bool = False) -> None: ...

    def children(self, path: str) -> list[str]:
        """Returns the names, sorted. Raises `NoNodeError` if the path does not exist."""
        ...

    def transaction(self, operations: Sequence[Operation]) -> None:
        """Carries out all operations or none, in order; raises the error of the first one that fails, with its path
        in the message. A success shows that the session was renewed at the earliest a third of its time-out before
        the call, so that it lives for another two thirds of its time-out; `create`, `set` and `delete` show the
        same."""
        ...

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Calls back, without arguments, after *any* change to the path (created, deleted, data) or its list of
        children, and after a reconnect. Level, not edge: callbacks may be merged or spurious, never lost; the
        callback's owner reads again.
        """
        ...

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None: ...
