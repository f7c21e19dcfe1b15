"""The jars of a ZooKeeper server: those of PySpark if it is installed, else those that Maven copies (2 MB)."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Final

from klamm.core.maven import MavenJars

VARIABLE: Final = "KLAMM_ZOOKEEPER_JARS"
_MAVEN: Final = MavenJars(
    "ZooKeeper's jars", "klamm.plugins.coordination.zookeeper", "zookeeper-jars", VARIABLE, " (4 MB)"
)
_JARS: Final = (
    "zookeeper-3*.jar",
    "zookeeper-jute-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "slf4j-api-*.jar",
)


def find_class_path() -> str:
    """Returns the class path of ZooKeeper's server; copies the jars first if they are missing. Raises `ConfigError` in
    one line if that is not possible."""
    return _of_pyspark() or str(_MAVEN.find() / "*")


def announcement() -> str | None:
    """Returns a line about the download of missing jars; None if they are there (`MavenJars.announcement`)."""
    return None if _of_pyspark() is not None else _MAVEN.announcement()


def _of_pyspark() -> str | None:
    """Returns the class path of PySpark's jars; None without them, or if `VARIABLE` names a folder."""
    if os.environ.get(VARIABLE):
        return None
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "jars"
    found = [sorted(folder.glob(pattern)) for pattern in _JARS]
    return os.pathsep.join(str(jars[-1]) for jars in found) if all(found) else None
