"""`flush.messages` and `flush.ms`, from a producer through a broker to a consumer: seen only once it is on disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import klamm
from klamm.core.errors import ErrorCode
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker, running_broker
from klammtest.requests import batch, fetch, produce
from klammtest.wire import WireClient

HOUR_MS = 3_600_000
TOPICS = {
    "by-count": {"partitions": 1, "config": {"flush.messages": 5, "retention.ms": -1}},
    "by-time": {"partitions": 1, "config": {"flush.ms": 1_000, "retention.ms": -1}},
}
UNTIL_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Nothing but the topics' own rules flushes within a test."""
    keys = {"log.flush.offset.checkpoint.interval.ms": HOUR_MS, "log.flush.scheduler.interval.ms": 200}
    with running_broker(tmp_path_factory.mktemp("flushed"), topics=TOPICS, broker=keys) as running:
        yield running


@contextmanager
def consumer(broker: RunningBroker, topic: str) -> Iterator[klamm.Consumer]:
    settings = {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"}
    with klamm.Consumer({"consumer": settings}) as reader:
        reader.assign([TopicPartition(topic, 0)])
        yield reader


def values(reader: klamm.Consumer, count: int) -> list[object]:
    """At least so many records' values, or what came in time."""
    found: list[object] = []
    deadline = time.monotonic() + UNTIL_S
    while len(found) < count and time.monotonic() < deadline:
        found += [record.value for record in reader.poll(0.2)]
    return found


def store(wire: WireClient, topic: str, *records: bytes, acks: int = -1) -> None:
    for record in records:
        assert produce(wire, topic, batch(record), acks=acks).error_code is ErrorCode.none


def test_records_are_seen_once_flush_messages_has_flushed_them(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire, consumer(broker, "by-count") as reader:
        store(wire, "by-count", b"a", b"b", b"c", b"d", acks=1)
        answer = fetch(wire, "by-count", 0)
        assert (answer.error_code, answer.high_watermark, answer.records) == (ErrorCode.none, 0, b"")
        assert not reader.poll(0.5)
        store(wire, "by-count", b"e")
        assert values(reader, 5) == [b"a", b"b", b"c", b"d", b"e"]
        store(wire, "by-count", b"f")
        answer = fetch(wire, "by-count", 5)
        assert (answer.high_watermark, answer.records) == (5, b"")
        broker.kill()
        broker.restart()
        assert values(reader, 1) == [b"f"], "the start has flushed it"


def test_records_are_seen_once_flush_ms_has_flushed_them(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire, consumer(broker, "by-time") as reader:
        store(wire, "by-time", b"a", b"b")
        assert values(reader, 2) == [b"a", b"b"]
        assert fetch(wire, "by-time", 2).high_watermark == 2


def test_what_cannot_be_flushed_is_never_seen(tmp_path: Path) -> None:
    """The fifth record's fsync fails: its producer hears so, and no consumer sees any of the five."""
    keys = {"log.flush.offset.checkpoint.interval.ms": HOUR_MS, "log.flush.scheduler.interval.ms": HOUR_MS}
    with running_broker(tmp_path, topics=TOPICS, broker=keys) as broker:
        broker.kill()
        broker.environment["KLAMM_FAULTS"] = "log.flush=EIO"
        broker.restart()
        with WireClient(broker.bootstrap) as wire:
            store(wire, "by-count", b"a", b"b", b"c", b"d")
            assert produce(wire, "by-count", batch(b"e")).error_code is ErrorCode.kafka_storage_error
            assert fetch(wire, "by-count", 0).error_code is ErrorCode.kafka_storage_error
