"""The runtime with a shard that is not of groups: it loads, applies, appends on condition and unloads for any
coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.core.broker.coordinator.coordinator_topic import CoordinatorTopic, LedRole
from klamm.core.broker.coordinator.runtime import CoordinatorRuntime
from klamm.core.broker.coordinator.shard_log import APPEND_TRIES, ShardLog
from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.broker.workers import Workers
from klamm.core.cluster.image import ClusterImage, PartitionImage, TopicImage
from klamm.core.errors import BrokerError, CorruptRecordError, ErrorCode
from klamm.core.groups.offsets_topic import OFFSETS_TOPIC
from klamm.core.interfaces.offsets import OffsetsTopicSettings
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.led import TOPIC_ID, lead, led_partition
from klammtest.clusters.images import partition_image
from klammtest.waiting import PATIENCE_S


class Counts:
    """How often each key is in the log."""

    def __init__(self, found: dict[str, int] | None = None) -> None:
        self.found = found or {}

    def clear(self) -> None:
        self.found = {}

    def apply(self, _: TopicPartition, __: int, ___: int, key: bytes | None, ____: bytes | None) -> None:
        name = (key or b"").decode()
        self.found[name] = self.found.get(name, 0) + 1


class CountShard(Counts):
    """Can add one key, once: the decision depends on all that is in the log."""

    def __init__(self, log: ShardLog, workers: Workers, failures: list[Exception]) -> None:
        super().__init__()
        self.log = log
        self.loaded: dict[str, int] | None = None
        self.unloaded = False
        self._workers = workers
        self._failures = failures

    async def load(self) -> None:
        if self._failures:
            raise self._failures.pop()
        self.loaded = await self._workers.offsets(self.read)

    def read(self) -> dict[str, int]:
        with self.log.caught_up():
            return dict(self.found)

    def add_once(self, key: str, on_decided: Callable[[], None] = lambda: None) -> None:
        def decide(counts: Counts) -> bytearray | None:
            on_decided()
            return None if key in counts.found else batch(key)

        self.log.append_decided(lambda: Counts(dict(self.found)), decide, f"adding {key}")

    def unload(self) -> None:
        self.unloaded = True


def batch(key: str) -> bytearray:
    return bytearray(encode_batch([(1, key.encode(), b"", ())]))


class Broker:
    """Leads the only partition of the topic, in the next epoch whenever it is elected."""

    def __init__(self, folder: Path) -> None:
        self.epoch = 1
        self.image = self._image()
        self.replica = led_partition(folder, self._state())
        self.partitions = Partitions(BrokerMetrics())
        self.partitions.put(self.replica)
        self.workers = Workers(1)
        self.failures: list[Exception] = []
        self.made: list[CountShard] = []
        no_topic: Any = None
        topic = CoordinatorTopic(
            OFFSETS_TOPIC, "counts.topic", 0, lambda: self.image, self.partitions, OffsetsTopicSettings(), no_topic,
            lambda: "me",
        )  # fmt: skip
        self.runtime = CoordinatorRuntime(topic, self._make, self.workers, CodecTable())

    def _make(self, _: LedRole, log: ShardLog) -> CountShard:
        self.made.append(CountShard(log, self.workers, self.failures))
        return self.made[-1]

    def _state(self) -> PartitionImage:
        return partition_image(0, self.epoch, (0,))

    def _image(self) -> ClusterImage:
        return ClusterImage("c", 0, {}, {OFFSETS_TOPIC: TopicImage(OFFSETS_TOPIC, TOPIC_ID, {0: self._state()})})

    def elect(self) -> None:
        self.epoch += 1
        self.image = self._image()
        lead(self.replica, self._state())

    def produce(self, key: str) -> None:
        """Another writer's append, which is committed at once."""
        self.replica.log.append_as_leader(batch(key), self.epoch, commit=True)

    async def shard(self) -> CountShard:
        await self.runtime.loaded("k", PATIENCE_S)
        return self.runtime.shard("k")


@contextmanager
def broker(folder: Path) -> Iterator[Broker]:
    made = Broker(folder)
    try:
        yield made
    finally:
        made.runtime.stop()
        made.workers.close()
        made.replica.log.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


def test_a_shard_is_loaded_from_its_log_in_each_leader_epoch(tmp_path: Path) -> None:
    async def test() -> None:
        with broker(tmp_path) as made:
            made.produce("a")
            assert made.runtime.refusal("k") is ErrorCode.coordinator_load_in_progress
            first = await made.shard()
            assert first.loaded == {"a": 1}
            made.produce("a")
            assert await made.workers.offsets(first.read) == {"a": 2}, "what others append is applied once"
            made.elect()
            assert made.runtime.refusal("k") is ErrorCode.coordinator_load_in_progress
            assert first.unloaded
            second = await made.shard()
            assert second.loaded == {"a": 2}
            with pytest.raises(BrokerError) as caught:
                await made.workers.offsets(first.add_once, "b")
            assert caught.value.code is ErrorCode.not_leader_or_follower

    run(test())


def test_a_load_that_failed_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with broker(tmp_path) as made:
            made.failures += [CorruptRecordError("planted"), ValueError("planted")]
            made.produce("a")
            while made.runtime.refusal("k") is not None:
                await asyncio.sleep(0.01)
                made.runtime.refresh()
            assert [shard.loaded for shard in made.made] == [None, None, {"a": 1}]

    run(test())
    said = [line for line in caplog.messages if "could not be loaded" in line]
    assert said[0].startswith("__consumer_offsets-0 could not be loaded, retrying: ValueError: planted at")
    assert said[1:] == ["__consumer_offsets-0 could not be loaded, retrying: planted"]


def test_a_decision_is_made_again_when_another_append_comes_first(tmp_path: Path) -> None:
    async def test() -> None:
        with broker(tmp_path) as made:
            shard = await (made.runtime.refresh() or made.shard())
            others = ["other", "mine"]

            def overtaken() -> None:
                if others:
                    made.produce(others.pop(0))

            await made.workers.offsets(shard.add_once, "mine", overtaken)
            assert await made.workers.offsets(shard.read) == {"other": 1, "mine": 1}
            with pytest.raises(BrokerError, match=f"adding new was overtaken {APPEND_TRIES} times"):
                await made.workers.offsets(shard.add_once, "new", lambda: made.produce("other"))

    run(test())
