"""The tree in an SQLite file: nodes, sessions and a log of changes. Each write is one `BEGIN IMMEDIATE` transaction.

Invariants: a node's parent exists; an ephemeral node has an owner in `sessions` and no children; `creation_id` comes
from one counter that only grows; every change adds the paths it touched to `changes`, which keeps the newest
`KEPT_CHANGES`.

A session is over when it was not renewed for its time-out, by the host's monotonic clock: all processes read the
same one, and nothing can set it. A session whose renewal lies in the future is over, too: the host was started again
since, and the clock with it.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_random_exponential

from klamm.plugin import (
    ANY_VERSION,
    BadVersionError,
    Check,
    CoordinationError,
    CoordinationUnavailableError,
    Create,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    SessionExpiredError,
    Set,
    Stat,
    fault_point,
)

from ..tree_paths import ancestors, parent_of
from .lock_holder import write_lock_holder

KEPT_CHANGES = 10_000
BUSY_TIMEOUT_S = 5.0
_IS_OVER = "(renewed_ms > :now_ms OR renewed_ms + timeout_ms <= :now_ms)"
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS nodes (path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL,
       version INTEGER NOT NULL, creation_id INTEGER NOT NULL, owner INTEGER NOT NULL,
       ctime_ms INTEGER NOT NULL, mtime_ms INTEGER NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS nodes_parent ON nodes (parent)",
    "CREATE INDEX IF NOT EXISTS nodes_owner ON nodes (owner) WHERE owner != 0",
    """CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, renewed_ms INTEGER NOT NULL,
       timeout_ms INTEGER NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS changes (seq INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL)",
    "INSERT OR IGNORE INTO counters VALUES ('creation_id', 0)",
    "INSERT OR IGNORE INTO nodes VALUES ('/', '', x'', 0, 0, 0, 0, 0)",
)


class FileLostError(CoordinationUnavailableError):
    """The file was removed, or replaced by another one: a process that opens it now would see another tree."""


def connect(path: Path) -> sqlite3.Connection:
    """Returns a connection whose commits are on disk when they return. The caller ensures that one thread at a time
    uses it."""
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA synchronous = FULL")
    return db


