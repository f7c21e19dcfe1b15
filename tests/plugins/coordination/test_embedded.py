"""The special cases of the embedded coordination: one file, several processes, and files that are not valid."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from klamm.core.interfaces.coordination import CoordinationUnavailableError, Create, SessionEvent
from klamm.plugins.coordination.embedded import tree as embedded_tree
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
from klamm.testing.contracts import SessionEvents, WatchSignal
from klammtest.waiting import eventually
from klammtest.zookeeper import EmbeddedCase

OTHER_PROCESS = """
import os, sys, time
from pathlib import Path
from klamm.plugins.coordination.embedded.coordination import EmbeddedConfig, EmbeddedCoordination
coordination = EmbeddedCoordination(EmbeddedConfig(path=Path(sys.argv[1]), session_timeout_ms=4000))
coordination.start()
coordination.create("/ephemeral", ephemeral=True)
# One write a line: two threads say something here.
coordination.watch("/ask", lambda: os.write(1, b"asked\\n"))
os.write(1, b"ready\\n")
time.sleep(60)
"""


def test_processes_share_the_file_and_one_killed_loses_its_paths(embedded_case: EmbeddedCase, tmp_path: Path) -> None:
    coordination = embedded_case.open()
    signal = WatchSignal()
    coordination.watch("/ephemeral", signal)
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "coordination.db")], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    try:
        lines = iter(other.stdout.readline, "")
        assert "ready\n" in lines
        signal.wait_for_more()
        assert coordination.exists("/ephemeral") is not None
        coordination.create("/ask")
        assert "asked\n" in lines
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    signal.mark()
    eventually(lambda: coordination.exists("/ephemeral") is None, "the end of the killed process's path")
    signal.wait_for_more()


def test_a_locked_file_suspends_and_resumes(
    embedded_case: EmbeddedCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_tree, "BUSY_TIMEOUT_S", 0.1)
    coordination = embedded_case.open(session_timeout_ms=10_000)
    events, signal = SessionEvents(coordination), WatchSignal()
    coordination.watch("/a", signal)
    signal.mark()
    hog = sqlite3.connect(tmp_path / "coordination.db", isolation_level=None)
    hog.execute("BEGIN IMMEDIATE")
    with pytest.raises(CoordinationUnavailableError, match=r"coordination\.db: database is locked"):
        coordination.create("/a")
    events.wait_for(SessionEvent.SUSPENDED)
    assert coordination.session_id != 0
    hog.execute("ROLLBACK")
    hog.close()
    events.wait_for(SessionEvent.CONNECTED)
    signal.wait_for_more()
    coordination.create("/a")


def test_a_file_that_is_removed_suspends_until_it_is_back(
    embedded_case: EmbeddedCase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The open file could still be read and written: who starts now would make a cluster of its own beside it."""
    caplog.set_level(logging.INFO)
    coordination = embedded_case.open(session_timeout_ms=10_000)
    coordination.create("/a", b"before")
    events, signal = SessionEvents(coordination), WatchSignal()
    coordination.watch("/a", signal)
    signal.mark()
    file, aside = tmp_path / "coordination.db", tmp_path / "aside.db"
    file.rename(aside)
    with pytest.raises(CoordinationUnavailableError, match=r"coordination\.db was removed: put it back, or stop all"):
        coordination.set("/a", b"nowhere")
    events.wait_for(SessionEvent.SUSPENDED)
    with pytest.raises(CoordinationUnavailableError, match="was removed"):
        coordination.get("/a")
    assert coordination.session_id != 0
    assert not file.exists()
    file.write_bytes(b"")
    eventually(lambda: "was replaced" in _refusal(coordination), "another file is noticed")
    aside.rename(file)
    events.wait_for(SessionEvent.CONNECTED)
    signal.wait_for_more()
    assert coordination.get("/a")[0] == b"before"
    coordination.set("/a", b"after")
    assert [record.levelname for record in caplog.records if "coordination file" in record.getMessage()] == [
        "INFO",
        "ERROR",
        "INFO",
    ]


def _refusal(coordination: EmbeddedCoordination) -> str:
    with pytest.raises(CoordinationUnavailableError) as raised:
        coordination.exists("/a")
    return str(raised.value)


def test_no_session_is_opened_in_a_new_file(embedded_case: EmbeddedCase, tmp_path: Path) -> None:
    coordination = embedded_case.open()
    coordination.create("/a")
    embedded_case.expire(coordination)
    file, aside = tmp_path / "coordination.db", tmp_path / "aside.db"
    file.rename(aside)
    with pytest.raises(CoordinationUnavailableError, match="was removed"):
        coordination.restart()
    assert not file.exists()
    aside.rename(file)
    coordination.restart()
    assert coordination.exists("/a") is not None


def test_a_watcher_that_fell_behind_the_log_of_changes_is_called(
    embedded_case: EmbeddedCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_tree, "KEPT_CHANGES", 3)
    watcher, writer = embedded_case.open(), embedded_case.open()
    signal = WatchSignal()
    watcher.watch("/a", signal)
    signal.mark()
    writer.transaction([Create("/a"), *(Create(f"/{number}") for number in range(10))])
    signal.wait_for_more()


@pytest.mark.parametrize("content", [b"this is no database, and long enough to be seen as none" * 20])
def test_a_file_that_is_no_database_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(CoordinationUnavailableError, match=r"file is not a database.*coordination\.path") as caught:
        EmbeddedCoordination(EmbeddedConfig(path=path)).start()
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CoordinationUnavailableError, match=r"coordination\.path"):
        EmbeddedCoordination(EmbeddedConfig(path=tmp_path / "file" / "x.db")).start()


def test_the_folder_is_made(tmp_path: Path) -> None:
    coordination = EmbeddedCoordination(EmbeddedConfig(path=tmp_path / "new" / "folder" / "x.db"))
    coordination.start()
    coordination.close()
    assert (tmp_path / "new" / "folder" / "x.db").exists()


@pytest.mark.parametrize("config", [{"session.timeout.ms": 5}, {"session.timeout": 5000}, {"paths": "x"}])
def test_configs_that_are_wrong(config: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EmbeddedConfig.model_validate(config)


def test_kafkas_way_of_writing_the_config() -> None:
    config = EmbeddedConfig.model_validate({"path": "x.db", "session.timeout.ms": 1234})
    assert (config.path, config.session_timeout_ms) == (Path("x.db").absolute(), 1234)
