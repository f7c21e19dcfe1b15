"""The time zone of Spark's JVMs, by which Spark reads and writes the timestamps of ORC files.

ORC's `timestamp` is a local time, and Spark uses its JVM's default zone for it, whatever the session's zone is. Files
that are written in one zone and read in another get other instants, and one of the two hours when clocks are set back
is lost. So ORC is read and written only in UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import SparkSession

from klamm.core.errors import ConfigError

UTC_OPTION: Final = "-Duser.timezone=UTC"
_TASKS: Final = 8
"""The number of tasks that check the zone of their JVM; all executors of one Spark are started in the same way."""
_UTC: Final = frozenset({"UTC", "GMT", "Z", "UCT", "Zulu", "Universal", "Etc/UTC", "Etc/GMT", "Etc/UCT", "Etc/Zulu"})


def check_zone(session: SparkSession, formats: Iterable[str]) -> None:
    """Raises `ConfigError` if one of the formats is orc and a JVM that runs tasks is not in UTC."""
    if "orc" not in formats:
        return
    zones = session.range(0, _TASKS, 1, _TASKS).selectExpr("java_method('java.time.ZoneId', 'systemDefault') zone")
    others = sorted({row["zone"] for row in zones.distinct().collect()} - _UTC)
    if others:
        raise ConfigError(
            f"format orc: Spark keeps its timestamps by the time zone of the JVM, which is {', '.join(others)} here; "
            f"start Spark with {UTC_OPTION} in spark.driver.extraJavaOptions and spark.executor.extraJavaOptions"
        )
