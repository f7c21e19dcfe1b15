"""Java programs that Klamm starts as child processes: ZooKeeper and HDFS servers for development and tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from .child_process import HOST, ChildProcess, check_port
from .errors import ConfigError

__all__ = ["HOST", "JavaProcess", "cache_folder", "check_port", "find_java"]


def find_java() -> str:
    """Returns the `java` of `JAVA_HOME`, else of `PATH`; raises `ConfigError`, which says what to install."""
    home = os.environ.get("JAVA_HOME")
    candidate = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = candidate or shutil.which("java")
    if found is None:
        raise ConfigError(
            "no Java found: install Java 17 (for example `apt-get install openjdk-17-jre-headless`) or set JAVA_HOME"
        )
    return found


def cache_folder() -> Path:
    """Returns the folder for files that can be made again: jars, archives."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "klamm"


class JavaProcess(ChildProcess):
    """One `java` process."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, *, ends_with_parent: bool = False) -> None:
        """Starts the process; `arguments` follow the `java` that `find_java` returns."""
        super().__init__(name, [find_java(), *arguments], log, ends_with_parent=ends_with_parent)
