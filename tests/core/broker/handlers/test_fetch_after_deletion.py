"""Fetch of a topic that is deleted and created again: the id of the old one reads nothing of the new one."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from klamm.core.broker.handlers import fetch as handler
from klamm.core.broker.replication.parked_fetch import ParkedFetch
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.broker.replication.replica import Replica
from klamm.core.broker.server import Broker
from klamm.core.broker.services import Services
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.inprocess import broker_thread
from klammtest.requests import batch, fetch_fields, new_topic, produce
from klammtest.wire import WireClient

LONG_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    with broker_thread(folder, {"plugin": "embedded", "path": str(folder / "coordination.db")}) as running:
        yield running


@pytest.fixture
def wire(broker: Broker) -> Iterator[WireClient]:
    with WireClient(f"127.0.0.1:{broker.advertised[0].port}") as client:
        yield client


def test_a_topic_that_is_deleted_before_its_fetch_waits_ends_it(
    wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, waits = new_topic(wire), []
    find = Partitions.replica

    def parked(min_bytes: int) -> ParkedFetch:
        waits.append(topic)
        return ParkedFetch(min_bytes)

    def replica(self: Partitions, name: TopicPartition) -> Replica | None:
        if name.topic in waits:  # it was read, and is deleted before the fetch waits for it
            self.remove([name])
        return find(self, name)

    monkeypatch.setattr(handler, "ParkedFetch", parked)
    monkeypatch.setattr(Partitions, "replica", replica)
    wire.send(ApiKey.FETCH, 12, **fetch_fields({(topic, 0): 0}, max_wait_ms=LONG_MS))
    (answer,) = wire.receive(ApiKey.FETCH, 12).responses[0].partitions
    assert answer.error_code is not ErrorCode.none


def test_the_id_of_a_former_topic_reads_nothing_of_the_new_one(
    wire: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(wire)
    produce(wire, topic, batch(b"a"))
    monkeypatch.setattr(Services, "topic_name", lambda *_: topic)  # as if looked up before the topic was created again
    asked = fetch_fields({(topic, 0): 0}, version=16, topic_ids={topic: UUID(int=7)}, max_wait_ms=LONG_MS)
    (answer,) = wire.call(ApiKey.FETCH, 16, **asked).responses[0].partitions
    assert (answer.error_code, answer.records) == (ErrorCode.unknown_topic_id, b"")
