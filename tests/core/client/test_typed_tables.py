"""Tables of typed values, sent and polled through a real broker: the same records as one by one."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import klamm
from klamm.core.client.errors import UnreadableRecordError
from klamm.core.errors import SchemaError
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker, running_broker
from klammtest.schemas import avro_bytes

TRIP = {"type": "record", "name": "Trip", "fields": [
    {"name": "rider", "type": "string"},
    {"name": "km", "type": "double"},
    {"name": "seats", "type": ["null", "int"], "default": None},
]}  # fmt: skip
LATER = {**TRIP, "fields": [*TRIP["fields"], {"name": "city", "type": "string", "default": "?"}]}  # type: ignore[misc]
RAW = {**TRIP, "fields": [*TRIP["fields"], {"name": "hash", "type": "bytes", "default": ""}]}  # type: ignore[misc]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    names = ("trips", "slow", "bad", "refused", "times")
    with running_broker(tmp_path_factory.mktemp("typed"), topics={name: {"partitions": 2} for name in names}) as broker:
        yield broker


def config(broker: RunningBroker, folder: Path, topic: str, schema: Any) -> dict[str, Any]:
    """Returns the configuration of a client that writes and reads `topic` by `schema`."""
    path = folder / f"{topic}-{len(list(folder.iterdir()))}.avsc"
    path.write_text(json.dumps(schema))
    return {
        "producer": {"bootstrap.servers": broker.bootstrap, "linger.ms": 1},
        "consumer": {"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest"},
        "coordination": {"plugin": "embedded", "path": str(broker.folder / "schemas.db")},
        "topics": {topic: {"schema": str(path)}},
    }


def polled(config: dict[str, Any], topic: str, rows: int) -> pa.Table:
    with klamm.Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, n) for n in range(2)])
        tables = []
        while sum(table.num_rows for table in tables) < rows:
            tables.append(consumer.poll_arrow(10.0))
        return pa.concat_tables(tables).sort_by("offset")


def polled_values(config: dict[str, Any], topic: str, count: int) -> list[Any]:
    found: list[Any] = []
    with klamm.Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while len(found) < count:
            found += [record.value for record in consumer.poll(10.0)]
    return found


@pytest.mark.parametrize(("topic", "schema", "reads"), [("trips", TRIP, LATER), ("slow", RAW, RAW)])
def test_a_table_is_stored_as_its_rows_would_be(
    typed: RunningBroker, tmp_path: Path, topic: str, schema: Any, reads: Any
) -> None:
    rows = [{"rider": f"r{n}", "km": n / 4, "seats": None if n % 3 else n} for n in range(300)]
    writes = config(typed, tmp_path, topic, schema)
    table = pa.Table.from_pylist(rows)
    with klamm.Producer(writes) as producer:
        assert producer.send_arrow(topic, table, key="rider", partition=0).result(30).records == 300
        for row in rows:
            producer.send(topic, row, key=row["rider"], partition=1)
    with klamm.Consumer({**writes, "topics": {}, "serdes": {}}) as consumer:
        consumer.assign([TopicPartition(topic, n) for n in range(2)])
        raw: dict[int, list[Any]] = {0: [], 1: []}
        while sum(map(len, raw.values())) < 600:
            for record in consumer.poll(60.0):
                raw[record.partition].append((record.key, record.value))
    assert raw[0] == raw[1]
    found = polled(config(typed, tmp_path, topic, reads), topic, 600)
    added = {"city": "?"} if reads is LATER else {"hash": b""}
    assert found["value"].to_pylist() == [{**row, **added} for row in rows for _ in range(2)]
    assert found["key"].to_pylist() == [row["rider"].encode() for row in rows for _ in range(2)]


def test_one_row_that_does_not_fit_sends_none(typed: RunningBroker, tmp_path: Path) -> None:
    said = config(typed, tmp_path, "refused", TRIP)
    chunks = [pa.table({"rider": ["a"] * 5, "km": [1.5] * 5}), pa.table({"rider": ["b", None], "km": [1.5, 2.5]})]
    late = pa.table({"rider": ["a", "b"], "km": [1.0, 2.0], "seats": [1, 2**31]})
    wrapped = pa.table({"value": [{"rider": "a", "km": 1.0}, None], "key": ["a", "gone"], "timestamp": [5, 6]})
    with klamm.Producer(said) as producer:
        with pytest.raises(SchemaError, match=r"row 6: topic refused: .*rider"):
            producer.send_arrow("refused", pa.concat_tables(chunks))
        with pytest.raises(SchemaError, match=r"row 1: topic refused: .*seats"):
            producer.send_arrow("refused", late)
        with pytest.raises(SchemaError, match=r"row 0: topic refused: .*colour"):
            producer.send_arrow("refused", late.append_column("colour", [["red", "blue"]]))
        assert producer.send_arrow("refused", wrapped, partition=0).result(30).records == 2
    found = polled(said, "refused", 2)
    assert found["value"].to_pylist() == [{"rider": "a", "km": 1.0, "seats": None}, None]
    assert found["key"].to_pylist() == [b"a", b"gone"]


TIMES = {"type": "record", "name": "Times", "fields": [
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, "default": ""},
]}  # fmt: skip
STORED = {**TIMES, "fields": [{"name": "at", "type": "long"}, {"name": "price", "type": "bytes"}]}
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)


def test_what_nobody_could_read_is_an_error_on_the_future_and_what_others_wrote_is_read(
    typed: RunningBroker, tmp_path: Path
) -> None:
    """Issue 29, A4 to A6 and A9."""
    said = config(typed, tmp_path, "times", TIMES)
    refused = {
        "naive": (NOON.replace(tzinfo=None), "field at: .* has no time zone"),
        "beyond": (1_700_000_000_000_000, "field at: .* is beyond the range"),
        "a float": (1.7e15, "field at: expected a datetime with a time zone"),
        "a number": (
            5,
            "field at: expected a datetime with a time zone for long .timestamp-millis., got the number 5; the",
        ),
    }
    with klamm.Producer(said) as producer:
        for value, why in refused.values():
            with pytest.raises(SchemaError, match=f"^topic times: the value does not fit its schema: {why}"):
                producer.send("times", {"at": value}, partition=0).result(30)
        sent = producer.send("times", {"at": NOON, "price": Decimal("1.5")}, partition=0).result(30)
        numbers = pa.table({"at": pa.array([0, 5])})
        assert producer.send_arrow("times", numbers, partition=1).result(30).records == 2
        with pytest.raises(
            SchemaError, match=r"^row 1: topic times: the value does not fit its schema: field at: .* beyond"
        ):
            producer.send_arrow("times", pa.table({"at": pa.array([0, 2**55])}), partition=1)
    assert sent.offset == 0
    (first,) = polled_values({**said, "topics": {}}, "times", 1)
    foreign = avro_bytes(STORED, {"at": 2**55, "price": (1_234_567).to_bytes(3, "big")})
    with klamm.Producer({**said, "topics": {}}) as raw:
        raw.send("times", first[:5] + foreign, partition=0).result(30)
    assert polled_values(said, "times", 2) == [
        {"at": NOON, "price": Decimal("1.50")},
        {"at": 2**55, "price": Decimal("12345.67")},
    ]


def test_what_is_readable_before_a_bad_record_is_handed_out_first(typed: RunningBroker, tmp_path: Path) -> None:
    said = config(typed, tmp_path, "bad", TRIP)
    with klamm.Producer(said) as typed_producer, klamm.Producer({**said, "topics": {}}) as raw:
        for n in range(5):
            typed_producer.send("bad", {"rider": f"{n}", "km": 1.0}, partition=0).result(30)
            if n == 2:
                raw.send("bad", b"\0\0\0\0\1\x50", partition=0).result(30)
    with klamm.Consumer(said) as consumer:
        consumer.assign([TopicPartition("bad", 0)])
        offsets, words = list[int](), ""
        while len(offsets) < 5:
            try:
                offsets += consumer.poll_arrow(10.0)["offset"].to_pylist()
            except UnreadableRecordError as error:
                words = str(error)
                consumer.seek(error.partition, error.next_offset)
    assert offsets == [0, 1, 2, 4, 5]
    assert "partition 0 offset 3: topic bad: the payload" in words
