"""Consumers under test, some in threads of this process, and the records that they read."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import klamm
from klamm.core.records.partition import TopicPartition
from klamm.testing import waiting
from klammtest.broker import RunningBroker


def client_config(broker: RunningBroker, topics: Mapping[str, Any] | None = None, **consumer: Any) -> dict[str, Any]:
    """Returns the configuration of a client of this broker; `consumer` keys have underscores for dots."""
    import yaml

    written = yaml.safe_load(broker.config_path.read_text())
    coordination = dict(written["coordination"])
    if "path" in coordination:
        coordination["path"] = str(broker.folder / coordination["path"])
    keys = {key.replace("_", "."): value for key, value in consumer.items()}
    return {
        "coordination": coordination,
        "topics": dict(topics or {}),
        "producer": {"bootstrap.servers": broker.bootstrap, "linger.ms": 2},
        "consumer": {
            "bootstrap.servers": broker.bootstrap,
            "auto.offset.reset": "earliest",
            "rebalance.backoff.ms": 300,
            "fetch.max.wait.ms": 100,
            **keys,
        },
    }


def produce(config: Mapping[str, Any], topic: str, values: Mapping[int, list[Any]]) -> None:
    """Produces values by partition, in order."""
    with klamm.Producer(config) as producer:
        futures = [producer.send(topic, v, partition=n) for n, many in values.items() for v in many]
        producer.flush(60)
        for future in futures:
            future.result(0)


def read(consumer: klamm.Consumer, count: int) -> list[Any]:
    """Polls until at least `count` records have arrived; returns all that arrived."""
    records: list[Any] = []
    deadline = time.monotonic() + waiting.PATIENCE_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records within {waiting.PATIENCE_S:.0f} s"
        records += consumer.poll(0.2)
    return records


class Reader(threading.Thread):
    """Polls until it is stopped; then closes the consumer."""

    def __init__(self, consumer: klamm.Consumer, dwell_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.consumer = consumer
        self.seen: list[tuple[TopicPartition, int]] = []
        self.error: Exception | None = None
        self._dwell_s = dwell_s
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with self.consumer:
                while not self._stop_asked.is_set():
                    for record in self.consumer.poll(0.1, 50):
                        self.seen.append((TopicPartition(record.topic, record.partition), record.offset))
                    self._stop_asked.wait(self._dwell_s)
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(waiting.PATIENCE_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
