"""The servers and folders that all measured programs share: one broker with the topics, one HDFS, a folder for
`file:`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import load_settings
from klamm.hadoop.hdfs.server import HdfsPorts, HdfsServer
from klamm.plugins.demo.flights import KEY_FIELDS, load_flights
from klammbench.paths import PYTHON
from klammbench.process import cpu_seconds
from klammbench.systems.base import free_ports, remove
from klammbench.systems.klamm import Klamm

PARTITIONS = 6
FLIGHTS, SMALL = "flights", "small"
SMALL_RECORDS = 1_000
BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
DAYS = 2
DRIVER_MEMORY = "1g"
"""Driver memory on both sides; Spark's default."""
_SCHEMA = "flights.avsc"
_DAY_MS = 86_400_000
_ROWS = 50_000
_FLUSH_S = 300.0
_HDFS_S = 300.0


def schema_text() -> str:
    return resources.files("klamm.plugins.demo").joinpath(_SCHEMA).read_text()


def tables(records: int, flights: pa.Table) -> Iterator[pa.Table]:
    """Yields the flights repeatedly, with `key` and `timestamp`: times are in order, evenly spread over the days."""
    sent = 0
    key = pc.binary_join_element_wise(*(flights[name].cast(pa.string()) for name in KEY_FIELDS), "/")
    struct = pa.chunked_array([pa.StructArray.from_arrays(
        [column.combine_chunks() for column in flights.columns], names=flights.column_names
    )])  # fmt: skip
    whole = pa.table({"value": struct, "key": key})
    while sent < records:
        part = whole.slice(sent % whole.num_rows, min(_ROWS, records - sent))
        first = int(BEGIN.timestamp() * 1000)
        stamps = [first + (sent + n) * DAYS * _DAY_MS // records for n in range(part.num_rows)]
        yield part.append_column("timestamp", pa.array(stamps, pa.timestamp("ms", tz="UTC")))
        sent += part.num_rows


@dataclass
class Site:
    """A context manager that starts the broker and the HDFS, and stops both on exit."""

    folder: Path
    records: int
    with_hdfs: bool = True
    ports: list[int] = field(default_factory=lambda: free_ports(5))

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()
        klamm = Path(PYTHON).with_name("klamm")
        self.broker = Klamm("klamm", self.folder / "broker", zookeeper=False, command=klamm)
        self.hdfs = HdfsServer(self.folder / "hdfs", HdfsPorts(*self.ports), ends_with_parent=True)

    def __enter__(self) -> Site:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.broker.start()
            if self.with_hdfs:
                self.hdfs.start(_HDFS_S)
            self._write_config()
            self.fill(FLIGHTS, self.records)
            self.fill(SMALL, SMALL_RECORDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.broker.stop()
        finally:
            self.hdfs.stop()
            remove(self.folder)

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    @property
    def config(self) -> Path:
        """Returns the configuration file of Klamm's clients."""
        return self.folder / "klamm.yaml"

    def broker_cpu_s(self) -> float:
        return cpu_seconds(self.broker.pids())

    def hdfs_cpu_s(self) -> float:
        servers = (self.hdfs.name_node, self.hdfs.data_node)
        return cpu_seconds(server.pid for server in servers if server is not None)

    def lake(self, scheme: str, number: int) -> str:
        """Returns the directory that measurement `number` writes to."""
        return f"{self.hdfs.uri}/lake-{number}" if scheme == "hdfs" else f"file://{self.folder}/lake-{number}"

    def sink_config(self, path: str, number: int, topic: str) -> Path:
        """Returns a configuration file for `klamm load` whose only sink writes to `path`, with a consumer group of its
        own.
        """
        sink = {
            "plugin": "hadoop",
            "topics": [topic],
            "path": path,
            "partition.by": "dt,hr",
            "group.id": f"load-{number}",
            "spark.driver.memory": DRIVER_MEMORY,
        }
        file = self.folder / f"load-{number}.yaml"
        file.write_text(yaml.safe_dump({**self._settings(), "sinks": {"lake": sink}}, sort_keys=False))
        return file

    def fill(self, topic: str, records: int) -> float:
        """Writes `records` to the topic and returns the seconds it took. Raises `RuntimeError` if the log then holds
        another number of records.
        """
        from klamm import Producer

        settings = load_settings(self.config)
        began = time.monotonic()
        with ClusterClient(self.bootstrap, codecs=settings.codec_table()) as cluster:
            cluster.create_topics({topic: NewTopic(partitions=PARTITIONS, configs={"retention.ms": "-1"})})
        with Producer(self.config) as producer:
            sent = [
                producer.send_arrow(topic, table, key="key", timestamp="timestamp")
                for table in tables(records, load_flights())
            ]
            producer.flush(_FLUSH_S)
            stored = sum(future.result(_FLUSH_S).records for future in sent)
        if stored != records:
            raise RuntimeError(f"{records} records were sent to {topic}, {stored} are stored")
        return time.monotonic() - began

    def _write_config(self) -> None:
        (self.folder / _SCHEMA).write_text(schema_text())
        self.config.write_text(yaml.safe_dump(self._settings(), sort_keys=False))

    def _settings(self) -> dict[str, object]:
        topic = {"partitions": PARTITIONS, "replication.factor": 1, "serde": "avro", "schema": _SCHEMA}
        return {
            "coordination": {"plugin": "embedded", "path": str(self.broker.data_dir.with_name("coordination.db"))},
            "topics": {FLIGHTS: topic, SMALL: topic},
            "producer": {
                "bootstrap.servers": self.bootstrap,
                "compression.type": "zstd",
                "linger.ms": 20,
                "batch.size": 65_536,
            },
            "consumer": {"bootstrap.servers": self.bootstrap},
        }


def spark_config(jars: str, **more: str) -> str:
    """Returns Spark's default settings, on as many cores and with as much memory as `klamm load` takes."""
    return json.dumps({
        "spark.master": "local[2]", "spark.driver.memory": DRIVER_MEMORY, "spark.jars": jars,
        "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "16", "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", **more,
    })  # fmt: skip