def _place(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _node(db: sqlite3.Connection, path: str) -> tuple[bytes, Stat] | None:
    row = db.execute(
        "SELECT data, version, creation_id, owner, ctime_ms, mtime_ms FROM nodes WHERE path = ?", (path,)
    ).fetchone()
    return (bytes(row[0]), Stat(*row[1:])) if row else None


@dataclass(frozen=True, slots=True)
class Clocks:
    """`wall`: seconds since 1970, for the times in a `Stat`. `monotonic`: seconds that are the same in all processes of
    the host and never decrease while it runs, for the sessions; they need not count the time in which the host was
    suspended, when no process could send a heartbeat."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic

    def now(self) -> Now:
        return Now(int(self.wall() * 1000), int(self.monotonic() * 1000))


class Now(NamedTuple):
    """The time of one transaction by both clocks, in ms."""

    wall_ms: int
    monotonic_ms: int


class WriteTransaction:
    """The tree inside one open transaction of one session. `now` was read after the lock was acquired, so no renewal
    of a session is later by the same clock."""

    def __init__(self, db: sqlite3.Connection, now: Now, session_id: int, waited_s: float) -> None:
        self.waited_s = waited_s
        """Seconds that this transaction waited for the lock."""
        self._db = db
        self._now = now
        self._now_ms = now.wall_ms
        self._session_id = session_id
        self._touched: list[tuple[str]] = []

    def stat(self, path: str) -> Stat:
        found = _node(self._db, path)
        if found is None:
            raise NoNodeError(f"{path} does not exist")
        return found[1]

    def apply(self, operation: Operation) -> None:
        """Applies one operation; its errors name the path."""
        if isinstance(operation, Create):
            self.create(operation.path, operation.data, ephemeral=operation.ephemeral)
        elif isinstance(operation, Set):
            self.set(operation.path, operation.data, operation.version)
        elif isinstance(operation, Check):
            self.check(operation.path, operation.version)
        else:
            self.delete(operation.path, operation.version)

    def check(self, path: str, version: int) -> None:
        found = self._db.execute("SELECT version FROM nodes WHERE path = ?", (path,)).fetchone()
        if found is None:
            raise NoNodeError(f"{path} does not exist")
        if version not in (ANY_VERSION, found[0]):
            raise BadVersionError(f"{path} is at version {found[0]}, not {version}")

    def create(self, path: str, data: bytes, *, ephemeral: bool) -> None:
        if path == "/" or self._db.execute("SELECT 1 FROM nodes WHERE path = ?", (path,)).fetchone():
            raise NodeExistsError(f"{path} already exists")
        parent = parent_of(path)
        owner = self._db.execute("SELECT owner FROM nodes WHERE path = ?", (parent,)).fetchone()
        if owner is None:
            raise NoNodeError(f"{path} cannot be created: its parent {parent} does not exist")
        if owner[0]:
            raise CoordinationError(f"{path} cannot be created: its parent {parent} is ephemeral")
        self._db.execute("UPDATE counters SET value = value + 1 WHERE name = 'creation_id'")
        self._db.execute(
            "INSERT INTO nodes VALUES (?, ?, ?, 0, (SELECT value FROM counters WHERE name = 'creation_id'), ?, ?, ?)",
            (path, parent, data, self._session_id if ephemeral else 0, self._now_ms, self._now_ms),
        )
        self._changed(path, parent)

    def make_parents(self, path: str) -> None:
        for parent in ancestors(path):
            if not self._db.execute("SELECT 1 FROM nodes WHERE path = ?", (parent,)).fetchone():
                self.create(parent, b"", ephemeral=False)

    def set(self, path: str, data: bytes, version: int) -> None:
        self.check(path, version)
        self._db.execute(
            "UPDATE nodes SET data = ?, version = version + 1, mtime_ms = ? WHERE path = ?", (data, self._now_ms, path)
        )
        self._changed(path)

    def delete(self, path: str, version: int) -> None:
        self.check(path, version)
        if path == "/":
            raise CoordinationError("/ cannot be deleted")
        if self._db.execute("SELECT 1 FROM nodes WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise NotEmptyError(f"{path} has children")
        self._remove(path)

    def delete_subtree(self, path: str, version: int) -> None:
        """Deletes `path` (checked against `version`) and all paths below it, the deepest first."""
        self.check(path, version)
        for (below,) in self._db.execute(
            "SELECT path FROM nodes WHERE substr(path, 1, ?) = ? ORDER BY length(path) DESC",
            (len(path) + 1, path + "/"),
        ).fetchall():
            self._remove(below)
        self.delete(path, ANY_VERSION)

    def open_session(self, timeout_ms: int) -> int:
        cursor = self._db.execute(
            "INSERT INTO sessions (renewed_ms, timeout_ms) VALUES (?, ?)", (self._now.monotonic_ms, timeout_ms)
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def renew_session(self, timeout_ms: int) -> None:
        """Extends the session. Raises `SessionExpiredError` if it was ended by time or by another process."""
        renewed = self._db.execute(
            "UPDATE sessions SET renewed_ms = ?, timeout_ms = ? WHERE id = ?",
            (self._now.monotonic_ms, timeout_ms, self._session_id),
        )
        if renewed.rowcount == 0:
            raise SessionExpiredError(f"session {self._session_id} has expired")

    def end_session(self, session_id: int) -> None:
        """Deletes the session and its ephemeral paths."""
        for (path,) in self._db.execute("SELECT path FROM nodes WHERE owner = ?", (session_id,)).fetchall():
            self._remove(path)
        self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))

    def end_expired_sessions(self) -> None:
        for (session_id,) in self._db.execute(
            f"SELECT id FROM sessions WHERE id != :own AND {_IS_OVER}",
            {"own": self._session_id, "now_ms": self._now.monotonic_ms},
        ).fetchall():
            self.end_session(session_id)

    def _remove(self, path: str) -> None:
        self._db.execute("DELETE FROM nodes WHERE path = ?", (path,))
        self._changed(path, parent_of(path))

    def _changed(self, *paths: str) -> None:
        self._touched += [(path,) for path in paths]

    def log_changes(self) -> None:
        """Writes the touched paths in one statement at the end: every statement lengthens the time that the lock is
        held."""
        if self._touched:
            self._db.executemany("INSERT INTO changes (path) VALUES (?)", self._touched)
            self._db.execute("DELETE FROM changes WHERE seq <= (SELECT max(seq) FROM changes) - ?", (KEPT_CHANGES,))


class EmbeddedTree:
    """The open file; thread-safe. One connection writes and one reads, each under its own lock: in WAL mode a reader
    never waits for a writer, so a process that is stopped during a write does not block readers."""

    def __init__(self, path: Path, clocks: Clocks) -> None:
        self._path = path
        self._clocks = clocks
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        with self._translated():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = connect(path)
            try:
                self._prepare()
                self._reader = connect(path)
                self._opened = _place(path)
            except BaseException:
                self._db.close()
                raise

    def check_file(self) -> None:
        """Raises `FileLostError` if the file was removed or replaced since it was opened, even though the open file
        can still be read and written."""
        with self._translated():
            try:
                found = _place(self._path)
            except FileNotFoundError:
                raise FileLostError(
                    f"coordination file {self._path} was removed: put it back, or stop all brokers, restore it, and "
                    "start them"
                ) from None
        if found != self._opened:
            raise FileLostError(
                f"coordination file {self._path} was replaced by another file: put the one back that was there, or "
                "stop all brokers and start them"
            )

    def close(self) -> None:
        with self._read_lock:
            self._reader.close()
        with self._write_lock:
            self._db.close()

    @contextmanager
    def write(self, session_id: int) -> Iterator[WriteTransaction]:
        """Runs the block as one transaction: all of it is committed, or nothing if it raises. The block holds the write
        lock of all processes, so it must do no other work and must not wait.

        Raises `CoordinationUnavailableError`, with the holder of the lock, if the lock is not free within
        `BUSY_TIMEOUT_S`.
        """
        begun = time.monotonic()
        if not self._write_lock.acquire(timeout=BUSY_TIMEOUT_S):
            raise self._held_by_another()
        try:
            with self._translated():
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    now = self._clocks.now()
                    transaction = WriteTransaction(self._db, now, session_id, time.monotonic() - begun)
                    yield transaction
                    transaction.log_changes()
                    fault_point("coordination.commit")
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
        finally:
            self._write_lock.release()

    def read(self, path: str) -> tuple[bytes, Stat] | None:
        with self._read_lock, self._translated():
            return _node(self._reader, path)

    def read_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        with self._read_lock, self._translated():
            return [_node(self._reader, path) for path in paths]

    def children(self, path: str) -> list[str] | None:
        """Returns the names in no particular order; None if `path` does not exist."""
        with self._read_lock, self._translated():
            rows = self._reader.execute("SELECT path FROM nodes WHERE path = ? OR parent = ?", (path, path)).fetchall()
        if (path,) not in rows:
            return None
        return [row[0].rpartition("/")[2] for row in rows if row[0] != path]

    def has_expired_sessions(self) -> bool:
        """Returns True if a session seemed expired when the clock was read; it may have been renewed since, which
        `end_expired_sessions` checks."""
        with self._read_lock, self._translated():
            now = {"now_ms": self._clocks.now().monotonic_ms}
            return self._reader.execute(f"SELECT 1 FROM sessions WHERE {_IS_OVER} LIMIT 1", now).fetchone() is not None

    @retry(
        retry=retry_if_exception_type(sqlite3.OperationalError),
        stop=stop_after_delay(BUSY_TIMEOUT_S),
        wait=wait_random_exponential(multiplier=0.01, max=0.2),
        reraise=True,
    )
    def _prepare(self) -> None:
        # The switch to WAL ignores the busy time-out, so two processes that open a new file at once may conflict here.
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            self._db.execute(statement)
        self._db.execute("COMMIT")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise self._held_by_another() from error
            raise CoordinationUnavailableError(f"coordination file {self._path}: {error}") from error
        except (sqlite3.Error, OSError) as error:
            raise CoordinationUnavailableError(f"coordination file {self._path}: {error}") from error

    def _held_by_another(self) -> CoordinationUnavailableError:
        holder = write_lock_holder(self._path)
        return CoordinationUnavailableError(
            f"coordination file {self._path}: database is locked, for {BUSY_TIMEOUT_S:g} s or more, {holder}"
        )
