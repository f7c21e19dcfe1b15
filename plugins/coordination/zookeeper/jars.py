"""The jars of a ZooKeeper server, which are part of PySpark."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from klamm.plugin import ConfigError

_JARS = ("zookeeper-3*.jar", "zookeeper-jute-*.jar", "metrics-core-*.jar", "snappy-java-*.jar", "slf4j-api-*.jar")


def find_class_path() -> str:
    """Returns the class path of ZooKeeper's server in the installed PySpark. Raises `ConfigError` with what to
    install."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("PySpark, whose jars contain ZooKeeper, is not installed: `pip install 'klamm[spark]'`")
    folder = Path(next(iter(spec.submodule_search_locations))) / "jars"
    jars = []
    for pattern in _JARS:
        found = sorted(folder.glob(pattern))
        if not found:
            raise ConfigError(f"{folder} has no {pattern}: install PySpark again, `pip install 'klamm[spark]'`")
        jars.append(str(found[-1]))
    return os.pathsep.join(jars)
