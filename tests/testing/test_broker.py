"""`KlammBroker`: records and topics, clean-up, faults as clients meet them, and a process that outlives nobody."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

import klamm
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.testing import BrokerControlError, KlammBroker
from klamm.testing.waiting import eventually
from klammtest.requests import batch, produce
from klammtest.wire import WireClient

TRIP = {"type": "record", "name": "Trip", "fields": [{"name": "km", "type": "double"}]}
OTHER = {"type": "record", "name": "Trip", "fields": [{"name": "rider", "type": "string"}]}
PARENT = """
import sys
from klamm.testing import KlammBroker
broker = KlammBroker()
broker.start()
print(broker.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def process() -> Iterator[KlammBroker]:
    with KlammBroker(topics={"declared": 2}) as broker:
        yield broker


@pytest.fixture
def broker(process: KlammBroker) -> Iterator[KlammBroker]:
    yield process
    process.reset()


def refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def values(broker: KlammBroker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def test_a_record_is_stored_with_all_it_has(broker: KlammBroker) -> None:
    assert broker.send("declared", "größe", key=b"k", partition=1, headers=[("h", None)], timestamp_ms=5) == 0
    (record,) = broker.records("declared", at_least=1)
    assert record == (1, 0, 5, b"k", "größe".encode(), (("h", None),))
    assert broker.send("declared", None) == 0
    assert values(broker, "declared") == [None, "größe".encode()]


def test_a_topic_has_its_partitions_and_settings(broker: KlammBroker) -> None:
    assert broker.create_topic("t", 3, config={"max.message.bytes": 100}) == "t"
    assert broker.topics() == {"declared": 2, "t": 3}
    with pytest.raises(BrokerControlError, match=r"MESSAGE_TOO_LARGE: .*max.message.bytes"):
        broker.send("t", b"x" * 200)
    assert broker.create_topic() != broker.create_topic()
    broker.delete_topic("t")
    assert "t" not in broker.topics()


def test_a_reset_leaves_what_was_declared(broker: KlammBroker) -> None:
    broker.send("declared", "x")
    broker.create_topic("trips", schema=TRIP)
    with klamm.Producer(broker.config_path) as producer:
        producer.send("trips", {"km": 1.5}).result(60)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["declared"])
    eventually(lambda: consumer.poll(1.0), "a record")
    consumer.commit(asynchronous=False)
    consumer.close()
    assert broker.committed("g") == {("declared", 0): 1}
    broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER", times=None)
    broker.reset()
    assert broker.topics() == {"declared": 2}
    assert broker.committed("g") == {}
    assert broker.faults() == []
    assert broker.send("declared", "x") == 0, "offsets begin again"
    broker.create_topic("trips", schema=OTHER)  # which no version of before could follow
    with klamm.Producer(broker.config_path) as producer:
        assert producer.send("trips", {"rider": "ann"}).result(60).offset == 0


def test_a_kill_and_a_start_keep_port_and_data(broker: KlammBroker) -> None:
    before = broker.bootstrap_servers
    broker.send("declared", "x")
    broker.kill()
    assert not broker.is_running
    with pytest.raises(BrokerControlError, match="does not run: call `start`"):
        broker.topics()
    broker.start()
    assert (broker.bootstrap_servers, values(broker, "declared")) == (before, [b"x"])


def test_a_paused_broker_answers_later(broker: KlammBroker) -> None:
    with WireClient(broker.bootstrap_servers) as wire:
        produce(wire, "declared", batch(b"before"))
        broker.pause()
        with pytest.raises(BrokerControlError, match="is paused: call `resume`"):
            broker.topics()
        wire.send(ApiKey.API_VERSIONS, 0)
        broker.resume()
        assert wire.receive(ApiKey.API_VERSIONS, 0).error_code is ErrorCode.none


def test_a_producer_meets_an_error_a_delay_and_a_lost_answer(broker: KlammBroker) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    broker.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")
    broker.delay_next("Produce", 0.05)
    broker.disconnect_next("Produce", carried_out=True)
    assert broker.faults() == [
        "PRODUCE: fail with NOT_LEADER_OR_FOLLOWER, 1 more",
        "PRODUCE: delay by 0.05 s, 1 more",
        "PRODUCE: disconnect after it is carried out, 1 more",
    ]
    for value in (b"0", b"1", b"2"):
        producer.produce("declared", value, partition=0)
        assert producer.flush(60) == 0
    assert broker.faults() == []
    assert values(broker, "declared") == [b"0", b"1", b"2"]


def test_an_error_that_is_no_passing_one_reaches_the_application(broker: KlammBroker) -> None:
    reports: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    broker.fail_next("Produce", "MESSAGE_TOO_LARGE", times=None)
    producer.produce("declared", b"x", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(60) == 0
    assert [error.code() for error in reports if error] == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]
    assert broker.faults() == ["PRODUCE: fail with MESSAGE_TOO_LARGE, until cleared"]
    broker.clear_faults()
    assert broker.send("declared", "x") == 0


@pytest.mark.parametrize(("carried_out", "stored"), [(False, []), (True, [b"x"])])
def test_a_closed_connection(broker: KlammBroker, carried_out: bool, stored: list[bytes]) -> None:
    broker.disconnect_next("Produce", carried_out=carried_out)
    with WireClient(broker.bootstrap_servers) as wire, pytest.raises(AssertionError, match="closed the connection"):
        produce(wire, "declared", batch(b"x"))
    assert values(broker, "declared") == stored


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("Produc", "MESSAGE_TOO_LARGE"), "no request 'Produc' is served: is Produce meant?"),
        (("Produce", "NOT_LEADER"), "Kafka has no error 'NOT_LEADER': is NOT_LEADER_OR_FOLLOWER meant?"),
        (("Metadata", "MESSAGE_TOO_LARGE"), "METADATA cannot be answered with an error by this switch"),
    ],
)
def test_a_fault_that_cannot_be_is_one_line(broker: KlammBroker, arguments: tuple[str, str], line: str) -> None:
    with pytest.raises(BrokerControlError) as caught:
        broker.fail_next(*arguments)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_topic_that_cannot_be_made_is_one_line_and_not_in_the_file(broker: KlammBroker) -> None:
    for name, config in (("declared", {}), ("t", {"retention.mss": 1})):
        with pytest.raises(BrokerControlError, match=f"{name}|retention.ms") as caught:
            broker.create_topic(name, config=config)
        assert "\n" not in str(caught.value)
    with klamm.Producer(broker.config_path) as producer:
        assert producer.send("declared", "x").result(60).offset == 0


