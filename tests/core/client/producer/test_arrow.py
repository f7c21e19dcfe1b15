"""Tables sent as record batches, against a real broker."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.errors import UnknownTopicError
from klamm.core.client.producer.arrow import read_rows
from klamm.core.client.producer.producer import Producer
from klamm.core.client.producer.record_accumulator import BufferFullError, ProducerClosedError
from klamm.core.client.producer.table_future import StoredRange
from klamm.core.config.settings import Settings
from klamm.core.errors import ConfigError, DeliveryError, SchemaError
from klamm.core.records.codecs import CodecTable
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.producing import CountingAudit, producer_settings, stored


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_rows_arrive_as_records_would(broker: RunningBroker, client: ClusterClient, topic: str, codec: str) -> None:
    keys = [None if n % 7 == 0 else f"k{n % 5}" for n in range(500)]
    values = [None if n % 11 == 0 else b"v%d" % n for n in range(500)]
    stamps = [1000 + n for n in range(500)]
    table = pa.table({"key": keys, "value": pa.array(values, pa.binary()), "timestamp": stamps})
    with Producer(producer_settings(broker, compression_type=codec, batch_size=900)) as producer:
        one_by_one = [producer.send(topic, value, key=key) for key, value in zip(keys, values, strict=True) if key]
        producer.flush()
        before = {p: len(records) for p, records in stored(client, topic).items()}
        sent = producer.send_arrow(topic, table.slice(3)).result(30)
        assert producer.metrics()["buffered_bytes"] == 0
    assert (sent.topic, sent.records) == (topic, 497)
    found = stored(client, topic)
    rows = {p: records[before[p] :] for p, records in found.items()}
    expected = {(k and k.encode(), v, t) for k, v, t in list(zip(keys, values, stamps, strict=True))[3:]}
    assert {(r.key, r.value, r.timestamp_ms) for records in rows.values() for r in records} == expected
    where = {key: future.result(0).partition for key, future in zip(filter(None, keys), one_by_one, strict=True)}
    for partition, records in rows.items():
        ranges = [one for one in sent.ranges if one.partition == partition]
        assert sum(one.count for one in ranges) == len(records)
        assert ranges == [] or ranges[0].base_offset == before[partition]
        for key in set(where):
            mine = [record.timestamp_ms for record in records if record.key == key.encode()]
            times = [t for k, t in zip(keys, stamps, strict=True) if k == key and t >= 1003]
            assert mine == (times if where[key] == partition else [])


@pytest.mark.parametrize("chunk", [50, 5000])
def test_rows_without_a_key_keep_their_place_among_those_with_one(
    broker: RunningBroker, client: ClusterClient, topic: str, chunk: int
) -> None:
    keys = [None if n % 3 else f"k{n % 4}" for n in range(1000)]
    table = pa.table({"key": keys, "value": [f"{n:05d}" for n in range(1000)]})
    chunks = pa.Table.from_batches(table.to_batches(max_chunksize=chunk))
    with Producer(producer_settings(broker, batch_size=1000)) as producer:
        producer.send_arrow(topic, chunks).result(60)
    found = [[record.value for record in records] for records in stored(client, topic).values()]
    assert found == [sorted(values) for values in found]
    assert sorted(value for values in found for value in values) == [b"%05d" % n for n in range(1000)]
    assert min(map(len, found)) > 100


def test_kinds_of_columns(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=UTC)
    columns = [
        (pa.array(["ä"]), pa.array([7]), pa.array([when])),
        (pa.array(["b"], pa.large_string()), pa.array([b"k"], pa.large_binary()), pa.array([5], pa.int32())),
        (pa.array(["c"]).dictionary_encode(), pa.array(["k"]).dictionary_encode(), pa.array([-1])),
        (pa.array([b"dd"], pa.binary(2)), pa.nulls(1), pa.array([when], pa.timestamp("ns", "UTC"))),
    ]
    with Producer(producer_settings(broker)) as producer:
        for value, key, stamp in columns:
            batch = pa.record_batch({"value": value, "k": key, "t": stamp})
            producer.send_arrow(topic, batch, key="k", timestamp="t", partition=1).result(60)
        empty = producer.send_arrow(topic, pa.table({"value": pa.array([], pa.binary())})).result(60)
    assert (empty.records, empty.ranges) == (0, ())
    ms = int(when.timestamp() * 1000)
    assert [(r.key, r.value, r.timestamp_ms) for r in stored(client, topic)[1]] == [
        (b"7", "ä".encode(), ms),
        (b"k", b"b", 5),
        (b"k", b"c", -1),
        (None, b"dd", ms),
    ]


def test_without_keys_batches_go_to_each_partition_in_turn(
    broker: RunningBroker, client: ClusterClient, topic: str
) -> None:
    with Producer(producer_settings(broker, batch_size=1000, acks=1)) as producer:
        sent = producer.send_arrow(topic, pa.table({"value": ["x" * 90] * 300})).result(60)
    counts = [len(records) for records in stored(client, topic).values()]
    assert sum(counts) == 300
    assert min(counts) >= 90
    assert sum(one.count for one in sent.ranges) == 300


def test_a_partitioner_of_ones_own(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    with Producer(producer_settings(broker, partitioner="klammtest.clients.producing:two_apart")) as producer:
        producer.send_arrow(topic, pa.table({"value": ["two", "other", "two"]})).result(60)
    assert [len(records) for records in stored(client, topic).values()] == [1, 0, 2]


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


@pytest.mark.parametrize(
    ("given", "options", "match"),
    [
        (table(v=[b"x"]), {}, "needs a column 'value' of bytes or text; it has v"),
        (table(value=[1.5]), {}, "column value is double; it takes bytes or text"),
        (table(value=[b"x"], extra=[1]), {}, "records are made of value, key and timestamp; what is 'extra'"),
        (table(value=[b"x"]), {"key": "id"}, "there is no one column 'id' for the key; columns: value"),
        (table(value=[b"x"], key=[1.5]), {}, "column key is double; a key is bytes, text or a number"),
        (table(value=[b"x"] * 3, timestamp=[1, 2, -5]), {}, "row 2 of column timestamp: -5 is no time"),
        (table(value=[b"x"] * 2, timestamp=[1, None]), {}, "row 1 of column timestamp: None is no time"),
        (table(value=[b"x"], timestamp=["now"]), {}, "column timestamp is string; it takes timestamps"),
        ([b"x"], {}, "send_arrow takes a pyarrow Table or RecordBatch, not list"),
    ],
)
def test_what_does_not_fit_is_one_clear_line_and_nothing_is_sent(
    given: Any, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(SchemaError, match=match):
        read_rows("misfits", given, options.get("key"), None, lambda value: value, None, False)


def test_a_row_that_is_too_large_is_named(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    with Producer(producer_settings(broker, max_request_size=2000)) as producer:
        with pytest.raises(DeliveryError, match="row 4 makes a record of about 5000 bytes"):
            producer.send_arrow(topic, pa.table({"value": ["x"] * 4 + ["x" * 5000]}))
        with pytest.raises(UnknownTopicError, match="there is no 3"):
            producer.send_arrow(topic, pa.table({"value": ["x"]}), partition=3)
    assert sum(map(len, stored(client, topic).values())) == 0
    with pytest.raises(ProducerClosedError):
        producer.send_arrow(topic, pa.table({"value": ["x"]}))


def test_batches_that_the_broker_finds_too_large_are_split(
    broker: RunningBroker, client: ClusterClient, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    client.alter_configs(topic, {"max.message.bytes": "1000"})
    values = [f"{n:0100d}" for n in range(30)]
    with Producer(producer_settings(broker)) as producer:
        sent = producer.send_arrow(topic, pa.table({"value": values}), partition=0).result(30)
        assert sent.records == 30
        assert [record.value for record in stored(client, topic)[0]] == [value.encode() for value in values]
        mixed = producer.send_arrow(topic, pa.table({"value": ["small", "y" * 2000]}), partition=1)
        assert isinstance(mixed.exception(30), DeliveryError)
    assert mixed.metadata.ranges == (StoredRange(1, 0, 1),)


def test_audited_rows_are_counted_by_window_and_their_batches_marked(
    broker: RunningBroker, client: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topics({CountingAudit.topic: NewTopic(1, 1)}, exists_ok=True)
    auditor = CountingAudit(topic, window_ms=1000)
    monkeypatch.setattr(Settings, "make_audit", lambda _: auditor)
    rows = pa.table({"key": ["k", None, "k", "k"], "value": ["a", "bb", None, "d"], "timestamp": [-1, 5, 999, 1000]})
    with Producer(producer_settings(broker, client_id="app")) as producer:
        assert producer.send_arrow(topic, rows, partition=0).result(60).records == 4
    counts = {(topic, -1, 2, 1), (topic, 0, 3, 2), (topic, 1000, 2, 1)}
    for kind in ("attempted", "acknowledged"):
        assert {tuple(rest) for what, *rest in auditor.counted if what == kind} == counts
    assert [record.headers for record in stored(client, topic)[0]] == [
        (("application", b"app"), ("batch", f"4 {topic}-0".encode())),
        (),
        (),
        (),
    ]


def test_interceptors_rule_tables_out(broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "make_producer_interceptors", lambda _: [object()])  # none is called
    with (
        Producer(producer_settings(broker)) as producer,
        pytest.raises(ConfigError, match=r"producer\.interceptors see records"),
    ):
        producer.send_arrow(topic, pa.table({"value": ["x"]}))


def test_more_than_the_buffer_holds_waits_for_room(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    with Producer(producer_settings(broker, batch_size=1000, buffer_memory=4000)) as producer:
        futures = [producer.send_arrow(topic, pa.table({"value": ["x" * 100] * 100})) for _ in range(5)]
        assert sum(future.result(30).records for future in futures) == 500
    assert sum(map(len, stored(client, topic).values())) == 500


def test_a_full_buffer_is_the_futures_error(topic: str, broker: RunningBroker) -> None:
    with Producer(producer_settings(broker, batch_size=1000, buffer_memory=500, max_block_ms=5_000)) as producer:
        sent = producer.send_arrow(topic, pa.table({"value": ["x" * 700] * 50}))
        assert isinstance(sent.exception(0), BufferFullError)
    assert sent.metadata.records == 0


def test_kill_9_neither_loses_nor_doubles_nor_reorders_rows(tmp_path: Path, codecs: CodecTable) -> None:
    with running_broker(tmp_path, topics={"t": {"partitions": 2}}) as broker:
        with Producer(producer_settings(broker, batch_size=400, retry_backoff_ms=20)) as producer:
            futures = []
            for kill in range(2):
                for part in range(4):
                    values = [f"{n:06d}" for n in range(kill * 8000 + part * 2000, kill * 8000 + part * 2000 + 2000)]
                    futures.append(producer.send_arrow("t", pa.table({"value": values}), partition=0))
                futures[-4].exception(60)
                broker.kill()
                broker.start()
            assert [future.exception(60) for future in futures] == [None] * 8
        with ClusterClient(broker.bootstrap, codecs=codecs) as client:
            assert [int(record.value or b"") for record in stored(client, "t")[0]] == list(range(16_000))
