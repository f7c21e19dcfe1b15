"""A broker on a thread, one topic without a schema, and the lake beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import load_settings
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.load.loader import Loader
from klamm.hadoop.load.report import TopicReport
from klammtest.brokers.inprocess import broker_thread

T0 = TopicPartition("t", 0)
KEPT = NewTopic(partitions=1, configs={"retention.ms": "-1", "verify.payload": "none"})


class Served:
    """A running broker with one topic, and the lake of that topic."""

    def __init__(self, folder: Path, bootstrap: str, client: ClusterClient) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.client = client
        self.warnings = folder / "warnings"

    def produce(self, values: range) -> None:
        """Produces records, ten to a batch."""
        for first in values[::10]:
            rows = [(1_000_000 + n, None, b"v%d" % n, ()) for n in range(first, min(first + 10, values.stop))]
            self.client.produce({T0: encode_batch(rows)})

    def load(self, **options: Any) -> str:
        sink = {"plugin": "hadoop", "topics": ["t"], "path": f"{self.folder}/lake", **options}
        settings = load_settings({"consumer": {"bootstrap.servers": self.bootstrap}, "sinks": {"lake": sink}})
        with self.warnings.open("a") as said, Loader(settings, "lake", Console(file=said, width=500)) as loader:
            return "\n".join(TopicReport("t", tuple(loader.loads("t")), 0.0).lines())

    def manifest(self, load: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._path(load, "_offsets.json").read_text())
        return found

    def audit(self, load: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._path(load, "_audit.json").read_text())["ranges"]
        return found

    def _path(self, load: int, name: str) -> Path:
        return self.folder / "lake" / "t" / f"load={load:06d}" / name


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    coordination = {"plugin": "embedded", "path": str(folder / "broker" / "coordination.db")}
    (folder / "broker").mkdir(exist_ok=True)
    with broker_thread(folder / "broker", coordination) as broker:
        bootstrap = f"127.0.0.1:{broker.advertised[0].port}"
        with ClusterClient(bootstrap, codecs=CodecTable()) as client:
            client.create_topics({"t": KEPT}, exists_ok=True)
            yield Served(folder, bootstrap, client)
