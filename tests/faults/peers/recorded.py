"""What real clients send: their requests, recorded by a proxy that carries them to a broker."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

TOPIC = "recorded"
MOST = 4_000
_LARGEST = 1 << 16


class Recorder:
    """A proxy; `frames` are the distinct requests that passed, without their lengths."""

    def __init__(self, port: int, broker_port: int) -> None:
        self.frames: list[bytes] = []
        self.bootstrap = f"127.0.0.1:{port}"
        self._seen: set[bytes] = set()
        self._broker_port = broker_port
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._accept, name="recorder", daemon=True)

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed: the recording is over
                return
            broker = socket.create_connection(("127.0.0.1", self._broker_port))
            threading.Thread(target=self._requests, args=(client, broker), daemon=True).start()
            threading.Thread(target=self._carry, args=(broker, client), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        data = bytearray()
        for piece in _pieces(client):
            broker.sendall(piece)
            data += piece
            while len(data) >= 4 and len(data) >= 4 + (size := struct.unpack_from(">i", data)[0]):
                self._keep(bytes(data[4 : 4 + size]))
                del data[: 4 + size]
        _end(broker)

    def _keep(self, frame: bytes) -> None:
        with self._lock:
            if frame[:4] + frame[8:] not in self._seen and len(self.frames) < MOST and len(frame) < _LARGEST:
                self._seen.add(frame[:4] + frame[8:])  # but for the correlation id
                self.frames.append(frame)

    @staticmethod
    def _carry(broker: socket.socket, client: socket.socket) -> None:
        try:
            for piece in _pieces(broker):
                client.sendall(piece)
        except OSError:
            pass  # the client has gone; its requests are recorded
        _end(client)


def _pieces(wire: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            piece = wire.recv(1 << 16)
        except OSError:
            return
        if not piece:
            return
        yield piece


def _end(wire: socket.socket) -> None:
    with_end = getattr(socket, "SHUT_RDWR", 2)
    try:
        wire.shutdown(with_end)
    except OSError:
        return  # it has ended already


@contextmanager
def closing(client: Any) -> Iterator[Any]:
    try:
        yield client
    finally:
        client.close()


def use_clients(bootstrap: str) -> None:
    """confluent-kafka (librdkafka) and kafka-python produce, consume as a group, and ask what admins ask."""
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
