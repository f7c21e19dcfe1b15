"""Runs a stream that reads a topic once to its end and discards the rows.

python -m klammbench.load.jobs.stream MARKS JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from klammbench.load.jobs.marks import Marks


def main() -> None:
    marks = Marks(Path(sys.argv[1]))
    marks.mark("python")
    given = json.loads(sys.argv[2])
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as sf

    from klamm.hadoop.source import KlammDataSource

    marks.mark("imports")
    builder = SparkSession.builder
    for key, value in given["config"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(KlammDataSource)
    marks.mark("session")
    rows = (
        spark.readStream.format(given["source"])
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("subscribe", given["topic"])
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        rows.observe("read", sf.count(sf.lit(1)).alias("records"))
        .writeStream.format("noop")
        .trigger(availableNow=True)
        .option("checkpointLocation", given["checkpoint"])
        .start()
    )
    query.awaitTermination()
    marks.mark("rows")
    observed = [progress.observedMetrics for progress in query.recentProgress]
    marks.fact("records", sum(metrics["read"]["records"] for metrics in observed if "read" in metrics))
    spark.stop()
    marks.mark("done")


if __name__ == "__main__":
    main()
