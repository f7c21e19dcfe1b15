"""The `topic` offset store: Kafka's bytes, and what outlives a broker that is killed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import TopicPartition as ForeignPartition

from klamm.core.errors import CorruptRecordError
from klamm.core.records.partition import TopicPartition
from klamm.core.seams.offsets import CommittedOffset
from klamm.plugins.offsets.kafka_format import (
    OffsetKey,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    java_hash,
    partition_for,
)
from klammtest.broker import KLAMM, RunningBroker, running_broker
from klammtest.requests import batch, produce
from klammtest.wire import WireClient

# Written by hand from Kafka's OffsetCommitKey.json and OffsetCommitValue.json.
KEY = bytes.fromhex("0001000762696c6c696e6700066f72646572730000000b")
VALUES = {
    0: bytes.fromhex("0000000000000000002a000268690000018bcfe56800"),
    1: bytes.fromhex("0001000000000000002a000268690000018bcfe568000000018bd50bc400"),
    2: bytes.fromhex("0002000000000000002a000268690000018bcfe56800"),
    3: bytes.fromhex("0003000000000000002a00000005000268690000018bcfe56800"),
    4: bytes.fromhex("0004000000000000002a000000050368690000018bcfe5680000"),
}
NAME = OffsetKey("billing", TopicPartition("orders", 11))
MEMBERS_KEY = bytes.fromhex("0002000762696c6c696e67")


def test_kafkas_bytes() -> None:
    stored = CommittedOffset(42, 5, "hi", 1_700_000_000_000)
    assert encode_key(NAME) == KEY
    assert encode_value(stored) == VALUES[3]
    assert decode_key(KEY) == NAME
    assert {v: decode_value(raw) for v, raw in VALUES.items()} == {
        v: CommittedOffset(42, 5 if v >= 3 else -1, "hi", 1_700_000_000_000) for v in VALUES
    }


def test_other_records_of_the_topic_are_passed_over() -> None:
    assert decode_key(MEMBERS_KEY) is None


@pytest.mark.parametrize("size", range(len(KEY)))
def test_keys_that_are_cut_off(size: int) -> None:
    with pytest.raises(CorruptRecordError, match="key"):
        decode_key(KEY[:size])


@pytest.mark.parametrize("version", VALUES)
def test_values_that_are_cut_off(version: int) -> None:
    for size in range(len(VALUES[version]) - {1: 8, 4: 1}.get(version, 0)):
        with pytest.raises(CorruptRecordError, match="value"):
            decode_value(VALUES[version][:size])
    with pytest.raises(CorruptRecordError, match="version 9"):
        decode_value(b"\0\x09" + VALUES[3][2:])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("billing", -109829509),
        ("größe", 98762257),
        ("polygenelubricants", -(1 << 31)),
        ("𝄞", 1772394),
    ],
)
def test_javas_hash(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    assert partition_for(text, 50) == (0 if expected == -(1 << 31) else abs(expected) % 50)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(
        tmp_path,
        topics={"orders": {"partitions": 2}},
        offsets={"plugin": "topic", "offsets.topic.num.partitions": 4},
    ) as running:
        yield running
        assert "Traceback" not in running.log()


def committed(consumer: Any, *numbers: int) -> list[tuple[int, str | None]]:
    asked = [ForeignPartition("orders", number) for number in numbers]
    return [(p.offset, p.metadata) for p in consumer.committed(asked, timeout=30)]


def foreign(broker: RunningBroker, group: str) -> Any:
    return ForeignConsumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    )


def test_foreign_commits_outlive_kill_9_and_are_kafkas_records(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire:
        produce(wire, "orders", batch(*[b"x"] * 50))
    consumer = foreign(broker, "billing")
    consumer.commit(offsets=[ForeignPartition("orders", 0, 41, "early")], asynchronous=False)
    consumer.commit(offsets=[ForeignPartition("orders", 0, 42, "hi")], asynchronous=False)
    broker.kill()
    broker.start()
    assert committed(consumer, 0, 1) == [(42, "hi"), (-1001, None)]
    consumer.close()

    reader = foreign(broker, "reader")
    reader.assign([ForeignPartition("__consumer_offsets", partition_for("billing", 4), 0)])
    found = [message for message in reader.consume(2, timeout=30) if message.error() is None]
    reader.close()
    assert [decode_key(message.key()) for message in found] == [OffsetKey("billing", TopicPartition("orders", 0))] * 2
    values = [decode_value(message.value()) for message in found]
    # librdkafka sends the text with the NUL that ends it in C; what it sends is what is stored.
    assert [(value.offset, value.metadata.rstrip("\0")) for value in values] == [(41, "early"), (42, "hi")]


def test_groups_are_listed_described_and_deleted(broker: RunningBroker) -> None:
    consumer = foreign(broker, "billing")
    consumer.commit(offsets=[ForeignPartition("orders", 1, 0)], asynchronous=False)
    consumer.close()
    config = ["--config", str(broker.config_path)]

    def klamm(*words: str) -> str:
        return subprocess.run([KLAMM, *words, *config], capture_output=True, text=True, check=True).stdout

    assert "billing" in klamm("groups", "list")
    assert "orders" in klamm("groups", "describe", "billing")
    klamm("groups", "delete", "billing")
    assert "billing" not in klamm("groups", "list")
    broker.restart()
    assert "billing" not in klamm("groups", "list")
