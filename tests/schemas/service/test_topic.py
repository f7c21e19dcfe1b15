"""Writes to the topic of schemas: what was decided on an older end is never appended."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.errors import BrokerError, ConfigError, ErrorCode
from klamm.core.records.codecs import CodecTable
from klamm.schemas.registry.log import TOPIC_CONFIGS
from klamm.schemas.service.topic import SchemaTopic
from klamm.schemas.store.records import Record, SchemaRecord
from klamm.schemas.store.schema import SchemaText
from klamm.schemas.store.schema_store import SchemaStore
from klammtest.broker import RunningBroker
from klammtest.waiting import eventually


def opened(broker: RunningBroker, name: str) -> SchemaTopic:
    return SchemaTopic(ClusterClient(broker.bootstrap, codecs=CodecTable(), client_id="test"), name)


@pytest.fixture
def topics(broker: RunningBroker, subject: str) -> Iterator[tuple[SchemaTopic, SchemaTopic]]:
    """Two processes' views of one topic."""
    with closing(opened(broker, f"_{subject}")) as one, closing(opened(broker, f"_{subject}")) as two:
        yield one, two


def next_schema(store: SchemaStore) -> tuple[list[Record], int]:
    number = store.last_id() + 1
    return [SchemaRecord(f"s{number}", 1, number, SchemaText(f'"schema {number}"'))], number


def ids(topic: SchemaTopic) -> list[int]:
    topic.catch_up()
    with topic.store() as store:
        assert store.stray_count == 0
        return store.ids()


def test_a_read_between_decision_and_append_does_not_hide_that_another_wrote(
    topics: tuple[SchemaTopic, SchemaTopic],
) -> None:
    one, two = topics
    one.write(next_schema)
    calls = 0

    def overtaken(_number: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            two.write(next_schema)
            one.catch_up()  # as the follower does

    assert one.write(next_schema, overtaken) == 3
    assert calls == 2
    assert one.overtaken == 1
    assert ids(one) == ids(two) == [1, 2, 3]


def test_writes_of_one_process_do_not_overtake_each_other(topics: tuple[SchemaTopic, SchemaTopic]) -> None:
    one, two = topics
    one.start()
    threads = [threading.Thread(target=one.write, args=(next_schema,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert one.overtaken == 0
    assert ids(two) == list(range(1, 9))


def test_the_follower_is_woken_by_what_another_writes(topics: tuple[SchemaTopic, SchemaTopic]) -> None:
    one, two = topics
    two.catch_up()
    one.start()
    eventually(lambda: one.is_loaded, "the topic is read")
    two.write(next_schema)
    eventually(lambda: one.place == two.place, "the follower has read it")
    assert one.problem() is None


@pytest.mark.parametrize(
    ("new", "line"),
    [
        (NewTopic(2, configs=TOPIC_CONFIGS), "has 2 partitions; a topic of schemas has one"),
        (NewTopic(1), "has cleanup.policy=delete, by which schemas are lost; `klamm topics alter "),
    ],
)
def test_a_topic_that_would_lose_schemas_is_refused(
    broker: RunningBroker, subject: str, new: NewTopic, line: str
) -> None:
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as admin, closing(opened(broker, subject)) as topic:
        admin.create_topics({subject: new})
        for call in (topic.catch_up, lambda: topic.write(next_schema)):
            with pytest.raises(ConfigError, match=f"^topic {subject} {line}"):
                call()
        assert not topic.is_loaded
        assert line in (topic.problem() or "")
        admin.delete_topics([subject])
        eventually(lambda: ids(topic) == [], "the topic is another")
        topic.write(next_schema)
        assert ids(topic) == [1]


def test_calls_that_wait_share_a_read_that_fails(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, reads, failed = itertools.count(), itertools.count(1), list[str]()
    asked, go_on = threading.Semaphore(0), threading.Event()

    def clock() -> float:
        tick = next(ticks)
        asked.release()
        return tick

    client = ClusterClient(broker.bootstrap, codecs=CodecTable(), client_id="test")
    with closing(SchemaTopic(client, "_none", clock=clock)) as topic:

        def read(_deadline_s: float | None) -> SchemaStore:
            number = next(reads)
            go_on.wait(30)
            raise BrokerError(ErrorCode.request_timed_out, f"read {number}")

        def ask() -> None:
            with pytest.raises(BrokerError) as caught:
                topic.catch_up()
            failed.append(str(caught.value))

        monkeypatch.setattr(topic._log, "create", lambda: True)
        monkeypatch.setattr(topic._log, "read", read)
        threads = [threading.Thread(target=ask) for _ in range(4)]
        threads[0].start()
        for _ in range(2):  # it has asked, and its read has begun
            assert asked.acquire(timeout=30)
        for thread in threads[1:]:
            thread.start()
            assert asked.acquire(timeout=30)
        go_on.set()
        for thread in threads:
            thread.join()
        assert sorted(line[-6:] for line in failed) == ["read 1", "read 2", "read 2", "read 2"]
