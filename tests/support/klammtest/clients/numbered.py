"""Topics of one broker whose values are numbers, each used once: lost and doubled records are easy to see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from klamm.core.client.cluster_client import LATEST, NewTopic
from klamm.core.errors import BrokerError
from klamm.core.records.decode import decode_batch
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Record
from klamm.hadoop.spark.cluster import connect
from klammtest.brokers.inprocess import broker_thread

START_MS: Final = 1_700_000_000_000
WAIT_S: Final = 240.0


class Topics:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.client = connect(bootstrap)

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        configs = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in configs.items()}}
        self.client.create_topics({name: NewTopic(partitions=partitions, configs=configs)})

    def produce(self, topic: str, partition: int, numbers: range, stamp_ms: int = START_MS) -> None:
        rows = [(stamp_ms + number, None, str(number).encode(), ()) for number in numbers]
        self.client.produce({TopicPartition(topic, partition): encode_batch(rows)})

    def replace(self, topic: str, partitions: int = 1) -> None:
        """Deletes the topic and creates it again."""
        self.client.delete_topics([topic])
        self.create_again(topic, partitions)

    def create_again(self, topic: str, partitions: int = 1) -> None:
        """Creates a deleted topic again; waits until its name is free."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                self.create(topic, partitions)
            except BrokerError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return

    def records(self, topic: str) -> list[tuple[int, Record]]:
        """Returns all records as (partition, record), in order within each partition."""
        found = []
        for tp in self.client.partitions(topic):
            position = 0
            end = self.client.list_offsets({tp: LATEST})[tp][0]
            while position < end:
                (node,) = self.client.by_leader([tp])
                fetched = self.client.fetch(node, {tp: position})[tp]
                for pos, header in iter_headers(fetched.records):
                    found += [
                        (tp.partition, record)
                        for record in decode_batch(fetched.records, pos, header, self.client.codecs)
                        if record.offset >= position
                    ]
                    position = max(position, header.next_offset)
        return found

    def numbers(self, topic: str) -> list[int]:
        return [int(record.value or b"-1") for _, record in self.records(topic)]


@contextmanager
def number_topics(folder: Path) -> Iterator[Topics]:
    coordination = {"plugin": "embedded", "path": str(folder / "coordination.db")}
    with broker_thread(folder, coordination, {"auto.create.topics.enable": False}) as broker:
        made = Topics(f"127.0.0.1:{broker.advertised[0].port}")
        yield made
        made.client.close()
