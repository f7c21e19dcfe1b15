"""The requests of a fetcher, against a source that is a script of answers, and partitions that only note them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from klamm.core.broker.mirror.source_fetcher import Mirrored, SourceFetcher
from klamm.core.config.sections.mirror import MirrorConfig
from klamm.core.errors import ErrorCode
from klamm.core.mirror.partition_mirror import MirrorAnswer, MirrorFetch, MirrorResult, MirrorStatus
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.replica_fetch import PartitionAnswer, PartitionKey, ReplicaFetchResponse
from klamm.core.records.epoch_end import EpochEnd
from klamm.core.records.partition import TopicPartition
from klammtest.logs import batch
from klammtest.waiting import eventually

TOPIC = UUID(int=7)
SESSION = 5
VERSION = 17


class FakeMirror:
    """A mirror whose log has as many records as were applied."""

    def __init__(self) -> None:
        self.topic_id = TOPIC
        self.leader = object()
        self.status = MirrorStatus.COPYING
        self.end = 0
        self.results: list[MirrorResult] = []
        """What the next answers come to; then all are appended."""
        self.noticed: list[MirrorResult] = []
        self.raises: Exception | None = None

    def fetch(self) -> MirrorFetch:
        return MirrorFetch(self.end, 0)

    def on_answer(self, fetch: MirrorFetch, answer: MirrorAnswer) -> MirrorResult:
        assert fetch.offset == self.end
        if self.raises is not None:
            raise self.raises
        result = self.results.pop(0) if self.results else MirrorResult.APPENDED
        if result is MirrorResult.APPENDED:
            self.end += bool(answer.records)
            self.status = MirrorStatus.FOLLOWING
        return result

    def on_bounds(self, fetch: MirrorFetch, log_start_offset: int, topic_id: UUID | None) -> MirrorResult:
        assert (fetch.offset, log_start_offset, topic_id) == (self.end, 0, TOPIC)
        self.status = MirrorStatus.SOURCE_REPLACED
        return MirrorResult.STOPPED

    def notice(self, result: MirrorResult) -> None:
        self.noticed.append(result)


class FakeReplica:
    def __init__(self, number: int, mirror: FakeMirror) -> None:
        self.name = TopicPartition("trips", number)
        self.leader = mirror.leader
        self.is_offline = False
        self.copied = 0

    def mirrored(self, size: int) -> None:
        self.copied += size


class FakeSource:
    """`ClusterClient.call`: answers in turn from a script, then waits until it is closed."""

    request_timeout_s = 30.0

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answers: list[ReplicaFetchResponse] = []
        self.closed = threading.Event()
        self.epoch_end = EpochEnd(0, 1)

    def list_offsets(self, asked: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(asked, (0, -1))

    def metadata(self, topics: Iterable[str], **_: Any) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(topic_id=TOPIC) for topic in topics})

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, EpochEnd]:
        assert set(epochs.values()) == {0}, "that of the last record here"
        return dict.fromkeys(epochs, self.epoch_end)

    def call(self, api: ApiKey, node: int, *, build: Callable[[Any], list[bytes]], **_: Any) -> ReplicaFetchResponse:
        assert (api, node) == (ApiKey.FETCH, 3)
        schema = messages.request(ApiKey.FETCH, VERSION)
        self.requests.append(schema.decode(build(schema)[0]))
        if self.answers:
            return self.answers.pop(0)
        self.closed.wait()
        return ReplicaFetchResponse(ErrorCode.none, SESSION, {})

    def asked(self) -> list[tuple[int, list[tuple[int, int]], list[int]]]:
        """Returns of each request: session epoch, (partition, offset) of the partitions, and those forgotten."""
        return [
            (
                request.session_epoch,
                sorted((p.partition, p.fetch_offset) for topic in request.topics for p in topic.partitions),
                sorted(number for topic in request.forgotten_topics_data for number in topic.partitions),
            )
            for request in self.requests
        ]


class FakeLink:
    def __init__(self, source: FakeSource) -> None:
        self.loop = asyncio.new_event_loop()
        self.client: Callable[[], Any] = lambda: source
        self.stops: Callable[[str], str] = lambda _: ""
        self.followed: list[TopicPartition] = []
        self.held: list[TopicPartition] = []
        self.errors: list[Exception] = []

    def on_loop(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return self.loop.run_until_complete(call())

    def is_held(self, source: TopicPartition) -> bool:
        return source in self.held

    def hold(self, share: Iterable[Mirrored], *_: Any) -> None:
        self.held += [each.source for each in share]

    def hold_failed(self, each: Mirrored, error: Exception) -> None:
        self.held.append(each.source)
        self.errors.append(error)

    def release(self, source: TopicPartition) -> None: ...

    def caught_up(self, replica: Any) -> None:
        self.followed.append(replica.name)

    def copied(self, size: int) -> None: ...

    def wait_s(self) -> float:
        return 0.0

    def store_begin(self, each: Mirrored) -> None: ...

    def store_gap(self, each: Mirrored) -> None: ...

    def raise_epoch(self, each: Mirrored) -> None: ...


class Fetching:
    """A fetcher of three partitions."""

    def __init__(self) -> None:
        self.source = FakeSource()
        self.link = FakeLink(self.source)
        self.mirrors = [FakeMirror() for _ in range(3)]
        self.replicas = [FakeReplica(number, mirror) for number, mirror in enumerate(self.mirrors)]
        self.share: dict[PartitionKey, Mirrored] = {}
        for replica, mirror in zip(self.replicas, self.mirrors, strict=True):
            each: Any = Mirrored(replica, mirror, replica.name)  # type: ignore[arg-type]
            self.share[each.key] = each
        config = MirrorConfig.model_validate({"bootstrap.servers": "source:1", "topics": "trips"})
        self.fetcher = SourceFetcher(self.link, "fetcher", config, 3)

    def run(self, *answers: ReplicaFetchResponse) -> list[tuple[int, list[tuple[int, int]], list[int]]]:
        """Returns what was asked until all answers were taken."""
        self.source.answers = list(answers)
        self.fetcher.assign(self.share)
        eventually(lambda: len(self.source.requests) > len(answers), "the answers are taken")
        return self.source.asked()


def answer(*numbers: int, error: ErrorCode = ErrorCode.none, records: bytes = b"") -> ReplicaFetchResponse:
    """Returns an answer that has a batch, or an error, of these partitions."""
    found = PartitionAnswer(error, 1, 0, None, memoryview(records or batch([b"v"])))
    return ReplicaFetchResponse(ErrorCode.none, SESSION, {(TOPIC.bytes, number): found for number in numbers})


ALL = [(0, 0), (1, 0), (2, 0)]


@pytest.fixture
def fetching() -> Iterator[Fetching]:
    made = Fetching()
    yield made
    made.fetcher.stop_soon()
    made.source.closed.set()
    made.fetcher.stop()
    made.link.loop.close()


def test_a_request_names_only_the_partitions_that_have_moved(fetching: Fetching) -> None:
    asked = fetching.run(answer(0, 1, 2), answer(1), answer())
    assert asked == [(0, ALL, []), (1, [(0, 1), (1, 1), (2, 1)], []), (2, [(1, 2)], []), (3, [], [])]
    assert [mirror.noticed for mirror in fetching.mirrors] == [[MirrorResult.APPENDED] * n for n in (1, 2, 1)]
    assert fetching.replicas[1].copied == 2 * len(batch([b"v"]))
    assert fetching.link.followed.count(TopicPartition("trips", 2)) == 3, "an answer without it says that it has all"


@pytest.mark.parametrize("result", [MirrorResult.STALE, MirrorResult.GAP_FOUND, MirrorResult.EPOCH_TOO_LOW])
def test_an_answer_that_was_not_stored_is_asked_for_again(fetching: Fetching, result: MirrorResult) -> None:
    fetching.mirrors[1].results = [result]
    asked = fetching.run(answer(0, 1), answer())
    assert asked[1] == (0, [(0, 1), (1, 0), (2, 0)], []), "a full request"


@pytest.mark.parametrize(
    ("known", "status"),
    [(EpochEnd(0, 1), MirrorStatus.COPYING), (EpochEnd(-1, -1), MirrorStatus.SOURCE_REPLACED)],
    ids=["by its leader", "by nobody"],
)
def test_an_epoch_that_the_leader_knows_is_that_of_another_broker_s_answer(
    fetching: Fetching, known: EpochEnd, status: MirrorStatus
) -> None:
    """A follower also answers OFFSET_OUT_OF_RANGE; the leader answers where the logs part."""
    fetching.source.epoch_end, fetching.mirrors[1].results = known, [MirrorResult.OUT_OF_RANGE]
    asked = fetching.run(answer(1, error=ErrorCode.offset_out_of_range), answer())
    assert asked[1] == (0, ALL, []), "a full request"
    assert fetching.mirrors[1].status is status


def test_a_session_that_the_source_has_ended_begins_again(fetching: Fetching) -> None:
    asked = fetching.run(answer(), ReplicaFetchResponse(ErrorCode.fetch_session_id_not_found, 0, {}), answer())
    assert asked[1:3] == [(1, [], []), (0, ALL, [])]


def test_damaged_records_hold_one_partition_back(fetching: Fetching) -> None:
    damaged = bytearray(batch([b"v"]))
    damaged[16] = 1  # the magic
    asked = fetching.run(answer(2, records=bytes(damaged)), answer())
    assert fetching.link.held == [TopicPartition("trips", 2)]
    assert asked[1] == (0, ALL[:2], [])


def test_an_answer_that_cannot_be_applied_holds_one_partition_back(
    fetching: Fetching, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is raised, as by a defect: the others of the answer are taken, and the thread goes on."""
    error = fetching.mirrors[1].raises = ZeroDivisionError("a defect")
    asked = fetching.run(answer(0, 1, 2), answer())
    assert (fetching.link.held, fetching.link.errors) == ([TopicPartition("trips", 1)], [error])
    assert asked[1] == (0, [(0, 1), (2, 1)], []), "a full request"
    assert [mirror.end for mirror in fetching.mirrors] == [1, 0, 1]
    assert "trips-1: an answer of the source could not be applied" in caplog.text
    assert fetching.fetcher.failed_with == ""


def test_a_partition_that_is_led_in_another_term_is_forgotten(fetching: Fetching) -> None:
    fetching.run(answer(0))
    fetching.replicas[0].leader = object()
    fetching.source.closed.set()
    eventually(lambda: any(forgotten == [0] for _, _, forgotten in fetching.source.asked()), "it is forgotten")
