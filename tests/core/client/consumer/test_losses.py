"""Records that were not returned are not committed: if making a result raises an error, its records are returned
later.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.consumer.arrow import ArrowConverter
from klamm.core.client.consumer.delivery import Delivery
from klamm.core.client.consumer.values import Interception
from klamm.core.errors import SchemaError
from klamm.core.records.partition import TopicPartition
from klamm.schemas.serdes.avro import AvroSerde
from klammtest.audits import read_audit_log
from klammtest.broker import RunningBroker
from klammtest.clients.readers import client_config, produce
from klammtest.guarantees import guarantee
from klammtest.waiting import eventually

COUNT = 1_000
NUMBER = itertools.count()


class Panic(BaseException):
    """As compiled extensions raise it."""


@pytest.fixture
def topic(client: ClusterClient) -> str:
    name = f"losses-{next(NUMBER)}"
    client.create_topics({name: NewTopic(2), f"{name}-audit": NewTopic(1)})
    return name


@pytest.fixture
def config(broker: RunningBroker, topic: str) -> dict[str, Any]:
    """Audited, of a group of the test's own."""
    said = client_config(broker, group_id=f"group-{topic}", auto_commit_interval_ms=50)
    return {**said, "audit": {"plugin": "klamm", "topic": f"{topic}-audit", "topics": [topic]}}


def moved_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions and counts advance, then the result is built."""

    def deliver(self: Any, batch: Any, build: Any) -> Any:
        self._hold(batch)
        for taken in batch.runs:
            self._counted(taken.cursor.state.partition, taken.columns)
        self._settle(batch, batch.runs)
        return build([taken.run for taken in batch.runs]) if batch.runs else None

    monkeypatch.setattr(Delivery, "_deliver", deliver)
    monkeypatch.setattr(Delivery, "take_back", lambda _: None)


def raising(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: BaseException) -> Callable[[], int]:
    """`owner.name` works once in three calls, and raises after its work otherwise; returns how often it has raised."""
    original = getattr(owner, name)
    turn = itertools.count(1)
    raised = itertools.count()

    def sometimes(*args: Any, **more: Any) -> Any:
        result = original(*args, **more)
        if next(turn) % 3:
            next(raised)
            raise error
        return result

    monkeypatch.setattr(owner, name, sometimes)
    return lambda: next(raised)


def counted(client: ClusterClient, topic: str) -> int:
    """Records that the consumer tier counted."""
    log = read_audit_log(client, f"{topic}-audit").events
    events = {(e.partition, e.from_offset): e for e in log if e.tier == "consumer" and not e.replay}
    return sum(window.records for event in events.values() for window in event.windows)


def tables(consumer: klamm.Consumer) -> list[int]:
    table = consumer.poll_arrow(0.2, 300)
    return [n * COUNT + o for n, o in zip(*(table[c].to_pylist() for c in ("partition", "offset")), strict=True)]


def lists(consumer: klamm.Consumer) -> list[int]:
    return [r.partition * COUNT + r.offset for r in consumer.poll(0.2, 300)]


@guarantee(
    "B6", "poll and poll_arrow commit and count no record that they did not return", plant=moved_before_it_is_built
)
@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), Panic(), RuntimeError()], ids=repr)
@pytest.mark.parametrize(
    ("owner", "name", "poll"),
    [
        (ArrowConverter, "table", tables),
        (Interception, "on_consume", lists),
    ],
    ids=["poll_arrow", "poll"],
)
def test_what_a_failed_poll_did_not_return_comes_again(
    config: dict[str, Any],
    topic: str,
    client: ClusterClient,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    poll: Callable[[klamm.Consumer], list[int]],
    error: BaseException,
) -> None:
    produce(config, topic, {n: [b"%d" % i for i in range(COUNT)] for n in (0, 1)})
    raised = raising(monkeypatch, owner, name, error)
    seen: list[int] = []
    with klamm.Consumer(config, topics=[topic]) as consumer:
        partitions = [TopicPartition(topic, n) for n in (0, 1)]
        eventually(lambda: len(consumer.assignment()) == 2, "assigned")
        for _ in range(400):
            try:
                seen += poll(consumer)
            except BaseException as met:
                if met is not error:
                    raise
            handed = {p: len([s for s in seen if s // COUNT == p.partition]) for p in partitions}
            stored = consumer.committed(partitions)
            assert all(stored[p].offset <= handed[p] for p in stored), "committed what was not returned"
            if len(seen) == 2 * COUNT:
                break
    assert raised() > 2
    assert sorted(seen) == list(range(2 * COUNT)), "lost or doubled"
    assert counted(client, topic) == 2 * COUNT


@guarantee("B6", "no record is committed or counted that a stream did not return", plant=moved_before_it_is_built)
def test_what_a_failed_stream_did_not_return_comes_again(
    config: dict[str, Any], topic: str, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(config, topic, {n: [b"%d" % i for i in range(10)] for n in (0, 1)})
    error = KeyboardInterrupt()
    raised = raising(monkeypatch, Interception, "on_consume", error)
    seen: list[int] = []
    with klamm.Consumer(config) as consumer:
        stream = consumer.streams({topic: 1})[topic][0]
        eventually(lambda: consumer.metrics()["lag"] == 20, "all is buffered")
        while consumer.metrics()["lag"]:
            with contextlib.suppress(KeyboardInterrupt):
                record = next(stream)
                seen.append(record.partition * 10 + record.offset)
        consumer.commit()
    assert raised() > 2
    assert sorted(seen) == list(range(20)), "lost or doubled"
    assert counted(client, topic) == 20


def all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions advance, and what cannot be one table, or one column, raises."""
    moved_before_it_is_built(monkeypatch)
    table, convert = ArrowConverter.table, ArrowConverter.convert

    def whole(self: ArrowConverter, runs: Any) -> Any:
        built = table(self, runs)
        if built.count < len(runs):
            raise SchemaError("values of different types cannot be one table")
        return built

    def all_of_them(self: ArrowConverter, *args: Any) -> Any:
        converted = convert(self, *args)
        if converted.error is None and converted.count < len(args[1].offsets):
            raise SchemaError("values of different types cannot be one column")
        return converted

    monkeypatch.setattr(ArrowConverter, "table", whole)
    monkeypatch.setattr(ArrowConverter, "convert", all_of_them)


