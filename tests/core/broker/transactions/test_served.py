"""Logs with transactions served by a broker: the bytes that Apache Kafka 4.4 wrote, and its answers about them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from klamm.core.broker.server import Broker
from klamm.core.broker.service_context import LocalBrokerContext
from klamm.core.client.cluster_client import NewTopic
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.header import iter_headers
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.inprocess import broker_thread
from klammtest.kafka_transactions import Partition, led, recorded, served
from klammtest.logs import codec_table
from klammtest.requests import fetch_fields
from klammtest.transactional_logs import add, end, transactional
from klammtest.transactional_reads import differences
from klammtest.waiting import eventually
from klammtest.wire import WireClient

LOGS = recorded()
OPEN = TopicPartition("open", 0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("broker")
    coordination = {"plugin": "embedded", "path": str(folder / "coordination.db")}
    with broker_thread(folder, coordination) as running, served(running, LOGS, codec_table()) as client:
        client.create_topics({OPEN.topic: NewTopic(1, 1)})
        yield running


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log.tp))
def test_kafkas_bytes_are_read_as_from_kafka(broker: Broker, log: Partition) -> None:
    assert log.committed != log.uncommitted
    assert differences(f"127.0.0.1:{broker.advertised[0].port}", log, broker) == []


def test_the_end_of_a_transaction_wakes_a_fetch_that_waits_for_many_bytes(broker: Broker) -> None:
    """The marker has 78 bytes, and shows a thousand times as many."""
    replica = led(broker, OPEN)
    for n in range(10):
        add(replica.log, transactional([b"x" * 10_000], producer=(7, 0, n)))
    replica.log.advance_high_watermark(replica.log.log_end_offset)
    with WireClient(f"127.0.0.1:{broker.advertised[0].port}") as wire:
        fields = fetch_fields({OPEN: 0}, max_wait_ms=600_000, min_bytes=50_000)
        wire.send(ApiKey.FETCH, 12, **{**fields, "isolation_level": 1})
        eventually(lambda: replica.parked, "the fetch is parked")
        assert replica.log.last_stable_offset == 0
        replica._loop.call_soon_threadsafe(lambda: end(replica.log, 7, commit=True))
        answer = wire.receive(ApiKey.FETCH, 12).responses[0].partitions[0]
    assert len(answer.records) >= 50_000


def test_a_service_reads_the_records_of_committed_transactions(broker: Broker) -> None:
    log = LOGS[0]
    context = LocalBrokerContext.__new__(LocalBrokerContext)
    context._services = broker._services
    read = context.read(log.tp, 0, 1 << 20, IsolationLevel.READ_COMMITTED)
    assert read.end == log.ends[1]
    shown = [header.base_offset for _, header in iter_headers(read.data) if not header.is_control]
    offsets = {offset for offset, _, _ in log.committed}
    assert set(shown) <= offsets
    assert len(list(iter_headers(read.data))) > len(shown)
