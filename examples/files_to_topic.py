"""A Spark job that makes a record of each line of new files, each once however often it is killed and started again.

    spark-submit --py-files klamm-0.1.0-*.whl files_to_topic.py --bootstrap 127.0.0.1:9092 --topic lines \\
        --input hdfs://namenode/incoming --checkpoint hdfs://namenode/checkpoints/lines
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

from klamm.hadoop.source import KlammDataSource


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "topic", "input", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    spark = SparkSession.builder.appName("files-to-topic").getOrCreate()
    spark.dataSource.register(KlammDataSource)
    query = (
        spark.readStream.text(args.input)
        .writeStream.format("klamm")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("kafka.compression.type", "zstd")
        .option("topic", args.topic)
        .option("checkpointLocation", args.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
