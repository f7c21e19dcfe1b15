"""Every change of a file of the log goes through `file_operations`, so that a campaign can end the process at it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import klamm.core.log
from klamm.core import faults
from klamm.core.faults import ScriptedFaults
from klamm.core.log.segment import file_operations as files

FOLDER = Path(klamm.core.log.__path__[0])
CHANGES = {
    "rename", "replace", "renames", "unlink", "remove", "rmdir", "rmtree", "fsync", "fdatasync", "ftruncate",
    "truncate", "write", "pwrite", "write_text", "write_bytes", "link", "symlink",
}  # fmt: skip
OF_MODULES = {"os", "shutil"}
OF_PATHS = {"rename", "unlink", "rmdir", "write_text", "write_bytes"}
ALLOWED = {("log_directory.py", "ftruncate"), ("log_directory.py", "write")}
"""The process's number in the lock file, which nothing depends on."""
OWN_RENAMES = {"index"}
"""Indexes, whose `rename` goes through `file_operations`."""


def direct_changes(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        of_module = isinstance(owner, ast.Name) and owner.id in OF_MODULES and name in CHANGES
        own = isinstance(owner, ast.Name) and owner.id in OWN_RENAMES
        of_path = name in OF_PATHS and not own and not (isinstance(owner, ast.Name) and owner.id in OF_MODULES)
        if (of_module or of_path) and (path.name, name) not in ALLOWED:
            found.append(f"{path.name}:{node.lineno}: {ast.unparse(node.func)}")
    return found


def test_no_module_but_files_changes_a_file_itself() -> None:
    modules = [path for path in FOLDER.rglob("*.py") if path.name != "file_operations.py"]
    assert len(modules) > 20
    assert [line for path in modules for line in direct_changes(path)] == []


def test_the_search_would_find_one(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("os.replace(a, b)\npath.rename(c)\nshutil.rmtree(d)\nself.path.unlink()\nx.replace('a', 'b')\n")
    assert [line.split(": ")[1] for line in direct_changes(path)] == [
        "os.replace", "path.rename", "shutil.rmtree", "self.path.unlink",
    ]  # fmt: skip


def test_every_function_of_files_passes_its_point(tmp_path: Path) -> None:
    hook = ScriptedFaults("")
    faults.install(hook)
    try:
        files.write_atomically(tmp_path / "a", b"1")
        files.rename(tmp_path / "a", tmp_path / "b")
        files.remove(tmp_path / "b")
        (tmp_path / "folder").mkdir()
        files.remove_tree(tmp_path / "folder")
        opened = files.OpenFile(tmp_path / "c", create=True)
        opened.sync()
        opened.truncate(0)
    finally:
        faults.install(None)
    wanted = {"files.write", "files.fsync", "files.fsync_directory", "files.rename", "files.unlink", "files.rmtree",
              "files.truncate"}  # fmt: skip
    assert set(hook.passed) == wanted


@pytest.mark.parametrize("point", ["files.unlink", "files.fsync_directory"])
def test_the_marker_of_a_clean_stop_may_fail_to_go(tmp_path: Path, point: str) -> None:
    """What the next start believes is then still true: nothing was written since."""
    from klamm.core.errors import StorageError
    from klamm.core.log.log_directory import leave_clean_marker, take_clean_marker

    leave_clean_marker(tmp_path)
    faults.install(ScriptedFaults(f"{point}=EIO"))
    try:
        with pytest.raises(StorageError, match="cannot remove"):
            take_clean_marker(tmp_path)
    finally:
        faults.install(None)
