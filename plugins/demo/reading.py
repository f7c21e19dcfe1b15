"""Reads the lake with Spark as any reader would: plain partition discovery, without Klamm.

    python -m klamm.plugins.demo.reading LAKE FILE

It writes the own key of each flight in the lake to FILE, one a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from klamm.core.spark_jvm import java_options

from .flights import TOPIC

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def main() -> None:
    """Reads the lake; see the module."""
    lake, file = sys.argv[1:]
    builder = SparkSession.builder.appName("klamm demo: read back").master("local[2]")
    for name, value in {**QUIET, "spark.driver.extraJavaOptions": java_options()}.items():
        builder = builder.config(name, value)
    with builder.getOrCreate() as spark:
        flights = spark.read.parquet(f"{lake}/{TOPIC}")
        day = sf.concat_ws("-", "year", "month", "day")
        keys = flights.select(sf.concat_ws("/", day, "carrier", "flight", "origin").alias("key"))
        Path(file).write_text("".join(f"{key}\n" for key in keys.toArrow()["key"].to_pylist()))


if __name__ == "__main__":
    main()
