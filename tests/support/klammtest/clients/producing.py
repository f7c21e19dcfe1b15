"""What tests of the producer share: settings, and reading back what a topic holds."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import Settings, load_settings
from klamm.core.records.decode import decode_batch
from klamm.core.records.header import iter_headers
from klamm.core.records.record import Record
from klammtest.broker import RunningBroker


def producer_settings(broker: RunningBroker, **options: Any) -> Settings:
    """Settings of a producer that lingers for 1 ms. `options` are its keys, with _ for dots."""
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
