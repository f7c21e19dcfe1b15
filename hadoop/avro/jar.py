"""The jar of spark-avro: `python -m klamm.hadoop.avro.jar` copies it; `--have` only checks whether it is there.

Its version is the newest that Maven Central had when it was chosen; a test writes and reads with it and the Spark of
`requirements/spark.txt`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from klamm.core.errors import ConfigError
from klamm.core.maven import MavenJars

AVRO: Final = "avro"
VARIABLE: Final = "KLAMM_AVRO_JARS"
JARS: Final = MavenJars("spark-avro's jars", "klamm.hadoop.avro", "avro-jars", VARIABLE)
_OF_SPARK: Final = ("spark.jars", "spark.jars.packages")


def find_avro_jar() -> str:
    """Returns the jar's path; copies the jar first if it is missing. Raises `ConfigError` in one line if that is not
    possible."""
    found = sorted(JARS.find().glob("spark-avro_*.jar"))
    if not found:
        raise ConfigError(f"{JARS.folder()} holds no spark-avro_….jar")
    return str(found[-1])


def with_avro(spark_config: Mapping[str, str], format_: str) -> dict[str, str]:
    """Adds the settings that files of this format need to Spark's configuration; a spark-avro that the user names is
    kept.
    """
    named = any("spark-avro" in spark_config.get(key, "") for key in _OF_SPARK)
    if format_ != AVRO or named:
        return dict(spark_config)
    jars = [jar for jar in (spark_config.get("spark.jars"), find_avro_jar()) if jar]
    return {**spark_config, "spark.jars": ",".join(jars)}


if __name__ == "__main__":
    if "--have" in sys.argv[1:]:
        sys.exit(not JARS.have())
    try:
        find_avro_jar()
    except ConfigError as error:
        sys.exit(f"klamm: {error}")
