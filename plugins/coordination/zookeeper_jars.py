"""What a ZooKeeper server needs of this machine: Java, and the jars that PySpark brings."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from klamm.core.errors import ConfigError

_JARS = ("zookeeper-3*.jar", "zookeeper-jute-*.jar", "metrics-core-*.jar", "snappy-java-*.jar", "slf4j-api-*.jar")


def find_java() -> str:
    """The `java` of `JAVA_HOME`, else of `PATH`; `ConfigError` saying what to install."""
    home = os.environ.get("JAVA_HOME")
    candidate = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = candidate or shutil.which("java")
    if found is None:
        raise ConfigError(
            "no Java found: install Java 17 (for example `apt-get install openjdk-17-jre-headless`) or set JAVA_HOME"
        )
    return found


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
