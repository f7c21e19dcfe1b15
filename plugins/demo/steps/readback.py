"""Step 6: the lake, read back with Spark as any reader would: plain partition discovery, nothing of Klamm's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from klamm.plugins.demo.flights import TOPIC

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
}


def lake_keys(lake: Path) -> Counter[str]:
    """How often the lake holds each flight, by the flight's own key."""
    builder = SparkSession.builder.appName("klamm demo: read back").master("local[2]")
    for name, value in QUIET.items():
        builder = builder.config(name, value)
    with builder.getOrCreate() as spark:
        rows = spark.read.parquet(str(lake / TOPIC))
        key = sf.concat_ws("/", sf.concat_ws("-", "year", "month", "day"), "carrier", "flight", "origin")
        keys = rows.select(key.alias("key")).toArrow()["key"]
        return Counter(keys.to_pylist())
