"""An Apache Kafka (from the jars that `bench/install.sh` fetches) and a broker of Klamm that mirrors it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.records.partition import TopicPartition
from klammbench.systems.kafka import Kafka, kafka_tuned
from klammtest.broker import RunningBroker, running_broker
from klammtest.logs import codec_table


@dataclass(frozen=True)
class MirroredKafka:
    """`source` and `target`: clients of Kafka and of the broker."""

    broker: RunningBroker
    source: ClusterClient
    target: ClusterClient

    def run(self, app: typer.Typer, *arguments: str) -> float:
        """Runs a command of `klamm` for the broker; returns how long it took, in seconds. Raises `RuntimeError` with
        its output."""
        start = time.monotonic()
        result = CliRunner().invoke(app, [*arguments, "--config", str(self.broker.config_path)])
        if result.exception is not None:
            raise RuntimeError(f"{' '.join(arguments)}: {result.output}") from result.exception
        return time.monotonic() - start


@contextmanager
def running_kafka(folder: Path) -> Iterator[Kafka]:
    kafka = kafka_tuned(folder)
    kafka.start()
    try:
        yield kafka
    finally:
        kafka.stop()


@contextmanager
def mirrored(kafka: Kafka, folder: Path, name: str, link: Mapping[str, Any]) -> Iterator[MirroredKafka]:
    """Runs a broker whose file defines the link `name`; `klamm mirror create` stores it."""
    links = {name: {"bootstrap.servers": kafka.bootstrap, **link}}
    with (
        ClusterClient(kafka.bootstrap, codecs=codec_table()) as source,
        running_broker(folder, mirrors=links) as broker,
        ClusterClient(broker.bootstrap, codecs=codec_table()) as target,
    ):
        yield MirroredKafka(broker, source, target)


def committed(client: ClusterClient, group: str) -> dict[TopicPartition, int]:
    return {tp: each.offset for tp, each in client.fetch_offsets(group).items()}
