"""The `topic` offset store behind a broker: what outlives kill -9, and what compaction leaves."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import TopicPartition as ForeignPartition

from klamm.core.errors import ErrorCode
from klamm.core.groups.offsets_topic import partition_for
from klamm.core.groups.records.kafka_format import GroupKey, OffsetKey, decode_key, decode_value
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klammtest.broker import KLAMM, RunningBroker, running_broker
from klammtest.clients.grouping import (
    commit,
    coordinated,
    describe,
    heartbeat,
    join,
    joined,
    leave,
    once_loaded,
    stored,
    sync,
)
from klammtest.requests import batch, produce
from klammtest.wire import WireClient

PARTITIONS = 4
PATIENT = {"plugin": "topic", "offsets.commit.timeout.ms": 60_000}
OWN = {"listeners", "log.dirs"}
EXAMPLE = yaml.safe_load((Path(__file__).resolve().parents[3] / "examples" / "topic-offsets.yaml").read_text())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for all; each test has groups of its own."""
    with running_broker(
        tmp_path_factory.mktemp("broker"),
        topics={name: {"partitions": 2, "config": {"retention.ms": -1}} for name in ("orders", "foreign")},
        offsets={**PATIENT, "offsets.topic.num.partitions": PARTITIONS},
    ) as running:
        yield running
        assert "Traceback" not in running.log()


def committed(consumer: Any, *numbers: int) -> list[tuple[int, str | None]]:
    asked = [ForeignPartition("orders", number) for number in numbers]
    return [(p.offset, p.metadata) for p in consumer.committed(asked, timeout=60)]


def foreign(broker: RunningBroker, group: str) -> Any:
    """Returns a consumer of a group that the broker coordinates: librdkafka tries a commit only once more while the
    group is being loaded."""
    with WireClient(broker.bootstrap) as wire:
        coordinated(wire, group)
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
    reader.assign([ForeignPartition("__consumer_offsets", partition_for("billing", PARTITIONS), 0)])
    found = [message for message in reader.consume(2, timeout=60) if message.error() is None]
    reader.close()
    assert [decode_key(message.key()) for message in found] == [OffsetKey("billing", TopicPartition("orders", 0))] * 2
    values = [decode_value(message.value()) for message in found]
    # librdkafka sends the text with the NUL that ends it in C; what it sends is what is stored.
    assert [(value.offset, value.metadata.rstrip("\0")) for value in values] == [(41, "early"), (42, "hi")]


def test_groups_are_listed_described_and_deleted(broker: RunningBroker) -> None:
    consumer = foreign(broker, "listed")
    consumer.commit(offsets=[ForeignPartition("orders", 1, 0)], asynchronous=False)
    consumer.close()
    config = ["--config", str(broker.config_path)]

    def klamm(*words: str) -> str:
        return subprocess.run([KLAMM, *words, *config], capture_output=True, text=True, check=True).stdout

    assert "listed" in klamm("groups", "list")
    assert "orders" in klamm("groups", "describe", "listed")
    klamm("groups", "delete", "listed")
    assert "listed" not in klamm("groups", "list")
    broker.restart()
    assert "listed" not in klamm("groups", "list")


def settled_heartbeat(wire: WireClient, group: str, member: Any) -> ErrorCode:
    code = once_loaded(lambda: heartbeat(wire, group, member))
    assert isinstance(code, ErrorCode)
    return code


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_members_outlive_their_broker_without_a_rebalance(broker: RunningBroker, how: str) -> None:
    with WireClient(broker.bootstrap) as wire:
        member, gone = joined(wire, "members"), joined(wire, "gone")
        assert sync(wire, "members", member).error_code is ErrorCode.none
        assert sync(wire, "gone", gone).error_code is ErrorCode.none
        assert leave(wire, "gone", gone.member_id).error_code is ErrorCode.none
        assert commit(wire, "gone", {("orders", 0): 1}) == {("orders", 0): ErrorCode.none}  # after what it stored
    getattr(broker, how)()
    broker.start()
    with WireClient(broker.bootstrap) as wire:
        assert settled_heartbeat(wire, "members", member) is ErrorCode.none
        found = describe(wire, "members")
        assert (found.group_state, found.protocol_type, found.protocol_data) == ("Stable", "consumer", "range")
        assert [(m.member_id, m.client_id, m.member_assignment) for m in found.members] == [
            (member.member_id, "wire", b"all")
        ]
        assert commit(wire, "members", {("orders", 0): 7}, member) == {("orders", 0): ErrorCode.none}
        assert commit(wire, "members", {("orders", 0): 8}) == {("orders", 0): ErrorCode.unknown_member_id}
        assert heartbeat(wire, "gone", gone) is ErrorCode.unknown_member_id
        assert describe(wire, "gone").group_state == "Empty"
        again = join(wire, "members", member_id=member.member_id)
        assert (again.error_code, again.generation_id) == (ErrorCode.none, member.generation_id + 1)