def test_a_schema_that_is_none_is_refused_with_its_topic(broker: KlammBroker) -> None:
    with pytest.raises(BrokerControlError, match=r"topics.wrong.schema: .*not an Avro schema: unknown type 'nope'"):
        broker.create_topic("wrong", schema={"type": "nope"})
    assert "wrong" not in broker.topics()
    assert "wrong" not in broker.config_path.read_text()


def test_one_that_does_not_answer_shows_where_its_threads_are(
    broker: KlammBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.delay_next("CreateTopics", 600)
    with monkeypatch.context() as shorter:
        shorter.setattr("klamm.testing.broker._ANSWER_TIMEOUT_S", 2.0)
        with pytest.raises(BrokerControlError, match=r"did not answer within 2 s:(.|\n)*in _create_topics\n"):
            broker.create_topic("slow")
    assert not broker.is_running
    broker.start()
    assert broker.create_topic("slow") == "slow"


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = KlammBroker(folder=tmp_path, broker={"log.dirz": "x"})
    with pytest.raises(BrokerControlError, match=r"does not start: .*log\.dirz: .*log\.dirs"):
        broker.start()
    assert not broker.is_running


def test_the_broker_ends_with_the_process_that_started_it() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port = int(parent.stdout.readline())
    socket.create_connection(("127.0.0.1", port)).close()
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    eventually(lambda: refused(port), "the broker's end")
