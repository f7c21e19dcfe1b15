"""The four foreign clients behind one small interface: produce values in order, consume them back.

Each driver uses its library as the library's own documentation shows; all produce with acks=all and one codec.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Values = Sequence[bytes]
Consumed = list[tuple[int, bytes]]
"""(offset, value) of partition 0, in the order of arrival."""


@dataclass(frozen=True)
class ForeignClient:
    """`produce(bootstrap, topic, codec, values)`; `consume(bootstrap, topic, count, group, timeout_s)`.

    Without a group, partitions are assigned by hand. A consumer returns fewer records when the time is over.
    """

    name: str
    produce: Callable[[str, str, str, Values], None]
    consume: Callable[[str, str, int, str | None, float], Consumed]


def _confluent_produce(bootstrap: str, topic: str, codec: str, values: Values) -> None:
    from confluent_kafka import KafkaError, Message, Producer

    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "acks": "all",
            "linger.ms": 5,
            "message.timeout.ms": 60_000,
        }
    )
    for value in values:
        while True:
            try:
                producer.produce(topic, value, partition=0, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)
    assert not errors, errors[0]


def _confluent_consume(bootstrap: str, topic: str, count: int, group: str | None, timeout_s: float) -> Consumed:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Partition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group or "none",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": group is not None,
        }
    )
    if group is None:
        consumer.assign([Partition(topic, 0, 0)])
    else:
        consumer.subscribe([topic])
    got: Consumed = []
    deadline = time.monotonic() + timeout_s
    while len(got) < count and time.monotonic() < deadline:
        for message in consumer.consume(min(10_000, count - len(got)), 0.5):
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert value is not None
            got.append((offset, value))
    consumer.close()
    return got


def _kafka_python_produce(bootstrap: str, topic: str, codec: str, values: Values) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        acks="all",
        linger_ms=5,
        batch_size=65_536,
    )
    futures = [producer.send(topic, value, partition=0) for value in values]
    producer.flush(timeout=120)
    for future in futures:
        future.get(timeout=60)
    producer.close()


def _kafka_python_consume(bootstrap: str, topic: str, count: int, group: str | None, timeout_s: float) -> Consumed:
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Partition

    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=group is not None,
        max_poll_records=5_000,
    )
    if group is None:
        consumer.assign([Partition(topic, 0)])
    else:
        consumer.subscribe([topic])
    got: Consumed = []
    deadline = time.monotonic() + timeout_s
    while len(got) < count and time.monotonic() < deadline:
        for messages in consumer.poll(timeout_ms=500).values():
            got += [(m.offset, m.value) for m in messages]
    consumer.close()
    return got


async def _aiokafka_send(bootstrap: str, topic: str, codec: str, values: Values) -> None:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        acks="all",
        linger_ms=5,
        max_batch_size=65_536,
    )
    await producer.start()
    try:
        for start in range(0, len(values), 10_000):
            sent = [await producer.send(topic, value, partition=0) for value in values[start : start + 10_000]]
            await asyncio.gather(*sent)
    finally:
        await producer.stop()


async def _aiokafka_receive(bootstrap: str, topic: str, count: int, group: str | None, timeout_s: float) -> Consumed:
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as Partition

    consumer = AIOKafkaConsumer(
        *([topic] if group else []),
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=group is not None,
    )
    if group is None:
        consumer.assign([Partition(topic, 0)])
    await consumer.start()
    got: Consumed = []
    deadline = time.monotonic() + timeout_s
    try:
        if group is None:
            await consumer.seek_to_beginning()
        while len(got) < count and time.monotonic() < deadline:
            for messages in (await consumer.getmany(timeout_ms=500, max_records=5_000)).values():
                got += [(m.offset, m.value) for m in messages]
    finally:
        await consumer.stop()
    return got


def _kcat(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    program = shutil.which("kcat")
    if program is None:
        sys.exit("kcat is missing; install the system package kcat")
    return subprocess.run([program, *arguments], check=True, capture_output=True, **options)


def _kcat_produce(bootstrap: str, topic: str, codec: str, values: Values) -> None:
    compression = [] if codec == "none" else ["-z", codec]
    _kcat(
        "-P",
        "-b",
        bootstrap,
        "-t",
        topic,
        "-p",
        "0",
        "-X",
        "acks=all",
        *compression,
        input=b"".join(v + b"\n" for v in values),
        timeout=120,
    )


def _kcat_consume(bootstrap: str, topic: str, count: int, group: str | None, timeout_s: float) -> Consumed:
    common = ["-b", bootstrap, "-q", "-c", str(count), "-f", "%o %s\n", "-X", "auto.offset.reset=earliest"]
    how = ["-C", "-t", topic, "-p", "0", "-o", "beginning", "-e"] if group is None else ["-G", group, topic]
    try:
        lines: Iterable[bytes] = _kcat(*common, *how, timeout=timeout_s).stdout.splitlines()
    except subprocess.TimeoutExpired as error:
        lines = (error.stdout or b"").splitlines()
    return [(int(offset), value) for offset, _, value in (line.partition(b" ") for line in lines)]


CLIENTS: dict[str, ForeignClient] = {
    client.name: client
    for client in (
        ForeignClient("confluent-kafka", _confluent_produce, _confluent_consume),
        ForeignClient("kafka-python", _kafka_python_produce, _kafka_python_consume),
        ForeignClient(
            "aiokafka", lambda *a: asyncio.run(_aiokafka_send(*a)), lambda *a: asyncio.run(_aiokafka_receive(*a))
        ),
        ForeignClient("kcat", _kcat_produce, _kcat_consume),
    )
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
