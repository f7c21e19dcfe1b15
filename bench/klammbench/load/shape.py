"""Everything reads the same topic of one Klamm broker: real flights in Avro, repeated, keys as in the demo, zstd, 6
partitions, with times in order over two days, so that a load has 48 directories of day and hour.

A load is measured from the start of its process to its end: `klamm load` against a program that reads by Spark's own
Kafka connector, decodes by `from_avro` and writes the same columns into the same directories. `spark` makes as many
files as Klamm does, by the same shuffle; `spark-unclustered` leaves the shuffle out, and its tasks write a file each
into each directory. Both sides have `local[2]` and 1 GB for the driver; Klamm's also counts what it wrote, syncs it and
publishes it. A stream reads the topic to its end with AvailableNow into `noop`; its time is the query's. CPU seconds
are of driver, JVM and Python workers together; the broker's and HDFS's are by themselves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path

from klammbench.load.connector import find_connector, version
from klammbench.load.measure import Cost, measure
from klammbench.load.site import FLIGHTS, SMALL, SMALL_RECORDS, Site, schema_text, spark_config
from klammbench.metric import Metric
from klammbench.paths import PYTHON
from klammbench.systems.base import System, remove
from klammbench.table import Table
from klammbench.targets import Target, figure

KLAMM, SPARK, UNCLUSTERED = "klamm", "spark", "spark-unclustered"
RIVALS = (SPARK,)
CELLS = ("file", "hdfs", "stream", "cold-file", "cold-hdfs")
STEPS: Mapping[str, str] = {
    "python": "s of starting Python",
    "imports": "s of imports",
    "jvm": "s of starting the JVM for HDFS",
    "planned": "s of asking the cluster and the lake",
    "session": "s of starting Spark",
    "read": "s of reading and decoding",
    "rows": "s of writing files",
    "counted": "s of counting what is written",
    "staged": "s of checks and manifests",
    "published": "s of publishing",
    "done": "s of committing and ending",
}
"""The heading for the step that each mark of a load ends."""
_BY_MEMORY = 1e6
_TIMEOUT_S = 900.0
_COLD_S = 10.0


@dataclass(frozen=True, slots=True)
class LoadCell:
    """A cell. `short` is its name in ONLY; `scheme` says where a load writes, None for a stream; `topic` has
    `records`.
    """

    short: str
    name: str
    scheme: str
    topic: str
    records: int
    systems: Sequence[str]


class Loader:
    """`klamm` or Spark. There is no server to start; only the name counts."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.data_dir = folder
        self.bootstrap = ""

    def version(self) -> str:
        spark = f"pyspark {metadata.version('pyspark')}"
        return f"{metadata.version('klamm')} on {spark}" if self.name == KLAMM else f"{spark}, {version()}"

    def settings(self) -> str:
        return "local[2], spark.driver.memory 1g; else as it comes"

    def start(self) -> None:
        """Does nothing: there is no server."""

    def stop(self) -> None:
        """Does nothing: there is no server."""

    def pids(self) -> list[int]:
        return [os.getpid()]

    def wipe(self) -> None:
        remove(self.data_dir)


