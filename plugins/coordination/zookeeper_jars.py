"""The jars of a ZooKeeper server, which PySpark brings."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from klamm.core.errors import ConfigError

_JARS = ("zookeeper-3*.jar", "zookeeper-jute-*.jar", "metrics-core-*.jar", "snappy-java-*.jar", "slf4j-api-*.jar")


def find_class_path() -> str:
    """ZooKeeper's server and what it needs, from the installed PySpark; `ConfigError` saying what to install."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("PySpark, whose jars hold ZooKeeper, is not installed: `pip install 'klamm[spark]'`")
    folder = Path(next(iter(spec.submodule_search_locations))) / "jars"
    jars = []
    for pattern in _JARS:
        found = sorted(folder.glob(pattern))
        if not found:
            raise ConfigError(f"{folder} holds no {pattern}: install PySpark anew, `pip install 'klamm[spark]'`")
        jars.append(str(found[-1]))
    return os.pathsep.join(jars)
