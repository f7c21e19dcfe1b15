"""Leaders of new partitions are named once they lead."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from struct import unpack
from uuid import UUID

import pytest

from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication import new_leaders
from klamm.core.broker.replication.new_leaders import NewLeaders
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.cluster.image import ClusterImage, PartitionImage, TopicImage
from klamm.core.errors import ErrorCode
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import read_request_header, response_frame, skip_tags
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.negotiating import answer
from klammtest.clusters.images import broker_node, partition_image

HERE, THERE, SILENT = 0, 1, 2
API, VERSION = ApiKey.OFFSET_FOR_LEADER_EPOCH, 4


class Leader:
    """A broker that answers what it is given, in turn, and then that it leads."""

    def __init__(self, *answers: ErrorCode) -> None:
        self._answers = iter(answers)
        self.asked: list[list[int]] = []
        self.connections = 0
        self._serving: list[asyncio.Task[object]] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.append(task)
        self.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    (size,) = unpack(">i", await reader.readexactly(4))
                    writer.write(self._answer(await reader.readexactly(size)))
        finally:
            writer.close()

    def _answer(self, frame: bytes) -> bytes:
        header = read_request_header(frame)
        if header.api_key == ApiKey.API_VERSIONS:
            return b"".join(answer(frame))
        request = messages.request(API, VERSION).decode(frame, skip_tags(frame, header.end))
        self.asked.append([row.partition for topic in request.topics for row in topic.partitions])
        code = next(self._answers, ErrorCode.none)
        reply = messages.response(API, VERSION)
        found = tuple(
            reply.part(
                "OffsetForLeaderTopicResult",
                topic=topic.topic,
                partitions=tuple(
                    reply.part("EpochEndOffset", error_code=code, partition=row.partition, leader_epoch=0, end_offset=0)
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        )
        body = reply.encode(reply.build(topics=found, throttle_time=timedelta()))
        return b"".join(response_frame(API, VERSION, header.correlation_id, [body]))


class Cluster:
    """What the broker knows: at first no topic."""

    def __init__(self, port: int, silent_port: int = 1) -> None:
        self._nodes = {
            HERE: broker_node(HERE),
            THERE: broker_node(THERE, port=port),
            SILENT: broker_node(SILENT, port=silent_port),
        }
        self.image = ClusterImage("c", 0, self._nodes, {})

    def have(self, name: str, *leaders: int, topic_id: int = 1) -> None:
        partitions: dict[int, PartitionImage] = {
            number: partition_image(leader, 0, (HERE, THERE)) for number, leader in enumerate(leaders)
        }
        topics = {**self.image.topics, name: TopicImage(name, UUID(int=topic_id), partitions, {})}
        self.image = ClusterImage("c", 0, self._nodes, topics)


def run(leader: Leader, use: Callable[[Cluster, NewLeaders], Awaitable[None]]) -> None:
    for schema in (messages.request, messages.response):
        schema(API, VERSION)  # made once, which takes a while

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            await in_cluster(Cluster(await leader.start(), silent.getsockname()[1]))

    async def in_cluster(cluster: Cluster) -> None:
        new = NewLeaders(HERE, Partitions(BrokerMetrics()), lambda: cluster.image)
        try:
            await use(cluster, new)
        finally:
            await new.stop()
            await leader.stop()

    asyncio.run(main())


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_leaders, "_PATIENCE_S", 60.0)


@pytest.mark.usefixtures("patient")
def test_a_new_leader_is_named_when_it_says_that_it_leads() -> None:
    leader = Leader(ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower)

    async def use(cluster: Cluster, new: NewLeaders) -> None:
        cluster.have("t", THERE, THERE)
        assert new.has_new(["t"])
        assert await new.wait(["t", "nowhere"]) == frozenset()
        assert leader.asked == [[0, 1]] * 3
        assert not new.has_new(["t"])
        assert await new.wait(["t"]) == frozenset()
        assert len(leader.asked) == 3, "it is not asked again"

    run(leader, use)


def test_one_that_does_not_lead_yet_is_told_apart() -> None:
    leader = Leader(*[ErrorCode.not_leader_or_follower] * 10_000)

    async def use(cluster: Cluster, new: NewLeaders) -> None:
        cluster.have("t", THERE, -1, HERE)
        assert await new.wait(["t"]) == {TopicPartition("t", number) for number in (0, 2)}, "1 has no leader"

    run(leader, use)


def test_a_leader_that_does_not_answer_holds_up_its_own_partitions_only() -> None:
    leader = Leader(ErrorCode.not_leader_or_follower)

    async def use(cluster: Cluster, new: NewLeaders) -> None:
        cluster.have("t", SILENT, THERE, SILENT, THERE)
        assert await new.wait(["t"]) == {TopicPartition("t", number) for number in (0, 2)}
        assert leader.asked == [[1, 3]] * 2

    run(leader, use)


@pytest.mark.usefixtures("patient")
def test_many_new_topics_are_asked_for_on_one_connection() -> None:
    leader = Leader(ErrorCode.not_leader_or_follower)
    names = [f"t{number}" for number in range(300)]

    async def use(cluster: Cluster, new: NewLeaders) -> None:
        for number, name in enumerate(names):
            cluster.have(name, THERE, topic_id=1 + number)
        assert not any(await asyncio.gather(new.wait(names), new.wait(names[:9])))
        assert leader.connections == 1
        assert leader.asked == [[0] * len(names)] * 2

    run(leader, use)


def test_an_error_that_says_nothing_about_leadership_ends_the_wait() -> None:
    """As where an authorizer does not let brokers describe topics."""
    leader = Leader(ErrorCode.topic_authorization_failed)

    async def use(cluster: Cluster, new: NewLeaders) -> None:
        cluster.have("t", THERE)
        assert await new.wait(["t"]) == frozenset()

    run(leader, use)


def test_added_partitions_are_new_and_deleted_topics_forgotten() -> None:
    leader = Leader()

    async def use(cluster: Cluster, new: NewLeaders) -> None:
        cluster.have("t", THERE)
        await new.wait(["t"])
        cluster.have("t", THERE, THERE)
        assert new.has_new(["t"])
        await new.wait(["t"])
        assert leader.asked == [[0], [1]]
        cluster.have("t", THERE, topic_id=2)
        new.forget()
        assert new.has_new(["t"]), "created again"

    run(leader, use)


def test_what_is_there_at_the_start_is_not_new() -> None:
    async def main() -> None:
        cluster = Cluster(1)
        cluster.have("t", THERE)
        new = NewLeaders(HERE, Partitions(BrokerMetrics()), lambda: cluster.image)
        assert not new.has_new(["t"])
        assert await new.wait(["t"]) == frozenset()

    asyncio.run(main())
