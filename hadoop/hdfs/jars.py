"""The jars of an HDFS server (65 MB): `python -m klamm.hadoop.hdfs.jars` copies them; `--have` only checks whether they
are there.
"""

from __future__ import annotations

import sys
from typing import Final

from klamm.core.errors import ConfigError
from klamm.core.maven import MavenJars

VARIABLE: Final = "KLAMM_HDFS_JARS"
JARS: Final = MavenJars("HDFS's jars", "klamm.hadoop.hdfs", "hdfs-jars", VARIABLE, " (65 MB)")


def find_class_path() -> str:
    """Returns the jars as a class path; copies them first if they are missing. Raises `ConfigError` in one line if that
    is not possible."""
    return str(JARS.find() / "*")


if __name__ == "__main__":
    if "--have" in sys.argv[1:]:
        sys.exit(not JARS.have())
    try:
        find_class_path()
    except ConfigError as error:
        sys.exit(f"klamm: {error}")
