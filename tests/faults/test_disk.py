"""The disk that a test fills up (`klammtest.replicated.disk`)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from klammtest.replicated.disk import Disk, build

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

WRITES = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
said = []
for size in map(int, sys.argv[2:]):
    try:
        said.append(os.write(file, bytes(size)))
    except OSError as error:
        said.append(-error.errno)
print(*said)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "data").mkdir()
    return Disk(build(tmp_path), tmp_path / "disk", tmp_path / "data")


def written(disk: Disk, path: Path, *sizes: int) -> list[int]:
    """Returns the result of each write of a process, a negative errno for an error."""
    command = [sys.executable, "-c", WRITES, str(path), *map(str, sizes)]
    done = subprocess.run(command, env={**os.environ, **disk.environment}, text=True, capture_output=True, check=True)
    return [int(text) for text in done.stdout.split()]


def test_a_write_beyond_the_room_is_short_and_the_next_one_fails(disk: Disk) -> None:
    disk.control(room=10)
    assert not disk.full
    assert written(disk, disk.under / "log", 6, 8, 1) == [6, 4, -28]
    assert disk.full
    assert written(disk, disk.under / "log", 5) == [-28]


def test_other_folders_have_room_and_this_one_again(disk: Disk, tmp_path: Path) -> None:
    disk.control(room=0)
    assert written(disk, tmp_path / "elsewhere", 5) == [5]
    assert not disk.full
    disk.control()
    assert written(disk, disk.under / "log", 5) == [5]
    assert not disk.full


def test_a_folder_that_was_emptied_has_nothing_that_is_synced(disk: Disk, tmp_path: Path) -> None:
    path = disk.under / "log"
    synced = f"import os; f = os.open({str(path)!r}, os.O_WRONLY | os.O_CREAT); os.write(f, b'12345'); os.fsync(f)"
    subprocess.run([sys.executable, "-c", synced], env={**os.environ, **disk.environment}, check=True)
    assert disk._synced() == {str(path): 5}
    disk.forget()
    assert disk._synced() == {str(path): 0}
