"""A topic that is deleted and created again while a producer sends: no record is lost without an error."""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import Future

import pytest

import klamm
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.errors import UnknownTopicError
from klamm.core.errors import DeliveryError
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import RecordMetadata
from klammtest.broker import RunningBroker
from klammtest.clients.readers import client_config
from klammtest.waiting import PATIENCE_S, eventually

NUMBER = itertools.count()


class Sending(threading.Thread):
    """Sends numbers to one partition after the other until it is stopped; `sent`: the future of each that was taken."""

    def __init__(self, producer: klamm.Producer, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._producer, self._topic, self._partitions = producer, topic, partitions
        self._stop_asked = threading.Event()
        self.sent: dict[int, Future[RecordMetadata]] = {}
        self.start()

    def run(self) -> None:
        for n in itertools.count():
            if self._stop_asked.wait(0.001):
                return
            with contextlib.suppress(UnknownTopicError):  # the partition is gone, and the producer knows
                self.sent[n] = self._producer.send(self._topic, b"%d" % n, partition=n % self._partitions)

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("partitions", [3, 1])
def test_each_record_is_delivered_or_an_error(
    broker: RunningBroker, client: ClusterClient, partitions: int, *, idempotent: bool
) -> None:
    topic = f"produced-{next(NUMBER)}"
    client.create_topics({topic: NewTopic(3)})
    config = client_config(broker)
    config["producer"] |= {"enable.idempotence": idempotent, "delivery.timeout.ms": 6_000, "request.timeout.ms": 3_000}
    with klamm.Producer(config) as producer:
        sending = Sending(producer, topic, 3)
        eventually(lambda: len(sending.sent) > 200, "sending")
        client.delete_topics([topic])
        eventually(lambda: not client.topic_ids([topic]), "the topic is gone")
        client.create_topics({topic: NewTopic(partitions)})
        successor = client.topic_ids([topic])[topic]
        first_after = len(sending.sent)
        eventually(lambda: len(sending.sent) > first_after + 500, "sending on")
        sending.stop()
        producer.flush(PATIENCE_S)
        delivered: dict[TopicPartition, dict[int, int]] = {}
        for n, future in sending.sent.items():
            try:
                where = future.result(PATIENCE_S)
            except DeliveryError:
                continue
            if n >= first_after:
                delivered.setdefault(TopicPartition(topic, where.partition), {})[where.offset] = n
    assert client.topic_ids([topic])[topic] == successor
    assert delivered, "it goes on in the successor"
    found: dict[TopicPartition, dict[int, int]] = {}
    with klamm.Consumer(config) as consumer:
        consumer.assign(client.partitions(topic))
        ends = client.list_offsets(dict.fromkeys(client.partitions(topic), -1))
        wanted = sum(end for end, _ in ends.values())
        while sum(map(len, found.values())) < wanted:
            for r in consumer.poll(5.0):
                found.setdefault(TopicPartition(topic, r.partition), {})[r.offset] = int(r.value)
    for partition, places in delivered.items():
        assert places.items() <= found[partition].items(), "acknowledged and lost"
    for values in found.values():
        assert len(set(values.values())) == len(values) or not idempotent, "stored twice"


@pytest.mark.parametrize("key", [None, b"key"])
def test_records_go_to_the_partitions_that_are_left(
    broker: RunningBroker, client: ClusterClient, key: bytes | None
) -> None:
    """Those that were sent before are delivered or errors; what is chosen later is a partition that is there."""
    topic = f"produced-{next(NUMBER)}"
    client.create_topics({topic: NewTopic(8)})
    config = client_config(broker)
    config["producer"] |= {"delivery.timeout.ms": 6_000, "request.timeout.ms": 3_000, "metadata.max.age.ms": 100}
    with klamm.Producer(config) as producer:
        for n in range(100):
            producer.send(topic, b"%d" % n, key=key).result(PATIENCE_S)
        client.delete_topics([topic])
        eventually(lambda: not client.topic_ids([topic]), "the topic is gone")
        client.create_topics({topic: NewTopic(1)})
        eventually(lambda: producer.partitions(topic) == 1, "the producer knows")
        futures = [producer.send(topic, b"%d" % n, key=key) for n in range(100)]
        assert {future.result(PATIENCE_S).partition for future in futures} == {0}
