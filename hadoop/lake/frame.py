"""A topic of a lake as a DataFrame, as of a load or an instant."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from klamm.core.errors import ConfigError
from klamm.hadoop.lake.files import lake_files
from klamm.hadoop.lake.listing import loads_of
from klamm.hadoop.layout import BAD, TopicLayout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_lake(
    spark: SparkSession,
    root: str,
    topic: str,
    as_of: int | datetime | None = None,
    *,
    webhdfs_url: str | None = None,
) -> DataFrame:
    """The loads of a topic that are published now, all of each or nothing.

    `as_of`: the number of the newest load to be read, or an instant, which leaves out loads made later; an instant
    without a zone is UTC. Loads that are published after this call are not read. `ConfigError` when there is none.
    The files say which format they have; for avro the session needs spark-avro (`spark.jars`).
    """
    files = lake_files(root, webhdfs_url)
    layout = TopicLayout(root, topic)
    loads = loads_of(files, layout)
    if isinstance(as_of, datetime):
        until = as_of if as_of.tzinfo else as_of.replace(tzinfo=UTC)
        # A load is not read without those before it: the clock of their drivers may have been ahead.
        newest = max((load.number for load in loads if load.created <= until), default=0)
    else:
        newest = as_of if as_of is not None else sys.maxsize
    wanted = [load for load in loads if load.number <= newest]
    if not wanted:
        raise ConfigError(f"{layout.base}: no load is published" + ("" if as_of is None else f" as of {as_of}"))
    paths: dict[str, list[str]] = {}
    for load in wanted:
        name = next((n for n, _ in load.files if not n.startswith(f"{BAD}/")), None)
        if name is not None:
            paths.setdefault(name.rpartition(".")[2], []).append(layout.load(load.number))
    if not paths:
        raise ConfigError(f"{layout.base}: its loads hold no records")
    reader = spark.read.option("basePath", layout.base)
    frames = [reader.format(format_).load(loads) for format_, loads in paths.items()]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
