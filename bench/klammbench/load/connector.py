"""The jars of Spark's Kafka connector and of spark-avro, copied from Maven Central as those of `klamm hdfs` are."""

from __future__ import annotations

from typing import Final

from klamm.core.maven import MavenJars

_JARS: Final = MavenJars(
    "Spark's Kafka connector", "klammbench.load", "bench-connector-jars", "KLAMM_BENCH_CONNECTOR_JARS"
)


def find_connector() -> str:
    """Returns all jars, comma-separated as `spark.jars` takes them. Raises `ConfigError` in one line if they cannot be
    fetched.
    """
    return ",".join(str(jar) for jar in sorted(_JARS.find().glob("*.jar")))


def version() -> str:
    """Returns the versions of the jars that are present."""
    names = sorted(jar.stem for jar in _JARS.find().glob("*.jar"))
    return " ".join(name for name in names if name.startswith(("spark-", "kafka-")))