def test_a_static_member_outlives_its_broker_under_its_newest_id(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire:
        first = join(wire, "static", instance_id="pod-0")
        assert sync(wire, "static", first).error_code is ErrorCode.none
        second = join(wire, "static", instance_id="pod-0")
        assert second.generation_id == first.generation_id
    broker.kill()
    broker.start()
    with WireClient(broker.bootstrap) as wire:
        assert settled_heartbeat(wire, "static", second) is ErrorCode.none
        assert heartbeat(wire, "static", first) is ErrorCode.unknown_member_id


def test_foreign_members_go_on_after_a_restart(broker: RunningBroker) -> None:
    assigned: list[int] = []
    consumer = ForeignConsumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "foreign",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
            "enable.auto.commit": False,  # librdkafka tries one that was refused again, behind a newer commit
            "log_level": 0,
        }
    )
    consumer.subscribe(["foreign"], on_assign=lambda _, partitions: assigned.append(len(partitions)))
    with WireClient(broker.bootstrap) as wire:
        produce(wire, "foreign", batch(b"before"))
    assert next(values(consumer)) == b"before"
    broker.kill()
    broker.start()
    with WireClient(broker.bootstrap) as wire:
        produce(wire, "foreign", batch(b"after"))
        coordinated(wire, "foreign")
    assert next(values(consumer)) == b"after"
    assert assigned == [2]
    consumer.commit(asynchronous=False)
    assert [p.offset for p in consumer.committed([ForeignPartition("foreign", 0)], timeout=60)] == [2]
    consumer.close()


def values(consumer: Any) -> Iterator[bytes]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            yield message.value()


def test_many_first_commits_at_once(tmp_path: Path) -> None:
    """The topic is made on their behalf by the broker that they wait in: more of them than it has threads.

    Just started, it may still be loading its groups and says so; that is no failure, clients ask again.
    """
    codes: list[ErrorCode] = []

    def first(bootstrap: str, number: int) -> None:
        with WireClient(bootstrap) as wire:
            codes.append(once_loaded(lambda: commit_one(wire, number)))

    def commit_one(wire: WireClient, number: int) -> ErrorCode:
        return commit(wire, f"group-{number}", {("orders", 0): number})["orders", 0]

    with running_broker(tmp_path, topics={"orders": {"partitions": 1}}, offsets=PATIENT) as broker:
        threads = [threading.Thread(target=first, args=(broker.bootstrap, number)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert codes == [ErrorCode.none] * 12


def test_compaction_leaves_what_counts(tmp_path: Path) -> None:
    """The example's segments are small, and cleaned as soon as they are dirty: the last commits stay."""
    keys = {name: value for name, value in EXAMPLE["broker"].items() if name not in OWN}
    with running_broker(
        tmp_path, **{**EXAMPLE, "broker": keys, "offsets": {**EXAMPLE["offsets"], **PATIENT}}
    ) as broker:
        with WireClient(broker.bootstrap) as wire:
            member = joined(wire, "billing")
            assert sync(wire, "billing", member).error_code is ErrorCode.none
            assert commit(wire, "gone", {("orders", 1): 5}) == {("orders", 1): ErrorCode.none}
            assert set(delete_groups(wire, "gone")) == {ErrorCode.none}
            for offset in range(300):
                commit(wire, "billing", {("orders", 0): offset}, member)
        left = wait_for_few(broker, 150)
        assert [name for name, _ in left].count(GroupKey("billing")) == 1
        offsets = [decode_value(value).offset for name, value in left if isinstance(name, OffsetKey) and value]
        assert offsets == sorted(offsets)
        assert offsets[-1] == 299
        broker.kill()
        broker.start()
        with WireClient(broker.bootstrap) as wire:
            assert settled_heartbeat(wire, "billing", member) is ErrorCode.none
            assert stored(wire, "billing", "orders", (0,))[0].committed_offset == 299
            assert stored(wire, "gone", "orders", (1,))[1].committed_offset == -1


def delete_groups(wire: WireClient, *groups: str) -> list[ErrorCode]:
    return [found.error_code for found in wire.call(ApiKey.DELETE_GROUPS, 2, groups_names=groups).results]


def wait_for_few(broker: RunningBroker, most: int) -> list[tuple[object, bytes | None]]:
    """The records of `__consumer_offsets` 0, once compaction has left no more than so many."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        reader = foreign(broker, "reader")
        reader.assign([ForeignPartition("__consumer_offsets", 0, 0)])
        _, end = reader.get_watermark_offsets(ForeignPartition("__consumer_offsets", 0), timeout=60)
        found: list[Any] = []
        while not found or found[-1].offset() < end - 1:
            found.extend(message for message in reader.consume(500, timeout=0.2) if message.error() is None)
        reader.close()
        if len(found) <= most:
            return [(decode_key(message.key()), message.value()) for message in found]
    raise AssertionError(f"{len(found)} of {end} records are left")
