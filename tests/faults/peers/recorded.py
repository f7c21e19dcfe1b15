"""Requests of real clients, recorded by a proxy in front of a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from klammtest.proxies.tcp import Link, TcpProxy
from klammtest.wire import framed, frames

TOPIC = "recorded"
MOST = 4_000
_LARGEST = 1 << 16


class Recorder:
    """A recording proxy; `frames` are the distinct requests that passed, without their lengths."""

    def __init__(self, port: int, broker_port: int) -> None:
        self.frames: list[bytes] = []
        self._seen: set[bytes] = set()
        self._lock = threading.Lock()
        self._proxy = TcpProxy(port, broker_port, lambda: _Recorded(self))
        self.bootstrap = self._proxy.bootstrap

    def __enter__(self) -> Recorder:
        self._proxy.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._proxy.__exit__(kind, error, at)

    def keep(self, frame: bytes) -> None:
        without_correlation_id = frame[:4] + frame[8:]
        with self._lock:
            if without_correlation_id not in self._seen and len(self.frames) < MOST and len(frame) < _LARGEST:
                self._seen.add(without_correlation_id)
                self.frames.append(frame)


class _Recorded(Link):
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def requests(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for frame in frames(pieces):
            self._recorder.keep(frame)
            yield framed(frame)


@contextmanager
def closing(client: Any) -> Iterator[Any]:
    try:
        yield client
    finally:
        client.close()


def use_clients(bootstrap: str) -> None:
    """Lets confluent-kafka (librdkafka) and kafka-python produce, consume as a group, and send admin requests."""
    _confluent(bootstrap)
    _kafka_python(bootstrap)


def _confluent(bootstrap: str) -> None:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(TOPIC, 3)]).values():
        made.result(20)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True})
        for n in range(60):
            producer.produce(TOPIC, b"value %d" % n * 9, key=b"key %d" % n)
        producer.flush(20)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "one", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    consumer.consume(100, 10)
    consumer.commit(asynchronous=False)
    consumer.close()
    admin.list_groups()
    for found in admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, TOPIC)]).values():
        found.result(20)
    admin.describe_cluster().result(20)


def _kafka_python(bootstrap: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        for n in range(60):
            producer.send(TOPIC, b"value %d" % n, partition=n % 3, headers=[("h", b"1")])
        producer.flush(20)
    settings: dict[str, Any] = {"group_id": "two", "auto_offset_reset": "earliest", "bootstrap_servers": bootstrap}
    with closing(KafkaConsumer(TOPIC, **settings)) as consumer:
        consumer.poll(5_000, 100)
        consumer.commit()
