"""The `topic` offset store after `__consumer_offsets` was created again or lost its end: no wait for offsets of its own
appends that the log has lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import pytest

from klamm.core.client.cluster_client import ClusterClient, ProducedBatch
from klamm.core.client.reader.partition_reader import PartitionReader
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition
from klamm.plugins.offsets.topic import OFFSETS_TOPIC, TopicOffsetStore
from klamm.plugins.offsets.topic_config import TopicOffsetStoreConfig
from klammtest.guarantees import guarantee
from klammtest.stored_topic import StoredTopic

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class OffsetsTopic(StoredTopic):
    """`__consumer_offsets` with one partition, and what the store asks of its client."""

    def __init__(self) -> None:
        super().__init__(OFFSETS_TOPIC)
        self.metadata([OFFSETS_TOPIC])

    def produce(
        self, batches: Mapping[TopicPartition, bytes | bytearray], *, timeout_s: float
    ) -> dict[TopicPartition, ProducedBatch]:
        assert timeout_s > 0
        [(partition, batch)] = batches.items()
        return {partition: ProducedBatch(self.logs[0].store(batch))}


class Store:
    def __init__(self) -> None:
        self.topic = OffsetsTopic()
        config = TopicOffsetStoreConfig.model_validate({"offsets.commit.timeout.ms": 2000})
        self.store = TopicOffsetStore(config, cast("Coordination", None))
        self.store._client = cast("ClusterClient", self.topic)

    def commit(self, partition: TopicPartition, *offsets: int) -> None:
        for offset in offsets:
            self.store.commit("g", {partition: CommittedOffset(offset)})

    def fetch(self) -> dict[TopicPartition, int]:
        return {partition: value.offset for partition, value in self.store.fetch("g").items()}


def created_again(topic: OffsetsTopic) -> None:
    topic.create_again()


def restored(topic: OffsetsTopic) -> None:
    topic.logs[0].cut(len(topic.logs[0].batches))


def wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionReader, "log_end", lambda _reader: None)


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("lose", [created_again, restored])
@guarantee("A2", "committed offsets are read after their topic was created again or cut", plant=wait_for_ever)
def test_what_the_log_has_lost_is_not_awaited(lose: Callable[[OffsetsTopic], None], read_before: bool) -> None:
    made = Store()
    made.commit(T0, 1, 2, 3)
    if read_before:
        assert made.fetch() == {T0: 3}
        made.commit(T0, 4)
    lose(made.topic)
    assert made.fetch() == {}
    made.commit(T1, 7)
    assert made.fetch() == {T1: 7}
    assert made.store.groups() == ["g"]


def test_a_lost_end_is_forgotten() -> None:
    made = Store()
    made.commit(T0, 1, 2, 3)
    made.topic.create_again()
    made.commit(T1, 7)
    assert made.fetch() == {T1: 7}
    made.topic.waits_ms.clear()
    assert made.fetch() == {T1: 7}
    assert made.topic.waits_ms == [0]


def test_an_append_that_is_not_visible_yet_is_awaited() -> None:
    made = Store()
    made.commit(T0, 1)
    assert made.fetch() == {T0: 1}
    made.commit(T0, 2)
    log, answer = made.topic.logs[0], made.topic.fetch
    log.high_watermark = 1
    hidden = [None, None]

    def fetch(*args: object, **named: object) -> object:
        if not hidden:
            log.high_watermark = None
        else:
            hidden.pop()
        return answer(*args, **named)  # type: ignore[arg-type]

    made.topic.fetch = fetch  # type: ignore[method-assign, assignment]
    assert made.fetch() == {T0: 2}