TURNS = {
    "in one partition": [{0: 7}, {0: "text"}, {0: 7}],
    "between partitions": [{0: 7}, {1: "text"}],
}
"""The written values, in order: by partition the value of 100 records."""


def reader_of_both_types(base: dict[str, Any], topic: str, folder: Path, turns: list[dict[int, Any]]) -> dict[str, Any]:
    """Without a schema of its own."""
    for number, turn in enumerate(turns):
        for partition, value in turn.items():
            kind = "string" if isinstance(value, str) else "long"
            schema = folder / f"{number}.avsc"
            schema.write_text(json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}))
            said = {**base, "topics": {topic: {"schema": str(schema), "compatibility": "NONE"}}}
            produce(said, topic, {partition: [{"v": value}] * 100})
    return {**base, "topics": {topic: {"serde": "avro"}}}


@guarantee("B6", "values of two writers' types come as one table for each type", plant=all_or_nothing)
@pytest.mark.parametrize("columnar", [True, False], ids=["by columns", "by records"])
@pytest.mark.parametrize("where", TURNS)
def test_types_that_contradict_each_other_end_the_table(
    config: dict[str, Any], topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, *, columnar: bool
) -> None:
    if not columnar:
        monkeypatch.setattr(AvroSerde, "arrow_deserializer", lambda *_: None)
    turns = TURNS[where]
    seen: dict[int, list[Any]] = {0: [], 1: []}
    reader = reader_of_both_types(config, topic, tmp_path, turns)
    with klamm.Consumer(reader, topics=[topic]) as consumer:
        eventually(lambda: consumer.metrics()["lag"] == 100 * len(turns), "all is buffered")
        for _ in range(400):
            for row in consumer.poll_arrow(0.2).to_pylist():
                assert row["offset"] == len(seen[row["partition"]])
                seen[row["partition"]].append(row["value"]["v"])
            if sum(map(len, seen.values())) == 100 * len(turns):
                break
    assert seen == {n: [turn[n] for turn in turns if n in turn for _ in range(100)] for n in (0, 1)}
