"""Writes to the topic of schemas: what was decided on an older end is never appended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.records.codecs import CodecTable
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


def next_schema(store: SchemaStore) -> list[Record]:
    number = store.last_id() + 1
    return [SchemaRecord(f"s{number}", 1, number, SchemaText(f'"schema {number}"'))]


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

    def overtaken() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            two.write(next_schema)
            one.catch_up()  # as the follower does

    one.write(next_schema, overtaken)
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
