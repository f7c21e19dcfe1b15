"""DeleteRecords: the log begins later, at once and after kill -9; as kafka-delete-records and AdminClients use it."""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as ForeignPartition
from confluent_kafka.admin import AdminClient

from klamm.core.errors import ErrorCode
from klamm.core.log.partition_log import PartitionLog
from klamm.core.protocol.apis import ApiKey
from klammtest.broker import KLAMM, RunningBroker, running_broker
from klammtest.brokers.deletions import delete_topic
from klammtest.brokers.inprocess import broker_thread
from klammtest.requests import batch, create_topic, fetch, new_topic, produce
from klammtest.waiting import PATIENCE_S, eventually
from klammtest.wire import WireClient, part


def delete(wire: WireClient, topic: str, offset: int, partition: int = 0, version: int = 2) -> tuple[ErrorCode, int]:
    api = ApiKey.DELETE_RECORDS
    one = part(api, version, "DeleteRecordsPartition", partition_index=partition, offset=offset)
    asked = part(api, version, "DeleteRecordsTopic", name=topic, partitions=(one,))
    answer = wire.call(api, version, topics=(asked,), timeout=timedelta(seconds=10)).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def filled(wire: WireClient, **config: Any) -> str:
    topic = new_topic(wire, retention_ms=-1, **config)  # the records are of 2023
    for number in range(10):
        assert produce(wire, topic, batch(b"%d" % number, b"x" * 200)).error_code is ErrorCode.none
    return topic


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_log_begins_later(wire: WireClient, version: int) -> None:
    topic = filled(wire)
    assert delete(wire, topic, 7, version=version) == (ErrorCode.none, 7)
    assert fetch(wire, topic, 6).error_code is ErrorCode.offset_out_of_range
    assert fetch(wire, topic, 7).log_start_offset == 7
    assert delete(wire, topic, 3, version=version) == (ErrorCode.none, 7)
    assert delete(wire, topic, -1, version=version) == (ErrorCode.none, 20)
    assert fetch(wire, topic, 20).error_code is ErrorCode.none
    assert produce(wire, topic, batch(b"on")).base_offset == 20


def test_what_is_refused(wire: WireClient) -> None:
    topic = filled(wire)
    assert delete(wire, topic, 21) == (ErrorCode.offset_out_of_range, -1)
    assert delete(wire, topic, -2) == (ErrorCode.offset_out_of_range, -1)
    assert delete(wire, topic, 1, partition=9) == (ErrorCode.unknown_topic_or_partition, -1)
    assert delete(wire, "never-there", 1) == (ErrorCode.unknown_topic_or_partition, -1)
    table = new_topic(wire, cleanup_policy="compact")
    assert delete(wire, table, 0) == (ErrorCode.policy_violation, -1)


@pytest.mark.parametrize("policy", ["", "compact,delete"])
def test_only_compaction_alone_keeps_records_from_deletion(wire: WireClient, policy: str) -> None:
    """An empty policy deletes nothing by itself (Kafka 4.2), and DeleteRecords works as in Kafka 4.4."""
    topic = new_topic(wire, cleanup_policy=policy, retention_ms=-1)
    assert produce(wire, topic, batch(b"x", b"y")).error_code is (
        ErrorCode.invalid_record if policy else ErrorCode.none
    ), "records without keys"
    assert delete(wire, topic, -1) == (ErrorCode.none, 0 if policy else 2)


def test_segments_below_go_and_kill_9_brings_nothing_back(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        with WireClient(broker.bootstrap) as wire:
            topic = filled(wire, segment_bytes=600, file_delete_delay_ms=0)
            folder = broker.log_dir / f"{topic}-0"
            before = len(list(folder.glob("*.log")))
            assert delete(wire, topic, 11) == (ErrorCode.none, 11)
            assert len(list(folder.glob("*.log"))) < before
        broker.kill()
        broker.start()
        with WireClient(broker.bootstrap) as wire:
            assert fetch(wire, topic, 10).error_code is ErrorCode.offset_out_of_range
            assert fetch(wire, topic, 11).log_start_offset == 11


def test_a_topic_that_is_created_again_meanwhile_keeps_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request had found the leader of the earlier topic; its worker thread comes to the log when the name is that
    of another topic."""
    reached, go_on = threading.Event(), threading.Event()

    delete_before = PartitionLog.delete_records_before

    def held(log: PartitionLog, offset: int) -> int:
        reached.set()
        assert go_on.wait(PATIENCE_S)
        return delete_before(log, offset)

    monkeypatch.setattr(PartitionLog, "delete_records_before", held)
    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db")}
    with broker_thread(tmp_path, tree) as broker, ThreadPoolExecutor() as others:
        bootstrap = f"{broker.advertised[0].host}:{broker.advertised[0].port}"
        with WireClient(bootstrap) as wire, WireClient(bootstrap) as other:
            topic = filled(wire)
            deleted = others.submit(delete, other, topic, 15)
            try:
                assert reached.wait(PATIENCE_S)
                assert delete_topic(wire, topic) is ErrorCode.none
                again = lambda: create_topic(wire, topic, config={"retention.ms": "-1"}).error_code  # noqa: E731
                eventually(lambda: again() is ErrorCode.none, "it is created again")
                for number in range(10):
                    value = batch(b"%d" % number, b"x")
                    eventually(lambda value=value: stored(wire, topic, value), "it is led")  # type: ignore[misc]
            finally:
                go_on.set()
            assert deleted.result(PATIENCE_S) == (ErrorCode.not_leader_or_follower, -1)
            kept = fetch(wire, topic, 0)
            assert (kept.error_code, kept.log_start_offset, kept.high_watermark) == (ErrorCode.none, 0, 20)


def stored(wire: WireClient, topic: str, value: bytes) -> bool:
    code: ErrorCode = produce(wire, topic, value).error_code
    return code is ErrorCode.none


def test_a_foreign_admin_client(broker: RunningBroker, wire: WireClient) -> None:
    topic = filled(wire)
    admin: Any = AdminClient({"bootstrap.servers": broker.bootstrap})
    done = admin.delete_records([ForeignPartition(topic, 0, 5)])
    assert [future.result(30).low_watermark for future in done.values()] == [5]


def test_the_command(broker: RunningBroker, wire: WireClient) -> None:
    topic = filled(wire)
    command = [KLAMM, "topics", "delete-records", topic, "--config", str(broker.config_path)]
    done = subprocess.run([*command, "--before", "4"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{topic}-0: starts at 4\n"
    wrong = subprocess.run([*command, "--before", "99"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert len(wrong.stderr.splitlines()) == 1
    unknown = subprocess.run([*command, "--partition", "9"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 2
    assert "partitions 0 to 0" in unknown.stderr
