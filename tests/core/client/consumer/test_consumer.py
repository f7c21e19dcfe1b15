"""The consumer against a real broker: positions, commits, errors that name the record, streams, Arrow."""

from __future__ import annotations

import itertools
import threading
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from struct import pack_into
from typing import Any
from uuid import UUID

import pytest

import klamm
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.errors import NoOffsetError, UnknownTopicError, UnreadableBatchError, UnreadableRecordError
from klamm.core.errors import ConfigError, CorruptRecordError, KlammError, SchemaError
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import crc_of, set_crc
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.readers import client_config, produce, read
from klammtest.waiting import eventually

NUMBER = itertools.count()
SCHEMA = (
    '{"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}, {"name": "label", "type": "string"}]}'
)


@pytest.fixture
def topic(client: ClusterClient) -> str:
    """A new one with two partitions."""
    name = f"topic-{next(NUMBER)}"
    client.create_topics({name: NewTopic(2)})
    return name


@pytest.fixture
def config(broker: RunningBroker) -> dict[str, Any]:
    """For a group of the test's own."""
    return client_config(broker, group_id=f"group-{next(NUMBER)}")


def test_a_coordination_of_another_cluster_is_told(config: dict[str, Any], topic: str, tmp_path: Path) -> None:
    """Its registry knows no partition of these brokers, so a member would wait for ever."""
    other = {**config, "coordination": {"plugin": "embedded", "path": str(tmp_path / "other.db")}}
    with pytest.raises(ConfigError, match=r"'embedded' is of no cluster, but the brokers at 127\.0\.0\.1:\d+ are of"):
        klamm.Consumer(other, topics=[topic])


def change(config: dict[str, Any], **consumer: Any) -> dict[str, Any]:
    keys = {key.replace("_", "."): value for key, value in consumer.items()}
    return {**config, "consumer": {**config["consumer"], **keys}}


def test_records_come_in_order_and_the_next_consumer_goes_on(config: dict[str, Any], topic: str) -> None:
    produce(config, topic, {n: [b"%d" % i for i in range(1500)] for n in (0, 1)})
    with klamm.Consumer(config, topics=[topic]) as consumer:
        records = read(consumer, 3000)
        assert consumer.metrics()["lag"] == 0
    for number in (0, 1):
        assert [r.value for r in records if r.partition == number] == [b"%d" % i for i in range(1500)]
        assert [r.offset for r in records if r.partition == number] == list(range(1500))
    produce(config, topic, {0: [b"later"]})
    with klamm.Consumer(config, topics=[topic]) as consumer:
        assert [r.value for r in read(consumer, 1)] == [b"later"]


def test_start_at_the_largest_or_say_that_there_is_no_offset(config: dict[str, Any], topic: str) -> None:
    produce(config, topic, {0: [b"old"]})
    with klamm.Consumer(change(config, auto_offset_reset="largest"), topics=[topic]) as consumer:
        eventually(lambda: len(consumer.assignment()) == 2, "assigned")
        assert consumer.position(TopicPartition(topic, 0)) == 1
        produce(config, topic, {0: [b"new"]})
        assert [r.value for r in read(consumer, 1)] == [b"new"]
    strict = change(config, auto_offset_reset="none", group_id="nothing-stored")
    with klamm.Consumer(strict, topics=[topic]) as consumer, pytest.raises(NoOffsetError, match="is not stored"):
        read(consumer, 1)
    with klamm.Consumer(strict, topics=[topic]) as consumer, pytest.raises(NoOffsetError) as caught:
        read(consumer, 1)
    assert str(caught.value).endswith(
        f": {topic}-0, {topic}-1: the offset is not stored, and consumer.auto.offset.reset is none: seek, or set it to "
        "earliest or latest"
    )


