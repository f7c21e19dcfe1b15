"""Events of the audit's tiers: sent together, when somebody waits for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from klamm.core.client import event_publisher
from klamm.core.client.event_publisher import EventPublisher
from klamm.core.errors import KlammError
from klamm.core.records.decode import decode_batch
from klamm.core.records.header import BatchHeader
from klamm.core.records.partition import TopicPartition
from klammtest.audits import CODECS

EVENTS = TopicPartition("events", 0)


class Cluster:
    """As much of `ClusterClient` as a publisher uses; `requests` are those that were answered."""

    def __init__(self, partitions: int = 1) -> None:
        self._count = partitions
        self.requests: list[dict[TopicPartition, list[tuple[Any, Any]]]] = []
        self.away = False

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self._count)]

    def produce(self, batches: Mapping[TopicPartition, bytes]) -> None:
        if self.away:
            raise KlammError("no broker")
        self.requests.append(
            {
                partition: [(r.key, r.value) for r in decode_batch(batch, 0, BatchHeader.parse(batch), CODECS)]
                for partition, batch in batches.items()
            }
        )


def publisher(cluster: Any) -> EventPublisher:
    return EventPublisher(cluster, "events", lambda: 7)


def test_what_waits_goes_in_one_request_once_somebody_asks() -> None:
    cluster = Cluster()
    publish = publisher(cluster)
    stored = [publish(b"k%d" % n, b"v") for n in range(3)]
    assert cluster.requests == []
    stored[1].result(1)
    assert all(future.done() for future in stored)
    assert cluster.requests == [{EVENTS: [(b"k0", b"v"), (b"k1", b"v"), (b"k2", b"v")]}]
    stored[2].result(1)
    publish(b"k3", b"v").result(1)
    assert len(cluster.requests) == 2


def test_one_key_goes_to_one_partition_in_its_order() -> None:
    cluster = Cluster(partitions=3)
    publish = publisher(cluster)
    stored = [publish(b"k%d" % (n % 5), b"%d" % n) for n in range(20)]
    stored[0].result(1)
    [request] = cluster.requests
    for key in range(5):
        found = [[v for k, v in records if k == b"k%d" % key] for records in request.values()]
        assert [values for values in found if values] == [[b"%d" % n for n in range(20) if n % 5 == key]]


def test_requests_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_publisher, "_MOST_BYTES", 10)
    cluster = Cluster()
    publish = publisher(cluster)
    stored = [publish(b"k", b"v" * size) for size in (4, 4, 4, 50, 1)]
    stored[-1].result(1)
    assert [[len(value) for _, value in request[EVENTS]] for request in cluster.requests] == [[4, 4], [4], [50], [1]]


def test_an_event_that_is_not_stored_says_why_and_the_next_is_tried() -> None:
    cluster = Cluster()
    publish = publisher(cluster)
    cluster.away = True
    lost = [publish(b"k", b"v") for _ in range(2)]
    for future in lost:
        with pytest.raises(KlammError, match="no broker"):
            future.result(1)
    cluster.away = False
    publish(b"k", b"again").result(1)
    assert cluster.requests == [{EVENTS: [(b"k", b"again")]}]
