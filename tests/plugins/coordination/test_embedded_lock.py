"""A process that is stopped (SIGSTOP) within a commit has the one lock of the tree: what the others do meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.core.interfaces.coordination import CoordinationUnavailableError, SessionEvent
from klamm.plugins.coordination.embedded import tree as embedded_tree
from klamm.plugins.coordination.embedded.coordination import EmbeddedCoordination
from klamm.plugins.coordination.embedded.lock_holder import write_lock_holder
from klamm.plugins.coordination.embedded.tree import EmbeddedTree
from klamm.testing.contracts import SessionEvents
from klammtest.guarantees import guarantee
from klammtest.waiting import eventually
from klammtest.zookeeper import EmbeddedCase

SESSION_MS = 2000
WRITER = """
import sys
from pathlib import Path
from klamm.core.faults import ScriptedFaults, install
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
coordination = EmbeddedCoordination(EmbeddedConfig(path=Path(sys.argv[1]), session_timeout_ms=int(sys.argv[2])))
coordination.start()
install(ScriptedFaults("coordination.commit=stop"))
coordination.create("/by-the-stopped", ephemeral=True)
print("committed", flush=True)
sys.stdin.readline()
coordination.close()
"""


class Stopped:
    """A process that has stopped itself within a commit."""

    def __init__(self, tree: Path, session_ms: int) -> None:
        command = [sys.executable, "-c", WRITER, str(tree), str(session_ms)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        eventually(lambda: f"by process {self.pid} " in write_lock_holder(tree), "it holds the lock", 60)
        eventually(lambda: "is stopped" in write_lock_holder(tree), "it is stopped", 60)

    def go_on(self) -> None:
        """Returns when it has committed."""
        os.kill(self.pid, signal.SIGCONT)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "committed\n"

    def end(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._process.kill()
        self._process.communicate()


@contextmanager
def stopped_within_a_commit(folder: Path, session_ms: int = 60_000) -> Iterator[Stopped]:
    stopped = Stopped(folder / "coordination.db", session_ms)
    try:
        yield stopped
    finally:
        stopped.end()


def name_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(embedded_tree, "write_lock_holder", lambda _: "")


@guarantee("D16", "who waits for the embedded tree's lock is told which process holds it", plant=name_nobody)
def test_the_holder_is_named(embedded_case: EmbeddedCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_tree, "BUSY_TIMEOUT_S", 0.5)
    coordination = embedded_case.open(session_timeout_ms=60_000)
    with stopped_within_a_commit(tmp_path) as stopped:
        with pytest.raises(CoordinationUnavailableError) as caught:
            coordination.create("/a")
        said = str(caught.value)
        assert "database is locked, for 0.5 s or more, by process" in said
        assert f"by process {stopped.pid} (" in said
        assert f"which is stopped: `kill -CONT {stopped.pid}` continues it" in said
        stopped.go_on()
        coordination.create("/a")
        assert coordination.exists("/by-the-stopped") is not None


def one_lock_for_all(patch: pytest.MonkeyPatch) -> None:
    made: Callable[..., None] = EmbeddedTree.__init__

    def init(tree: EmbeddedTree, *args: Any) -> None:
        made(tree, *args)
        tree._read_lock = tree._write_lock

    patch.setattr(EmbeddedTree, "__init__", init)


@guarantee("D16", "a process that is stopped within a commit keeps nobody from reading", plant=one_lock_for_all)
def test_reads_go_on(embedded_case: EmbeddedCase, tmp_path: Path) -> None:
    coordination = embedded_case.open(session_timeout_ms=60_000)
    with stopped_within_a_commit(tmp_path):
        refused = threading.Event()

        def write() -> None:
            with pytest.raises(CoordinationUnavailableError):
                coordination.create("/a")
            refused.set()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            eventually(lambda: _waits(coordination), "the write waits for the lock")
            assert coordination.children("/") == []
            assert coordination.exists("/a") is None
            assert not refused.is_set()
        finally:
            writer.join()
        assert refused.is_set()  # in bounded time


def _waits(coordination: EmbeddedCoordination) -> bool:
    tree = coordination._tree
    assert tree is not None
    return tree._write_lock.locked()


def take_late_for_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EmbeddedCoordination, "_in_grace_period", lambda *_: False)


@guarantee("D16", "sessions that could not be renewed for a lock are not ended", plant=take_late_for_dead)
def test_sessions_outlive_the_wait(embedded_case: EmbeddedCase, tmp_path: Path) -> None:
    members = [embedded_case.open(session_timeout_ms=SESSION_MS) for _ in range(3)]
    events = [SessionEvents(member) for member in members]
    for number, member in enumerate(members):
        member.create(f"/member-{number}", ephemeral=True)
    with stopped_within_a_commit(tmp_path, SESSION_MS) as stopped:
        eventually(lambda: late_sessions(members[0]) == 4, "nobody could renew a session")
        stopped.go_on()
        eventually(lambda: late_sessions(members[0]) == 0, "all that are left have renewed")
        assert all(SessionEvent.EXPIRED not in seen.seen for seen in events)
        assert members[0].children("/") == ["by-the-stopped", "member-0", "member-1", "member-2"]


def late_sessions(coordination: EmbeddedCoordination) -> int:
    tree = coordination._tree
    assert tree is not None
    with tree._read_lock:
        query = "SELECT count(*) FROM sessions WHERE renewed_ms + timeout_ms <= ?"
        return int(tree._reader.execute(query, (tree._clocks.now().monotonic_ms,)).fetchone()[0])


def test_locks_are_read_as_the_kernel_lists_them(tmp_path: Path) -> None:
    database = tmp_path / "x.db"
    shm = tmp_path / "x.db-shm"
    locks = tmp_path / "locks"
    assert write_lock_holder(database, locks) == "by another process"
    shm.touch()
    inode = shm.stat().st_ino
    rest = f"00:2a:{inode}"
    locks.write_text(
        f"1: FLOCK  ADVISORY  WRITE 11 {rest} 0 EOF\n"
        f"2: POSIX  ADVISORY  READ  12 {rest} 120 120\n"
        f"2: -> POSIX  ADVISORY  WRITE 13 {rest} 120 120\n"
        f"3: POSIX  ADVISORY  WRITE 14 00:2a:{inode + 1} 120 120\n"
        f"4: POSIX  ADVISORY  WRITE {os.getpid()} {rest} 120 120\n"
    )
    assert write_lock_holder(database, locks) == f"by this process, {os.getpid()}"
    locks.write_text(f"1: POSIX  ADVISORY  WRITE 0 {rest} 0 EOF\n")
    assert write_lock_holder(database, locks) == "by a process of another container"