def test_only_explicit_commits_count_without_autocommit(config: dict[str, Any], topic: str) -> None:
    manual = change(config, enable_auto_commit=False)
    produce(manual, topic, {0: [b"a", b"b", b"c"]})
    with klamm.Consumer(manual, topics=[topic]) as consumer:
        assert len(read(consumer, 3)) == 3
    with klamm.Consumer(manual, topics=[topic]) as consumer:
        assert [r.offset for r in consumer.poll(60.0, 2)] == [0, 1]
        consumer.commit()
        assert consumer.committed([TopicPartition(topic, 0)])[TopicPartition(topic, 0)].offset == 2
        assert [r.offset for r in consumer.poll(60.0, 2)] == [2]
    with klamm.Consumer(manual, topics=[topic]) as consumer:
        assert [r.offset for r in read(consumer, 1)] == [2]
        consumer.commit({TopicPartition(topic, 0): 1})
    with klamm.Consumer(manual, topics=[topic]) as consumer:
        assert [r.offset for r in read(consumer, 2)] == [1, 2]


def test_positions_are_committed_at_the_interval(config: dict[str, Any], topic: str) -> None:
    produce(config, topic, {0: [b"a"]})
    with klamm.Consumer(change(config, auto_commit_interval_ms=50), topics=[topic]) as consumer:
        read(consumer, 1)
        partition = TopicPartition(topic, 0)

        def committed() -> int:
            found = consumer.committed([partition]).get(partition)
            return 0 if found is None else found.offset  # where it began may be stored already

        assert committed() == 0, "still in the application's hands"
        consumer.poll(0.0)
        eventually(lambda: committed() == 1, "committed in the background")


def test_what_was_in_hand_when_the_application_failed_is_read_again(config: dict[str, Any], topic: str) -> None:
    produce(config, topic, {0: [b"a", b"b"]})
    consumer = klamm.Consumer(config, topics=[topic])
    assert consumer.poll(60.0, 1)[0].value == b"a"
    assert consumer.poll(60.0, 1)[0].value == b"b"
    consumer.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    with klamm.Consumer(config, topics=[topic]) as consumer:
        assert [r.value for r in read(consumer, 1)] == [b"b"]


def test_seek_rewinds_and_pause_holds_back(config: dict[str, Any], topic: str) -> None:
    produce(config, topic, {n: [b"%d" % i for i in range(10)] for n in (0, 1)})
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with klamm.Consumer(config, topics=[topic]) as consumer:
        read(consumer, 20)
        consumer.seek(first, 7)
        assert [r.offset for r in read(consumer, 3)] == [7, 8, 9]
        consumer.pause([first])
        consumer.seek(first, 0)
        consumer.seek(second, 5)
        assert {r.partition for r in read(consumer, 5)} == {1}
        assert consumer.poll(0.3) == []
        consumer.resume([first])
        assert [r.offset for r in read(consumer, 10)] == list(range(10))
        with pytest.raises(KlammError, match="is not assigned to this consumer"):
            consumer.seek(TopicPartition(topic, 9), 0)
        for offset in (-1, "a", 1.0, None):
            with pytest.raises(KlammError, match=f"to {offset!r}: offsets are numbers that begin at 0"):
                consumer.seek(first, offset)


def test_a_position_out_of_range_is_reset(config: dict[str, Any], topic: str) -> None:
    produce(config, topic, {0: [b"a", b"b"]})
    with klamm.Consumer(config, topics=[topic]) as consumer:
        read(consumer, 2)
        consumer.seek(TopicPartition(topic, 0), 1_000)
        assert [r.offset for r in read(consumer, 2)] == [0, 1]
    strict = change(config, auto_offset_reset="none")
    with klamm.Consumer(strict, topics=[topic]) as consumer:
        eventually(lambda: consumer.assignment(), "assigned")
        for number in (0, 1):
            consumer.seek(TopicPartition(topic, number), 1_000)
        with pytest.raises(NoOffsetError, match=r"is out of range, .* seek, or set it"):
            read(consumer, 1)
        for number in (0, 1):
            consumer.seek(TopicPartition(topic, number), 0)
        assert len(read(consumer, 2)) == 2


def test_a_lying_batch_is_named_and_can_be_passed_over(
    config: dict[str, Any], topic: str, client: ClusterClient
) -> None:
    partition = TopicPartition(topic, 0)
    client.alter_configs(topic, {"verify.payload": "none"})
    produce(config, topic, {0: [b"good"]})
    client.produce({partition: lying_batch(5, 3)})
    produce(config, topic, {0: [b"after"]})
    with klamm.Consumer(config, topics=[topic]) as consumer:
        assert [r.value for r in read(consumer, 1)] == [b"good"]
        for _ in range(2):
            with pytest.raises(UnreadableBatchError, match=f"{topic}-0 offset 1") as raised:
                read(consumer, 1)
            assert isinstance(raised.value, CorruptRecordError)
            assert consumer.position(partition) == 1
        assert (raised.value.partition, raised.value.offset, raised.value.next_offset) == (partition, 1, 6)
        consumer.seek(partition, raised.value.next_offset)
        assert [(r.offset, r.value) for r in read(consumer, 1)] == [(6, b"after")]