class LoadShape:
    """(load) The flights of a year, repeated, in Avro with zstd, from 6 partitions of one broker into Parquet by day
    and hour: `klamm load`, and Spark's Kafka connector with `from_avro`, clustered as Klamm's files are and as Spark
    leaves them."""

    NAME = "load"
    TITLE = "Loads into a lake, and streams"
    SYSTEMS: Sequence[str] = (KLAMM, SPARK, UNCLUSTERED)
    METRICS: Mapping[str, Metric] = {
        "rate": Metric("records/s"),
        "work_rate": Metric("records/s once Spark is up"),
        "cpu": Metric("CPU s", "lower", 1),
        "seconds": Metric("s from start to end", "lower", 2),
        "peak": Metric("MB, all processes at their peak", "lower"),
        "driver_peak": Metric("MB of the driver (Python)", None),
        "jvm_peak": Metric("MB of Spark's JVM", None),
        "workers_peak": Metric("MB of the Python workers", None),
        "driver_cpu": Metric("CPU s of the driver (Python)", None, 1),
        "jvm_cpu": Metric("CPU s of Spark's JVM", None, 1),
        "workers_cpu": Metric("CPU s of the Python workers", None, 1),
        "broker_cpu": Metric("CPU s of the broker", None, 1),
        "hdfs_cpu": Metric("CPU s of NameNode and DataNode", None, 1),
        **{name: Metric(unit, None, 2) for name, unit in STEPS.items()},
    }
    MANAGED = False

    def __init__(self, site: Site | None, only: Iterable[str] = ()) -> None:
        """Without a `site`, the shape can only judge stored results."""
        self._site = site
        self._only = tuple(only)

    __doc__ = __doc__

    def cells(self, quick: bool) -> Sequence[LoadCell]:  # noqa: ARG002 - the site knows how many records there are
        records = self._given.records
        found = [
            LoadCell("file", "file: Parquet", "file", FLIGHTS, records, self.SYSTEMS),
            LoadCell("hdfs", "hdfs: Parquet", "hdfs", FLIGHTS, records, self.SYSTEMS),
            LoadCell("stream", "stream to noop", "", FLIGHTS, records, (KLAMM, SPARK)),
            LoadCell("cold-file", "cold file: 1,000 records", "file", SMALL, SMALL_RECORDS, (KLAMM, SPARK)),
            LoadCell("cold-hdfs", "cold hdfs: 1,000 records", "hdfs", SMALL, SMALL_RECORDS, (KLAMM, SPARK)),
        ]
        return [cell for cell in found if cell.short in (self._only or CELLS)]

    def warm(self, system: System) -> None:
        """Does nothing: starting is part of what is measured."""

    def run(self, cell: LoadCell, system: System, number: int) -> Mapping[str, float]:
        if system.name not in cell.systems:
            return {}
        site = self._given
        folder = site.folder / f"run-{number}"
        folder.mkdir()
        path = site.lake(cell.scheme, number) if cell.scheme else ""
        before = site.broker_cpu_s(), site.hdfs_cpu_s()
        try:
            marks = folder / "marks.json"
            command = self._command(cell, system.name, path, number, folder, marks)
            cost = measure(command, folder / "cost.json", folder / "out.log", _TIMEOUT_S, self._environment)
            after = site.broker_cpu_s(), site.hdfs_cpu_s()
            told = json.loads(marks.read_text())
            _check(cell, system.name, told["facts"], folder / "out.log")
        finally:
            remove(folder)
            if cell.scheme == "file":
                remove(Path(path.removeprefix("file://")))
        servers = after[0] - before[0], after[1] - before[1]
        return figures(cell, system.name, cost, told["seconds"], servers)

    def targets(self, table: Table) -> Sequence[Target]:
        there = set(table.cells())
        found: list[Target] = []
        for scheme in ("file", "hdfs"):
            if (cell := f"{scheme}: Parquet") in there:
                found.append(_against_spark(table, cell, f"load-{scheme}-rate", "rate", 1.5))
                found.append(_against_spark(table, cell, f"load-{scheme}-cpu", "cpu", 1.0, at_least=False))
        if (cell := "stream to noop") in there:
            found.append(_against_spark(table, cell, "stream-noop-rate", "rate", 1.0))
        found += [
            _cold(table, cell, f"cold-{scheme}-seconds")
            for scheme in ("file", "hdfs")
            if (cell := f"cold {scheme}: 1,000 records") in there
        ]
        return found

    @property
    def _given(self) -> Site:
        if self._site is None:
            raise RuntimeError("no site was given: this shape can only judge stored results")
        return self._site

    @property
    def _environment(self) -> Mapping[str, str]:
        return {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(PYTHON)}

    def _command(self, cell: LoadCell, system: str, path: str, number: int, folder: Path, marks: Path) -> Sequence[str]:
        jobs = [str(PYTHON), "-m"]
        if cell.scheme and system == KLAMM:
            config = self._given.sink_config(path, number, cell.topic)
            job = ["klammbench.load.jobs.klamm_load", str(marks)]
            return [*jobs, *job, "load", "--json", "--config", str(config), "lake"]
        given: dict[str, object] = {"bootstrap": self._given.bootstrap, "topic": cell.topic}
        jars = "" if system == KLAMM else find_connector()
        given["config"] = json.loads(spark_config(jars))
        if cell.scheme:
            given |= {"schema": schema_text(), "path": path, "clustered": system == SPARK}
        else:
            given |= {"source": "klamm" if system == KLAMM else "kafka", "checkpoint": str(folder / "checkpoint")}
        job = "klammbench.load.jobs.spark_load" if cell.scheme else "klammbench.load.jobs.stream"
        return [*jobs, job, str(marks), json.dumps(given)]


