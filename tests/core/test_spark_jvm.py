from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from klamm.core.java import find_java
from klamm.core.spark_jvm import SHORT_LIVED, archive_file, java_options


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path at which the archive would be; no file exists there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = archive_file()
    assert found is not None
    assert found.parent == tmp_path / "klamm"
    found.parent.mkdir()
    return found


def test_without_an_archive_java_is_asked_for_none(archive: Path) -> None:
    assert java_options() == SHORT_LIVED


def test_an_archive_that_java_cannot_use_is_passed_over_in_silence(archive: Path) -> None:
    archive.write_text("not an archive")
    assert f"-XX:SharedArchiveFile={archive}" in java_options()
    command = [find_java(), *shlex.split(java_options()), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "version" in done.stderr
    assert "rror" not in done.stderr


def test_each_java_has_an_archive_of_its_own(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "jdk" / "bin" / "java"
    other.parent.mkdir(parents=True)
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    assert archive_file() not in (None, archive)
