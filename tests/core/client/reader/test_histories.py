"""Readers over a broker: a topic that is deleted and created again, and a log from an older backup."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.errors import LogTruncatedError
from klamm.core.client.reader.range_reader import OffsetRange, RangeReader
from klamm.core.client.reader.topic_table import UNWATCHED_S, TopicTable
from klamm.core.cluster.clock_floors import leader_epoch_floor
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klammtest.broker import running_broker
from klammtest.waiting import eventually

TIMEOUT_S = 60.0


class Values:
    """The values of each partition, in order."""

    def __init__(self) -> None:
        self.found: dict[int, list[bytes | None]] = {}

    def clear(self) -> None:
        self.found = {}

    def apply(
        self, partition: TopicPartition, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None
    ) -> None:
        self.found.setdefault(partition.partition, []).append(value)


def append(client: ClusterClient, partition: TopicPartition, value: bytes, count: int) -> None:
    """One batch."""
    client.produce({partition: encode_batch([(0, b"%d" % n, value, ()) for n in range(count)])}, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_table_follows_a_topic_that_is_created_again(client: ClusterClient, partitions: int) -> None:
    name = f"table-{partitions}"
    every = [TopicPartition(name, number) for number in range(partitions)]
    values = Values()
    table = TopicTable(client, values, timeout_s=TIMEOUT_S)
    client.create_topics({name: NewTopic(partitions)})
    append(client, every[0], b"old", 3)
    table.catch_up(every)
    append(client, every[-1], b"old", 2)
    table.catch_up(every)
    assert [value for found in values.found.values() for value in found] == [b"old"] * 5
    client.delete_topics([name])
    eventually(lambda: not client.topic_ids([name]), "the topic is gone")
    client.create_topics({name: NewTopic(partitions)})
    append(client, every[0], b"new", 9)
    table.catch_up(every)
    assert values.found == {0: [b"new"] * 9}


def test_a_table_and_a_range_over_a_log_from_an_older_backup(tmp_path: Path) -> None:
    """7 records are in the backup, 12 were read; 6 others take the place of the 5 that were lost.

    By the table's clock the restore takes longer than `UNWATCHED_S`: a log that grows past the position in less is not
    noticed."""
    partition = TopicPartition("t", 0)
    restore_s = 0.0
    with (
        running_broker(tmp_path, topics={"t": {"partitions": 1}}) as broker,
        ClusterClient(broker.bootstrap, codecs=CodecTable(), request_timeout_s=TIMEOUT_S) as client,
    ):
        values = Values()
        table = TopicTable(client, values, timeout_s=TIMEOUT_S, clock=lambda: time.monotonic() + restore_s)
        append(client, partition, b"kept", 7)
        broker.stop()
        shutil.copytree(broker.folder / "data", tmp_path / "backup")
        broker.start()
        append(client, partition, b"lost", 5)
        table.catch_up([partition])
        reader = RangeReader(
            client, OffsetRange(partition, 0, 13), fail_on_data_loss=True, poll_timeout_s=TIMEOUT_S
        ).batches()
        assert [len(next(reader).columns.offsets) for _ in range(2)] == [7, 5]
        lost = client.metadata(["t"]).topics["t"].partitions[0].leader_epoch
        broker.stop()
        eventually(lambda: leader_epoch_floor(time.time()) > lost, "the clock has gone on since")
        shutil.rmtree(broker.folder / "data")
        shutil.copytree(tmp_path / "backup", broker.folder / "data")
        broker.start()
        restore_s = UNWATCHED_S
        append(client, partition, b"new", 6)
        table.catch_up([partition])
        assert values.found == {0: [b"kept"] * 7 + [b"new"] * 6}
        with pytest.raises(LogTruncatedError, match="t-0: read up to offset 12, but the log was cut at offset 7"):
            next(reader)
