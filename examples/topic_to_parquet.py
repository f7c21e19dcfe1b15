"""A Spark job that stores a topic's records as Parquet, those that came since it ran last.

    spark-submit --py-files klamm-0.1.0-*.whl topic_to_parquet.py --bootstrap 127.0.0.1:9092 --topic flights \\
        --output hdfs://namenode/flights --checkpoint hdfs://namenode/checkpoints/flights
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

from klamm.hadoop.source import KlammDataSource


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "topic", "output", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    spark = SparkSession.builder.appName("topic-to-parquet").getOrCreate()
    spark.dataSource.register(KlammDataSource)
    records = (
        spark.readStream.format("klamm")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1_000_000)
        .load()
    )
    query = (
        records.selectExpr("cast(value as string) value", "partition", "offset", "timestamp")
        .writeStream.format("parquet")
        .option("path", args.output)
        .option("checkpointLocation", args.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
