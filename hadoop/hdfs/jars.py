"""The jars of an HDFS server (65 MB): `python -m klamm.hadoop.hdfs.jars` copies them; `--have` only checks whether they
are there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from klamm.core.errors import ConfigError

from ..maven import MavenJars

VARIABLE: Final = "KLAMM_HDFS_JARS"
_JARS: Final = MavenJars("HDFS's jars", "klamm.hadoop.hdfs", "hdfs-jars", VARIABLE)


def jars_folder() -> Path:
    """Returns the folder that holds the jars, or to which they are copied."""
    return _JARS.folder()


def have_jars() -> bool:
    return _JARS.have()


def find_class_path() -> str:
    """Returns the jars as a class path; copies them first if they are missing. Raises `ConfigError` in one line if that
    is not possible."""
    return str(_JARS.find() / "*")


if __name__ == "__main__":
    if "--have" in sys.argv[1:]:
        sys.exit(not have_jars())
    try:
        find_class_path()
    except ConfigError as error:
        sys.exit(f"klamm: {error}")
