"""The parts shared by tests of the producer: settings, and reading back the records of a topic."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import Settings, load_settings
from klamm.core.interfaces.audit import AuditIdentity, Counted, Publish
from klamm.core.records.decode import decode_batch
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Headers, Record
from klammtest.broker import RunningBroker


def producer_settings(broker: RunningBroker, **options: Any) -> Settings:
    """Returns settings of a producer that lingers for 1 ms. `options` are its keys, with _ for dots."""
    given = {key.replace("_", "."): value for key, value in options.items()}
    return load_settings({"producer": {"bootstrap.servers": broker.bootstrap, "linger.ms": 1, **given}})


def stored(client: ClusterClient, topic: str) -> dict[int, list[Record]]:
    """Returns all records by partition."""
    result: dict[int, list[Record]] = {}
    for tp in client.partitions(topic):
        node_id = client.cluster.leader(tp)
        assert node_id is not None
        records = result[tp.partition] = list[Record]()
        while data := client.fetch(node_id, {tp: len(records)}, max_wait_ms=0)[tp].records:
            for position, header in iter_headers(data):
                records += decode_batch(data, position, header, client.codecs)
    return result


def two_apart(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
    """A partitioner: the value `two` goes to partition 2, all others to 0."""
    return 2 if value == b"two" else 0


def topic_name(request: pytest.FixtureRequest) -> str:
    """Returns a topic name made from the test's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:200]


class CountingAudit:
    """An audit of one topic that keeps what a producer reports, and publishes one event when the producer is closed.

    `counted` holds (what, topic, timestamp or start of the window in ms, bytes, records). With `raises`, `attempted`
    fails after it has counted.
    """

    topic = "audited-events"

    def __init__(self, audited: str, window_ms: int = 600_000, *, raises: bool = False) -> None:
        self.window_ms = window_ms
        self.counted: list[tuple[str, str, int, int, int]] = []
        self.identity: AuditIdentity | None = None
        self._audited = audited
        self._raises = raises

    def audits(self, topic: str) -> bool:
        return topic == self._audited

    def mark(self, identity: AuditIdentity, partition: TopicPartition, counted: Counted) -> Headers:
        records = sum(count for _, count, _ in counted)
        return (("application", identity.application.encode()), ("batch", f"{records} {partition}".encode()))

    def producer(self, identity: AuditIdentity, publish: Publish) -> CountingAudit:
        self.identity, self._publish = identity, publish
        return self

    def begin(self, topic: str) -> bool:
        return True

    def end(self, topic: str) -> None:
        return

    def attempted(self, topic: str, timestamp_ms: int, size: int, count: int = 1) -> None:
        self.counted.append(("attempted", topic, timestamp_ms, size, count))
        if self._raises:
            raise RuntimeError("on purpose")

    def acknowledged(self, topic: str, timestamp_ms: int, size: int, count: int = 1) -> None:
        self.counted.append(("acknowledged", topic, timestamp_ms, size, count))

    def failed(self, topic: str, count: int = 1) -> None:
        self.counted.append(("failed", topic, 0, 0, count))

    def flush(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._publish(b"key", b"event").result(60)
