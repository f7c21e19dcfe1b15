"""`/health`: what probes read, and what it says is wrong; and the lag of groups, beside it on the endpoint."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from klamm import Consumer
from klamm.core.broker.health_check import STALLED_S, HealthCheck
from klamm.core.broker.metrics.counters import BrokerMetrics, BrokerState
from klamm.core.broker.metrics.endpoint import metrics_service
from klamm.core.client.cluster_client import LATEST, ClusterClient
from klamm.core.interfaces.coordination import SessionEvent
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klamm.core.transport.address import Address
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.grouping import coordinated
from klammtest.ports import free_port
from klammtest.requests import produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient

OLD_MS = 1_000_000_000_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, str]]:
    port = free_port()
    keys = {"metrics.port": port, "consumer.lag.interval.ms": 50}
    with running_broker(tmp_path_factory.mktemp("health"), topics={"t": {"partitions": 3}}, broker=keys) as broker:
        yield broker, f"http://127.0.0.1:{port}"


def test_a_broker_that_serves_is_live_and_ready(served: tuple[RunningBroker, str]) -> None:
    for path in ("/health", "/health/live", "/health/ready", "/health/"):
        with urllib.request.urlopen(served[1] + path, timeout=60) as answer:
            assert answer.headers["Content-Type"] == "application/json"
            assert json.load(answer) == {
                "broker": 0, "state": "serving", "live": True, "ready": True, "problems": {}
            }  # fmt: skip


def test_clients_that_send_little_or_nothing_delay_no_probe(served: tuple[RunningBroker, str]) -> None:
    port = int(served[1].rpartition(":")[2])
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
    for connection in slow:
        connection.send(b"G")
    with urllib.request.urlopen(served[1] + "/health", timeout=60) as answer:
        assert json.load(answer)["ready"]
    for connection in slow:
        connection.close()


def test_a_client_that_goes_on_sending_is_disconnected_and_the_oldest_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: Any = Watched()
    health = HealthCheck(watched, lambda: BrokerState.SERVING)
    service = metrics_service(Address("127.0.0.1", 0), CollectorRegistry(), health)
    service.start()

    def opened() -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", service.address.port))
        connection.settimeout(0.01)
        return connection

    def ended(connection: socket.socket) -> bool:
        try:
            connection.send(b"G")
            return connection.recv(1) == b""
        except OSError as error:
            return not isinstance(error, TimeoutError)

    many = [opened() for _ in range(40)]
    eventually(lambda: ended(many[0]), "the oldest is disconnected")
    monkeypatch.setattr("klamm.core.broker.metrics.endpoint._LONGEST_S", 0.1)
    eventually(lambda: ended(many[-1]), "it is disconnected, though it sends")
    for connection in many:
        connection.close()
    service.stop()


def lag_of(url: str, name: str, partition: int) -> float | None:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    wanted = {"group": "late", "topic": "t", "partition": str(partition)}
    return next((s.value for s in families[f"klamm_consumergroup_{name}"].samples if s.labels == wanted), None)


def test_the_lag_of_a_group_in_records_and_seconds(served: tuple[RunningBroker, str]) -> None:
    broker, url = served
    with WireClient(broker.bootstrap) as wire:
        for number in range(3):
            produce(wire, "t", encode_batch([(OLD_MS + number * 1000, None, b"v", ())] * 2))
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
        client.commit_offsets("late", {TopicPartition("t", n): CommittedOffset(2 - 2 * n) for n in (0, 1)})
        eventually(lambda: lag_of(url, "lag", 0) == 4, "four records are behind the committed offset")
        age = lag_of(url, "lag_seconds", 0)
        assert age is not None
        assert 0 <= time.time() - (OLD_MS / 1000 + 1) - age < 600
        assert (lag_of(url, "lag", 1), lag_of(url, "lag_seconds", 1)) == (0, 0)
        client.commit_offsets("late", {TopicPartition("t", 0): CommittedOffset(6)})
        eventually(lambda: lag_of(url, "lag", 0) == 0, "the group has all")
        assert lag_of(url, "lag_seconds", 0) == 0


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")  # kafka-python's own imports
def test_the_lag_is_that_of_other_clients(served: tuple[RunningBroker, str]) -> None:
    """librdkafka's `consumer_lag`, `records-lag-max` of kafka-python (Kafka's metric), and our consumer's own."""
    broker, url = served
    import kafka

    partition, values = TopicPartition("t", 2), [b"%d" % n for n in range(5)]
    settings = {"bootstrap_servers": broker.bootstrap, "auto_offset_reset": "earliest"}
    with WireClient(broker.bootstrap) as wire, ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
        produce(wire, "t", encode_batch([(OLD_MS, None, value, ()) for value in values]), partition=2)
        wanted = client.list_offsets({partition: LATEST})[partition][0] - 2
        coordinated(wire, "late")
    found: list[int] = []

    def note(text: str) -> None:
        known = json.loads(text)["topics"].get("t", {"partitions": {}})["partitions"]
        if "2" in known:  # it is not, before the partition is assigned
            found.append(known["2"]["consumer_lag"])

    theirs = {"bootstrap.servers": broker.bootstrap, "group.id": "late", "statistics.interval.ms": 50}
    consumer = confluent_kafka.Consumer({**theirs, "enable.auto.commit": False, "stats_cb": note})
    consumer.assign([confluent_kafka.TopicPartition("t", 2, 0)])
    assert [message.value() for message in consumer.consume(2, 60)] == values[:2]
    consumer.commit(asynchronous=False)

    def lag_of_librdkafka() -> int | None:
        consumer.pause([confluent_kafka.TopicPartition("t", 2)])
        consumer.poll(0.05)
        return found[-1] if found else None

    eventually(lambda: lag_of_librdkafka() == wanted, "librdkafka's lag")
    consumer.close()
    eventually(lambda: lag_of(url, "lag", 2) == wanted, "the broker's lag of what librdkafka has committed")
    python = kafka.KafkaConsumer(**settings, max_poll_records=2)
    python.assign([kafka.TopicPartition("t", 2)])
    eventually(lambda: python.poll(100) != {}, "two records")
    assert python.metrics()["consumer-fetch-manager-metrics"]["records-lag-max"] == wanted
    python.close()
    with Consumer({"consumer": {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"}}) as ours:
        ours.assign([partition])
        eventually(lambda: ours.poll(1, 2) != [], "two records")
        assert ours.metrics()["lag"] == wanted


class Watched:
    """A broker without defects, as far as the health reads it."""

    def __init__(self) -> None:
        self.broker_id = 3
        self.connections = SimpleNamespace(metrics=BrokerMetrics())
        self.partitions: list[Any] = []
        self.logs = SimpleNamespace(logs=dict, space=SimpleNamespace(refused={}))
        self.cluster = SimpleNamespace(image=lambda: SimpleNamespace(topics={}, brokers={3: None}))
        self.background = SimpleNamespace(health=dict)


def checked(watched: Any, state: BrokerState = BrokerState.SERVING, later_s: float = 0.0) -> Any:
    now = watched.connections.metrics.loop_woke_at + later_s
    return json.loads(HealthCheck(watched, lambda: state, lambda: now)().to_json())


@pytest.mark.parametrize("state", [BrokerState.STARTING, BrokerState.STOPPING, BrokerState.FAILED])
def test_only_a_broker_that_serves_is_ready(state: BrokerState) -> None:
    found = checked(Watched(), state)
    assert (found["live"], found["ready"]) == (True, False)
    assert found["problems"] == {"state": f"the broker is {state.value}"}


def test_a_broker_whose_event_loop_stands_still_is_not_live() -> None:
    found = checked(Watched(), later_s=STALLED_S)
    assert (found["live"], found["ready"]) == (False, False)
    assert found["problems"] == {"event_loop": "the event loop has not run for 30 s"}


def test_a_broker_without_its_session_is_not_ready_and_one_whose_coordination_is_away_is() -> None:
    watched = Watched()
    watched.connections.metrics.session(SessionEvent.SUSPENDED)
    found = checked(watched)
    assert (found["live"], found["ready"], list(found["problems"])) == (True, True, ["coordination"])
    watched.connections.metrics.session(SessionEvent.EXPIRED)
    found = checked(watched)
    assert (found["live"], found["ready"], list(found["problems"])) == (True, False, ["session"])


def test_what_a_restart_does_not_mend_is_listed() -> None:
    tp = TopicPartition("t", 0)
    watched = Watched()
    watched.logs = SimpleNamespace(
        logs=lambda: {tp: SimpleNamespace(offline="EIO")}, space=SimpleNamespace(refused={tp: None})
    )
    watched.partitions = [
        SimpleNamespace(name=tp, in_sync=1, replicas=(0, 1), leader=SimpleNamespace(is_under_min_isr=True))
    ]
    topic = SimpleNamespace(name="t", partitions={0: SimpleNamespace(leader=9)})
    watched.cluster = SimpleNamespace(image=lambda: SimpleNamespace(topics={"t": topic}, brokers={3: None}))
    watched.background = SimpleNamespace(health=lambda: {"audit": "it has not started yet", "fine": None})
    found = checked(watched)
    assert (found["live"], found["ready"]) == (True, True)
    assert found["problems"] == {
        "offline_replicas": "t-0 is offline after a disk error",
        "full_disk": "t-0 takes no records: the disk is full",
        "offline_partitions": "t-0 has no leader",
        "under_replicated": "t-0 lacks a replica in sync",
        "under_min_isr": "t-0 refuses acks=all",
        "service audit": "it has not started yet",
    }
