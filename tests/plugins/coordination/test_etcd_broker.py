"""A broker on etcd, end to end: topics, records, groups of both protocols, and a restart of everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.core.records.partition import TopicPartition
from klamm.plugins.coordination.etcd.server import EtcdServer
from klammtest.broker import running_broker
from klammtest.clients.readers import client_config, produce, read
from klammtest.etcd import needs_etcd
from klammtest.ports import free_port
from klammtest.waiting import eventually

pytestmark = [needs_etcd, pytest.mark.slow]

PARTITIONS = 3
PARTITIONS_OF_T = [TopicPartition("t", number) for number in range(PARTITIONS)]


def values(tag: str) -> dict[int, list[bytes]]:
    return {number: [b"%d-%s-%d" % (number, tag.encode(), i) for i in range(20)] for number in range(PARTITIONS)}


def flat(of: dict[int, list[bytes]]) -> list[bytes]:
    return sorted(value for many in of.values() for value in many)


@pytest.mark.parametrize("protocol", ["registry", "classic"])
def test_produce_consume_commit_and_restart(tmp_path: Path, protocol: str) -> None:
    with EtcdServer(tmp_path / "etcd", free_port()) as server:
        section = {"plugin": "etcd", "etcd.endpoints": server.url, "etcd.session.timeout.ms": 4000}
        topics = {"t": {"partitions": PARTITIONS}}
        with running_broker(tmp_path / "broker", coordination=section, topics=topics) as broker:
            config = client_config(broker, group_id="g", group_protocol=protocol)
            produce(config, "t", values("first"))
            with klamm.Consumer(config, topics=["t"]) as consumer:
                assert sorted(record.value for record in read(consumer, 60)) == flat(values("first"))
                consumer.commit()
            produce(config, "t", values("second"))
            broker.kill()
            server.kill()
            server.start()
            broker.restart()
            with klamm.Consumer(config, topics=["t"]) as consumer, klamm.Consumer(config, topics=["t"]) as second:
                assert committed(consumer) == {20}
                got: list[Any] = []

                def all_is_read() -> bool:
                    got.extend([*consumer.poll(0.1), *second.poll(0.1)])
                    owned = [*consumer.assignment(), *second.assignment()]
                    return len({record.value for record in got}) == 60 and sorted(owned) == PARTITIONS_OF_T

                eventually(all_is_read, "the rest is read, by both")
                assert sorted(record.value for record in got) == flat(values("second"))
            with klamm.Consumer(config) as outside:
                outside.assign(PARTITIONS_OF_T)
                assert committed(outside) == {40}
            assert "Traceback" not in broker.log()


def committed(consumer: klamm.Consumer) -> set[Any]:
    return {commit.offset for commit in consumer.committed(PARTITIONS_OF_T).values()}
