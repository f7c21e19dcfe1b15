"""A driver of the Spark sink as a process that a campaign leads: `python sink_driver.py MASTER KEY=VALUE…`.

A line of JSON each way. To it: `{"write": n, "options": {…}}` writes the numbers below n by two tasks;
`{"query": folder, "checkpoint": "…", "options": {…}}` runs a query over the text files of a folder to its end. From it:
`{"ready": pid}`, then `{"done": null}` or `{"done": error}` for each.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from klamm.hadoop.session import reason_of
from loads.held_source import HeldDataSource


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
    for setting in sys.argv[2:]:
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    spark.dataSource.register(HeldDataSource)
    _say(out, {"ready": os.getpid()})
    for line in sys.stdin:
        try:
            _do(spark, json.loads(line))
        except Exception as error:
            _say(out, {"done": reason_of(error)})
        else:
            _say(out, {"done": None})
    spark.stop()


def _do(spark: SparkSession, asked: dict[str, Any]) -> None:
    if "write" in asked:
        frame = spark.range(0, asked["write"], 1, 2).selectExpr("cast(id as string) key", "cast(id as string) value")
        frame.write.format("held").options(**asked["options"]).mode("append").save()
        return
    read = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(asked["query"])
    writer = read.selectExpr("value key", "value").writeStream.format("held").options(**asked["options"])
    writer.option("checkpointLocation", asked["checkpoint"]).trigger(availableNow=True).start().awaitTermination()


def _say(out: Any, what: dict[str, Any]) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