def lying_batch(said: int, held: int) -> bytes:
    """A batch with a good CRC that says it holds more records than it does."""
    batch = bytearray(encode_batch([(0, None, b"v", ()) for _ in range(held)]))
    pack_into(">i", batch, 23, said - 1)
    pack_into(">i", batch, 57, said)
    set_crc(batch, 0, crc_of(batch, 0, len(batch)))
    return bytes(batch)


@pytest.fixture
def typed(config: dict[str, Any], topic: str, tmp_path: Path) -> dict[str, Any]:
    """The same, with an Avro schema for the topic."""
    (tmp_path / "point.avsc").write_text(SCHEMA)
    return {**config, "topics": {topic: {"schema": str(tmp_path / "point.avsc")}}}


def test_typed_values_and_one_that_does_not_fit(typed: dict[str, Any], config: dict[str, Any], topic: str) -> None:
    points = [{"x": i, "label": f"p{i}"} for i in range(3)]
    produce(typed, topic, {0: points})
    produce(config, topic, {0: [b"no envelope"]})
    produce(typed, topic, {0: points[:1]})
    with klamm.Consumer(typed, topics=[topic]) as consumer:
        assert [r.value for r in read(consumer, 3)] == points, "what is before the bad one comes first"
        with pytest.raises(UnreadableRecordError, match=f"topic '{topic}' partition 0 offset 3") as raised:
            read(consumer, 1)
        assert isinstance(raised.value, SchemaError)
        assert consumer.position(TopicPartition(topic, 0)) == 3
        consumer.seek(raised.value.partition, raised.value.next_offset)
        assert [r.offset for r in read(consumer, 1)] == [4]


def test_arrow_has_sparks_columns_and_decoded_values(typed: dict[str, Any], config: dict[str, Any], topic: str) -> None:
    produce(typed, topic, {n: [{"x": i, "label": f"p{i}"} for i in range(5)] for n in (0, 1)})
    produce(config, topic, {0: [b"no envelope"]})
    rows: list[dict[str, Any]] = []
    with klamm.Consumer(typed, topics=[topic]) as consumer:
        while len(rows) < 10:
            table = consumer.poll_arrow(10.0, 4)
            assert 0 < table.num_rows <= 4
            assert table.column_names == [
                "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
            ]  # fmt: skip
            rows += table.to_pylist()
        with pytest.raises(UnreadableRecordError, match="partition 0 offset 5"):
            consumer.poll_arrow(10.0)
    for number in (0, 1):
        mine = [row for row in rows if row["partition"] == number]
        assert [row["value"]["x"] for row in mine] == [row["offset"] for row in mine] == list(range(5))
    assert {(row["topic"], row["timestampType"], row["timestamp"].tzinfo is not None) for row in rows} == {
        (topic, 0, True)
    }


RIDE = """{"type": "record", "name": "Ride", "fields": [
  {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
  {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
  {"name": "end", "type": ["null", {"type": "record", "name": "End", "fields": [{"name": "zone", "type": "int"}]}]}]}"""


@dataclass
class End:
    zone: int


@dataclass
class Ride:
    id: UUID
    fare: Decimal
    end: End | None


def test_arrow_takes_dataclasses_and_uuids(config: dict[str, Any], topic: str, tmp_path: Path) -> None:
    (tmp_path / "ride.avsc").write_text(RIDE)
    said = {"schema": str(tmp_path / "ride.avsc"), "record.class": f"{__name__}:Ride"}
    rides = [Ride(UUID(int=1), Decimal("7.50"), End(3)), Ride(UUID(int=2), Decimal("12345.00"), None)]
    with klamm.Producer({**config, "topics": {topic: said}}) as producer:
        for ride in rides:
            producer.send(topic, ride, partition=0).result(30)
    with klamm.Consumer({**config, "topics": {topic: said}}, topics=[topic]) as consumer:
        assert [record.value for record in read(consumer, 2)] == rides
        consumer.seek(TopicPartition(topic, 0), 0)
        rows = [row["value"] for _ in rides for row in consumer.poll_arrow(10.0, 1).to_pylist()]
    assert rows == [{**asdict(ride), "id": str(ride.id)} for ride in rides]


