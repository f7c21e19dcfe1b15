"""Runs the same load with Spark's own Kafka connector and spark-avro's from_avro, in batch.

    python -m klammbench.load.jobs.spark_load MARKS JSON

The rows have the columns of Klamm's lake and go to the same directories. `clustered`: into as many files as Klamm's, by
the same shuffle; otherwise each task writes into each directory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from klammbench.load.jobs.marks import Marks

HEADER_BYTES = 5
"""Size of the envelope: a zero byte and the schema's id."""


def main() -> None:
    marks = Marks(Path(sys.argv[1]))
    marks.mark("python")
    given = json.loads(sys.argv[2])
    from pyspark.sql import Observation, SparkSession
    from pyspark.sql import functions as sf
    from pyspark.sql.avro.functions import from_avro

    marks.mark("imports")
    builder = SparkSession.builder
    for key, value in given["config"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    marks.mark("session")
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", given["bootstrap"])
        .option("subscribe", given["topic"])
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    value = from_avro(sf.expr(f"substring(value, {HEADER_BYTES + 1})"), given["schema"])
    counted = Observation("rows")
    rows = (
        records.select(
            value.alias("record"),
            sf.col("key").alias("_key"),
            sf.col("partition").alias("_partition"),
            sf.col("offset").alias("_offset"),
            sf.col("timestamp").alias("_timestamp"),
            (sf.coalesce(sf.length("key"), sf.lit(0)) + sf.coalesce(sf.length("value"), sf.lit(0))).alias("_size"),
        )
        .observe(counted, sf.count(sf.lit(1)).alias("records"))
        .select(
            "record.*",
            "_key",
            "_partition",
            "_offset",
            "_timestamp",
            "_size",
            sf.date_format("_timestamp", "yyyy-MM-dd").alias("dt"),
            sf.date_format("_timestamp", "HH").alias("hr"),
        )
    )
    if given["clustered"]:
        rows = rows.hint("rebalance", "dt", "hr")
    rows.write.partitionBy("dt", "hr").parquet(given["path"])
    marks.mark("rows")
    marks.fact("records", counted.get["records"])
    spark.stop()
    marks.mark("done")


if __name__ == "__main__":
    main()