def _check(cell: LoadCell, system: str, facts: Mapping[str, float], log: Path) -> None:
    """Raises `RuntimeError` unless every record was read exactly once."""
    if cell.scheme and system == KLAMM:
        said = json.loads(next(line for line in log.read_text().splitlines() if line.startswith("{")))
        got = sum(topic["records"] for topic in said["topics"])
    else:
        got = int(facts.get("records", 0))
    if got != cell.records:
        raise RuntimeError(f"{got} records were read, expected {cell.records}")


def figures(
    cell: LoadCell, system: str, cost: Cost, marks: Mapping[str, float], servers: tuple[float, float]
) -> Mapping[str, float]:
    """Returns the figures by metric. A stream's rate is its query's; a load's is that of the whole process."""
    up, written = marks["session"], marks["rows"]
    whole = cost.seconds if cell.scheme else written - up
    found = {
        "rate": cell.records / whole,
        "work_rate": cell.records / max(marks.get("published", written) - up, 1e-3),
        "cpu": cost.cpu_s,
        "seconds": cost.seconds,
        "peak": cost.peak / _BY_MEMORY,
        **{f"{role}_peak": size / _BY_MEMORY for role, size in cost.peaks.items()},
        **{f"{role}_cpu": spent for role, spent in cost.cpu.items()},
        "broker_cpu": servers[0],
        "hdfs_cpu": servers[1],
    }
    if cell.records <= SMALL_RECORDS and system == KLAMM:
        found |= steps(marks, cost.seconds)
    return found


def steps(marks: Mapping[str, float], end: float) -> Mapping[str, float]:
    """Returns the seconds of each step, in the order in which they ended; time after the last mark counts as `done`."""
    ended = sorted((at, name) for name, at in marks.items() if name in STEPS)
    found = {name: at - before for (before, _), (at, name) in pairwise([(0.0, ""), *ended])}
    found["done"] = found.get("done", 0.0) + max(end - ended[-1][0], 0.0)
    return found


def _against_spark(table: Table, cell: str, name: str, metric: str, wanted: float, *, at_least: bool = True) -> Target:
    ratio = table.ratio(cell, metric, KLAMM, SPARK)
    if ratio is None:
        return Target(name, None, wanted, at_least, remarks=["not measured on both"])
    remarks = [_medians(table, cell, metric)]
    beside = {
        "against spark-unclustered": table.ratio(cell, metric, KLAMM, UNCLUSTERED),
        "once Spark is up": table.ratio(cell, "work_rate", KLAMM, SPARK) if metric == "rate" else None,
        "peak of memory": table.ratio(cell, "peak", KLAMM, SPARK) if metric == "cpu" else None,
    }
    remarks += [f"{what}: {figure(value)}" for what, value in beside.items() if value is not None]
    return Target(name, ratio, wanted, at_least, remarks=remarks)


def _medians(table: Table, cell: str, metric: str) -> str:
    digits, unit = table.metrics[metric].digits, table.metrics[metric].unit
    said = [
        f"{system} {spread.median:,.{digits}f}"
        for system in (KLAMM, SPARK, UNCLUSTERED)
        if (spread := table.spread(cell, system, metric))
    ]
    return f"{unit}: {', '.join(said)}"


def _cold(table: Table, cell: str, name: str) -> Target:
    spread = table.spread(cell, KLAMM, "seconds")
    if spread is None:
        return Target(name, None, _COLD_S, at_least=False, remarks=["not measured"])
    parts = [f"{found.median:.2f} {unit}" for step, unit in STEPS.items() if (found := table.spread(cell, KLAMM, step))]
    remarks = ["; ".join(parts)]
    if theirs := table.spread(cell, SPARK, "seconds"):
        remarks.append(f"spark {theirs.median:.2f} s")
    return Target(name, spread.median, _COLD_S, at_least=False, remarks=remarks)