def test_a_table_is_of_one_topic_and_may_be_empty(
    typed: dict[str, Any], config: dict[str, Any], topic: str, client: ClusterClient
) -> None:
    client.create_topics({f"{topic}-raw": NewTopic(1)})
    produce(typed, topic, {0: [{"x": 1, "label": "p"}]})
    produce(config, f"{topic}-raw", {0: [b"raw"]})
    values: dict[str, Any] = {}
    with klamm.Consumer(typed, topics=[topic, f"{topic}-raw"]) as consumer:
        while len(values) < 2:
            for row in consumer.poll_arrow(10.0).to_pylist():
                values[row["topic"]] = row["value"]
        assert consumer.poll_arrow(0.1).num_rows == 0
    assert values == {topic: {"x": 1, "label": "p"}, f"{topic}-raw": b"raw"}


def test_streams_share_the_partitions_block_and_end_with_the_consumer(config: dict[str, Any], topic: str) -> None:
    consumer = klamm.Consumer(config)
    streams = consumer.streams({topic: 2})[topic]
    seen: list[list[tuple[int, int]]] = [[], []]

    def follow(number: int) -> None:
        for record in streams[number]:
            seen[number].append((record.partition, record.offset))

    threads = [threading.Thread(target=follow, args=(n,)) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for begin in (0, 100):
        produce(config, topic, {n: [b"%d" % i for i in range(100)] for n in (0, 1)})
        eventually(lambda begin=begin: all(len(s) == begin + 100 for s in seen), "all read by their streams")
    assert [{p for p, _ in s} for s in seen] == [{0}, {1}]
    with pytest.raises(ConfigError, match="has streams"):
        consumer.poll(0)
    consumer.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    with klamm.Consumer(config, topics=[topic]) as after:
        assert after.poll(0.5) == [], "asking for the next one confirmed the last"


def test_an_unreadable_record_is_raised_by_its_stream_which_goes_on(
    typed: dict[str, Any], config: dict[str, Any], topic: str
) -> None:
    produce(config, topic, {0: [b"no envelope"]})
    produce(typed, topic, {0: [{"x": 1, "label": "p"}]})
    with klamm.Consumer(typed) as consumer:
        (stream,) = consumer.streams({topic: 1})[topic]
        with pytest.raises(UnreadableRecordError) as raised:
            next(stream)
        consumer.seek(raised.value.partition, raised.value.next_offset)
        assert next(stream).value == {"x": 1, "label": "p"}


def test_partitions_by_hand_without_and_with_a_group(config: dict[str, Any], broker: RunningBroker, topic: str) -> None:
    produce(config, topic, {n: [b"%d" % n] for n in (0, 1)})
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with klamm.Consumer(client_config(broker)) as alone:
        alone.assign([first])
        assert [r.partition for r in read(alone, 1)] == [0]
        alone.assign([second])
        assert [r.partition for r in read(alone, 1)] == [1]
        assert alone.assignment() == {second}
        with pytest.raises(ConfigError, match=r"consumer.group.id is not set"):
            alone.commit()
        with pytest.raises(ConfigError, match=r"consumer.group.id is needed"):
            alone.subscribe([topic])
    with klamm.Consumer(config) as grouped:
        grouped.assign([first, second])
        assert len(read(grouped, 2)) == 2
    with klamm.Consumer(config) as grouped:
        grouped.assign([first])
        assert grouped.committed([first, second])[second].offset == 1
        with pytest.raises(UnknownTopicError, match="there is no partition 7"):
            grouped.assign([TopicPartition(topic, 7)])


def test_mistakes_are_one_clear_line(config: dict[str, Any], topic: str) -> None:
    with pytest.raises(UnknownTopicError, match=f"there is no topic '{topic}s'; did you mean '{topic}'"):
        klamm.Consumer(config, topics=[f"{topic}s"])
    with pytest.raises(ConfigError, match=rf"topics are a list of names: \['{topic}'\]"):
        klamm.Consumer(config, topics=topic)
    with klamm.Consumer(config) as consumer:
        with pytest.raises(ConfigError, match="nothing to read: give the consumer topics, or call"):
            consumer.poll(0)
        with pytest.raises(ConfigError, match="streams are numbers by topic"):
            consumer.streams([topic])  # type: ignore[arg-type]  # what is tested
    with klamm.Consumer(config, topics=[topic]) as consumer:
        with pytest.raises(ConfigError, match="has subscribed or assigned already"):
            consumer.subscribe([topic])
        with pytest.raises(ConfigError, match="use another one to assign"):
            consumer.assign([TopicPartition(topic, 0)])
    with pytest.raises(KlammError, match="the consumer is closed"):
        consumer.poll(0)


def test_one_fetch_per_broker_asks_for_all_partitions(
    config: dict[str, Any], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(config, topic, {n: [b"x"] for n in (0, 1)})
    asked: list[set[TopicPartition]] = []
    fetch = ClusterClient.fetch

    def spy(self: ClusterClient, node_id: int, offsets: Any, **more: Any) -> Any:
        asked.append(set(offsets))
        return fetch(self, node_id, offsets, **more)

    monkeypatch.setattr(ClusterClient, "fetch", spy)
    with klamm.Consumer(config, topics=[topic]) as consumer:
        read(consumer, 2)
        consumer.poll(0.3)
    assert asked[-1] == {TopicPartition(topic, 0), TopicPartition(topic, 1)}


def test_reading_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    with running_broker(tmp_path, topics={"t": {"partitions": 2}}) as broker:
        config = client_config(broker, group_id="g")
        produce(config, "t", {0: [b"before"]})
        with klamm.Consumer(config, topics=["t"]) as consumer:
            assert [r.value for r in read(consumer, 1)] == [b"before"]
            broker.kill()
            assert consumer.poll(0.5) == []
            broker.start()
            produce(config, "t", {1: [b"after"]})
            assert [r.value for r in read(consumer, 1)] == [b"after"]


def test_the_consumer_tier_tiles_over_a_crash_and_counts_each_record_once(
    config: dict[str, Any], topic: str, client: ClusterClient
) -> None:
    from klammtest.audits import read_audit_log

    events = f"audit-{topic}"
    client.create_topics({events: NewTopic(1)})
    audited = {**config, "audit": {"plugin": "klamm", "topic": events, "topics": [topic]}}
    produce(config, topic, {0: [b"0123456789"] * 50})
    crashed = klamm.Consumer(audited, topics=[topic])
    assert len(crashed.poll(60.0, 20)) == 20
    crashed.commit()
    assert len(crashed.poll(60.0, 20)) == 20
    crashed.__exit__(RuntimeError, RuntimeError(), None)
    with klamm.Consumer(audited, topics=[topic]) as consumer:
        assert [r.offset for r in read(consumer, 30)] == list(range(20, 50))
    ranges = {e.from_offset: e for e in read_audit_log(client, events).events if e.partition == 0 and not e.replay}
    assert [(e.from_offset, e.to_offset) for e in sorted(ranges.values(), key=lambda e: e.from_offset)] == [
        (0, 20),
        (20, 50),
    ]
    windows = [window for event in ranges.values() for window in event.windows]
    assert sum(w.records for w in windows) == 50
    assert sum(w.size for w in windows) == 500
    assert {(e.tier, e.owner) for e in ranges.values()} == {("consumer", config["consumer"]["group.id"])}


def test_a_poll_of_no_records_is_a_mistake(config: dict[str, Any], topic: str) -> None:
    with klamm.Consumer(config, topics=[topic]) as consumer:
        with pytest.raises(ConfigError, match="max_records is 0; it is 1 or more, or None for 500"):
            consumer.poll(max_records=0)
        with pytest.raises(ConfigError, match="max_records is -1; it is 1 or more, or None for 131072"):
            consumer.poll_arrow(max_records=-1)
        with pytest.raises(ConfigError, match="max_batches is 0; it is 1 or more, or None for 500"):
            consumer.poll_batches(max_batches=0)
