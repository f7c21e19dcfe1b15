"""The jars of Spark's Kafka connector and of spark-avro, copied from Maven Central as those of `klamm hdfs` are."""

from __future__ import annotations

from typing import Final

from klamm.hadoop.maven import MavenJars

_JARS: Final = MavenJars(
    "Spark's Kafka connector", "klammbench.load", "bench-connector-jars", "KLAMM_BENCH_CONNECTOR_JARS"
)


def find_connector() -> str:
    """All of them, as `spark.jars` takes them. `ConfigError` in one line where they cannot be had."""
    return ",".join(str(jar) for jar in sorted(_JARS.find().glob("*.jar")))


def version() -> str:
    """Of what is here."""
    names = sorted(jar.stem for jar in _JARS.find().glob("*.jar"))
    return " ".join(name for name in names if name.startswith(("spark-", "kafka-")))
