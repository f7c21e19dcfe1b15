"""The jars of an HDFS server (65 MB): `python -m klamm.hadoop.hdfs.jars` copies them; `--have` only checks whether they
are there.
"""

from __future__ import annotations

import sys
from typing import Final

from klamm.core.errors import ConfigError
from klamm.core.maven import MavenJars

VARIABLE: Final = "KLAMM_HDFS_JARS"
_JARS: Final = MavenJars("HDFS's jars", "klamm.hadoop.hdfs", "hdfs-jars", VARIABLE, " (65 MB)")


def announcement() -> str | None:
    """Returns a line about the download of missing jars; None if they are there (`MavenJars.announcement`)."""
    return _JARS.announcement()


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
