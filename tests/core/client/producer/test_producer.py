"""The producer against a real broker."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.errors import UnknownTopicError
from klamm.core.client.producer.producer import Producer
from klamm.core.client.producer.record_accumulator import BufferFullError, ProducerClosedError
from klamm.core.config.settings import Settings
from klamm.core.errors import ConfigError, DeliveryError, SchemaError
from klamm.core.records.codecs import CodecTable
from klamm.core.records.record import ProducerRecord, RecordMetadata
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.producing import CountingAudit, producer_settings, stored
from klammtest.waiting import PATIENCE_S


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_arrive_as_they_were_sent(broker: RunningBroker, client: ClusterClient, topic: str, codec: str) -> None:
    with klamm.Producer(producer_settings(broker, compression_type=codec)) as producer:
        futures = [
            producer.send(topic, b"v%d" % n, key=b"k%d" % (n % 5), timestamp_ms=1000 + n, headers=[("h", b"x")])
            for n in range(200)
        ]
        producer.flush()
        places = [future.result(0) for future in futures]
        assert producer.metrics()["acknowledged"] == 200
        assert producer.metrics()["buffered_bytes"] == 0
    found = stored(client, topic)
    for n, place in enumerate(places):
        record = found[place.partition][place.offset]
        assert (record.key, record.value, record.timestamp_ms) == (b"k%d" % (n % 5), b"v%d" % n, 1000 + n)
        assert record.headers == (("h", b"x"),)
        assert place == RecordMetadata(topic, place.partition, record.offset, 1000 + n)
    assert sum(map(len, found.values())) == 200


def test_kinds_of_keys_and_values(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    given = [
        (b"k", b"v"),
        ("schlüssel", "wert"),
        (42, bytearray(b"array")),
        (None, memoryview(b"view")),
        (b"tombstone", None),
    ]
    with Producer(producer_settings(broker)) as producer:
        for key, value in given:
            producer.send(topic, value, key=key, partition=0)  # type: ignore[arg-type]  # one of them is None
    assert [(record.key, record.value) for record in stored(client, topic)[0]] == [
        (b"k", b"v"),
        ("schlüssel".encode(), b"wert"),
        (b"42", b"array"),
        (None, b"view"),
        (b"tombstone", None),
    ]


def test_keys_go_where_kafkas_clients_send_them(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    from confluent_kafka import Producer as Confluent

    theirs = Confluent({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    with Producer(producer_settings(broker)) as ours:
        for n in range(100):
            theirs.produce(topic, b"theirs", key=b"key-%d" % n)
            ours.send(topic, b"ours", key=b"key-%d" % n)
        theirs.flush(60)
    where: dict[bytes | None, set[int]] = {}
    for partition, records in stored(client, topic).items():
        for record in records:
            where.setdefault(record.key, set()).add(partition)
    assert len(where) == 100
    assert all(len(partitions) == 1 for partitions in where.values())


def test_records_without_a_key_stick_to_a_partition_for_a_batch(
    broker: RunningBroker, client: ClusterClient, topic: str
) -> None:
    with Producer(producer_settings(broker, linger_ms=60_000, batch_size=1000)) as producer:
        for _ in range(300):
            producer.send(topic, b"x" * 88)
    found = stored(client, topic)
    assert sum(map(len, found.values())) == 300
    assert all(found.values())
    assert producer.metrics()["batches"] <= 40


def third(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
    return 2 if value != b"bad" else 5


def test_a_partitioner_of_ones_own(
    broker: RunningBroker, client: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "my_partitioner", sys.modules[__name__])
    with Producer(producer_settings(broker, partitioner="my_partitioner:third")) as producer:
        producer.send(topic, b"x")
        producer.send(topic, b"y", partition=1)
        with pytest.raises(ConfigError, match=r"expected a number from 0 to 2 for topic '.*', got 5"):
            producer.send(topic, b"bad")
    found = stored(client, topic)
    assert {number: [record.value for record in records] for number, records in found.items()} == {
        0: [],
        1: [b"y"],
        2: [b"x"],
    }


def test_an_unknown_topic_is_told_at_once(broker: RunningBroker, topic: str) -> None:
    with Producer(producer_settings(broker)) as producer:
        with pytest.raises(UnknownTopicError, match=rf"there is no topic '{topic}x'; did you mean '{topic}'"):
            producer.send(topic + "x", b"v")
        with pytest.raises(UnknownTopicError, match="has 3 partitions; there is no 3"):
            producer.send(topic, b"v", partition=3)
        for wrong in ("1", 1.0):
            with pytest.raises(UnknownTopicError, match=f"there is no {wrong!r}"):
                producer.send(topic, b"v", partition=wrong)  # type: ignore[arg-type]


def test_an_unreachable_cluster_is_told_after_max_block() -> None:
    options = {"bootstrap.servers": "127.0.0.1:1", "max.block.ms": 100, "request.timeout.ms": 100}
    with (
        Producer({"producer": options}) as producer,
        pytest.raises(Exception, match=r"no broker answers at 127\.0\.0\.1:1"),
    ):
        producer.send("t", b"v")


def test_a_record_over_the_limit_is_refused_at_send(broker: RunningBroker, topic: str) -> None:
    with Producer(producer_settings(broker, max_request_size=1000)) as producer:
        with pytest.raises(
            DeliveryError, match=r"a record of about 2012 bytes is larger than max.request.size \(1000\)"
        ):
            producer.send(topic, b"x" * 2000)
        producer.send(topic, b"x" * 800)
        producer.flush()
        assert producer.metrics()["failed"] == 1


def test_a_record_over_the_topics_limit_fails_on_its_future(
    broker: RunningBroker, client: ClusterClient, topic: str
) -> None:
    client.alter_configs(topic, {"max.message.bytes": "5000"})
    with Producer(producer_settings(broker, batch_size=50_000, linger_ms=100)) as producer:
        small = [producer.send(topic, os.urandom(900), partition=0) for _ in range(20)]
        large = producer.send(topic, os.urandom(6000), partition=0)
        after = producer.send(topic, b"after", partition=0)
        with pytest.raises(DeliveryError, match="partition 0: 1 record was not delivered: MESSAGE_TOO_LARGE"):
            large.result(60)
        assert [future.result(60).offset for future in [*small, after]] == list(range(21))


def test_what_does_not_fit_is_on_its_future(broker: RunningBroker, topic: str) -> None:
    with Producer(producer_settings(broker)) as producer:
        with pytest.raises(SchemaError, match=f"topic '{topic}': cannot send dict"):
            producer.send(topic, {"a": 1}).result(0)
        with pytest.raises(SchemaError, match="a key is bytes, str or int, not float"):
            producer.send(topic, b"v", key=1.5).result(0)  # type: ignore[arg-type]  # what is tested
        with pytest.raises(SchemaError, match="a header is"):
            producer.send(topic, b"v", headers=[("h", "text")])  # type: ignore[list-item]  # what is tested
        with pytest.raises(SchemaError, match=r"a header is .*, not 'name'"):
            producer.send(topic, b"v", headers={"name": b"v"})  # type: ignore[arg-type]  # what is tested
        with pytest.raises(SchemaError, match="the name of a header is text without surrogates"):
            producer.send(topic, b"v", headers=[("\ud800", b"v")])
        with pytest.raises(SchemaError, match="timestamp_ms is a whole number of milliseconds since 1970"):
            producer.send_raw(topic, [b"v", b"v"], timestamps_ms=[1, 2**63])


@pytest.mark.parametrize("wrong", [1.5e12, -2, 2**63, 1_700_000_000_000_000, "2013-01-01"])
def test_a_timestamp_that_is_none_fails_its_own_record_only(broker: RunningBroker, topic: str, wrong: Any) -> None:
    with Producer(producer_settings(broker, linger_ms=60_000)) as producer:
        futures = [producer.send(topic, b"v", partition=0, timestamp_ms=t) for t in (1, wrong, -1)]
    assert [future.result(0).offset for future in (futures[0], futures[2])] == [0, 1]
    with pytest.raises(SchemaError, match="timestamp_ms is a whole number of milliseconds since 1970"):
        futures[1].result(0)


def test_a_closed_producer_sends_no_more(broker: RunningBroker, topic: str) -> None:
    producer = Producer(producer_settings(broker))
    future = producer.send(topic, b"v")
    producer.close()
    producer.close()
    assert future.result(0).offset == 0
    with pytest.raises(ProducerClosedError):
        producer.send(topic, b"v")


def test_a_full_buffer_blocks_and_then_raises(broker: RunningBroker, topic: str) -> None:
    options = producer_settings(broker, buffer_memory=2000, batch_size=500, max_block_ms=60_000)
    with Producer(options) as producer:
        for _ in range(200):
            producer.send(topic, b"x" * 100)
    slow = Producer(producer_settings(broker, buffer_memory=1000, max_block_ms=5_000, request_timeout_ms=60_000))
    slow.send(topic, b"x").result(60)
    broker.pause()
    try:
        slow.send(topic, b"x" * 900)
        with pytest.raises(BufferFullError, match=r"buffer\.memory"):
            slow.send(topic, b"x" * 900)
    finally:
        broker.resume()
        slow.close(0)


def test_threads_share_a_producer(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    futures: list[list[Future[RecordMetadata]]] = [[] for _ in range(6)]
    with Producer(producer_settings(broker)) as producer:

        def work(number: int) -> None:
            for n in range(500):
                futures[number].append(producer.send(topic, b"%d" % n, key=b"thread-%d" % number))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for sent in futures:
        offsets = [future.result(0).offset for future in sent]
        assert offsets == sorted(offsets)
    found = [record for records in stored(client, topic).values() for record in records]
    assert len(found) == 3000
    for number in range(6):
        mine = [int(record.value or b"") for record in found if record.key == b"thread-%d" % number]
        assert mine == list(range(500))


def test_more_partitions_are_used_once_they_are_known(broker: RunningBroker, client: ClusterClient, topic: str) -> None:
    with Producer(producer_settings(broker, metadata_max_age_ms=50)) as producer:
        assert producer.partitions(topic) == 3
        client.create_partitions(topic, 5)
        grown = threading.Event()
        while producer.partitions(topic) < 5:
            grown.wait(0.02)
        assert producer.send(topic, b"v", partition=4).result(60).partition == 4


class Interceptor:
    def __init__(self) -> None:
        self.acknowledged: list[RecordMetadata | None] = []
        self.errors: list[Exception | None] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        record.headers = (*record.headers, ("by", b"interceptor"))
        if record.value == b"raise":
            raise RuntimeError("on purpose")
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        self.acknowledged.append(metadata)
        self.errors.append(error)
        raise RuntimeError("on purpose")


def test_interceptors_see_every_record_and_may_not_stop_one(
    broker: RunningBroker,
    client: ClusterClient,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interceptor = Interceptor()
    monkeypatch.setattr(Settings, "make_producer_interceptors", lambda _: [interceptor])
    with Producer(producer_settings(broker)) as producer:
        producer.send(topic, b"a", partition=0)
        producer.send(topic, b"raise", partition=0)
        with pytest.raises(SchemaError):
            producer.send(topic, 1.5, partition=0).result(0)
    assert [record.value for record in stored(client, topic)[0]] == [b"a", b"raise"]
    assert stored(client, topic)[0][0].headers == (("by", b"interceptor"),)
    # the refusal is told at once, the acknowledgements when they come: before it or after it
    assert sorted(type(error).__name__ for error in interceptor.errors) == ["NoneType", "NoneType", "SchemaError"]
    assert [metadata.offset for metadata in interceptor.acknowledged if metadata] == [0, 1]
    assert producer.metrics()["interceptor_errors"] == 4
    assert caplog.text.count("raised; records are still sent") == 1


def test_audited_records_are_counted_and_their_batches_marked(
    broker: RunningBroker, client: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topics({CountingAudit.topic: NewTopic(1, 1), topic + "-not": NewTopic(1, 1)})
    auditor = CountingAudit(topic, raises=True)
    monkeypatch.setattr(Settings, "make_audit", lambda _: auditor)
    with Producer(producer_settings(broker, acks=1, client_id="app")) as producer:
        producer.send(topic, b"value", key=b"key", timestamp_ms=7, headers=[("own", b"1")], partition=0).result(60)
        producer.send(topic + "-not", b"value")
    assert auditor.counted == [("attempted", topic, 0, 8, 1), ("acknowledged", topic, 0, 8, 1)]
    assert (producer.metrics()["audit_errors"], producer.metrics()["acknowledged"]) == (1, 2)
    assert auditor.identity is not None
    assert (auditor.identity.tier, auditor.identity.application) == ("producer", "app")
    assert auditor.identity.host == socket.gethostname()
    assert stored(client, topic)[0][0].headers == (
        ("own", b"1"),
        ("application", b"app"),
        ("batch", f"1 {topic}-0".encode()),
    )
    assert stored(client, topic + "-not")[0][0].headers == ()
    (event,) = stored(client, CountingAudit.topic)[0]
    assert (event.key, event.value, event.headers) == (b"key", b"event", ())


class StuckAudit(CountingAudit):
    """Waits for its event as long as the producer does, as an audit may."""

    topic = "stuck-events"

    def close(self) -> None:
        self._publish(b"key", b"last").result(None)


def test_neither_flush_nor_close_waits_for_an_audit_topic_that_takes_no_event(
    broker: RunningBroker, client: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The delivery time-out is 24 days: a wait for the events, which are tried again all the time, would not end
    here. The topic is deleted; one that lacks replicas in sync is retried in the same way."""
    client.create_topics({StuckAudit.topic: NewTopic(1)})
    auditor = StuckAudit(topic)
    monkeypatch.setattr(Settings, "make_audit", lambda _: auditor)
    producer = Producer(producer_settings(broker, delivery_timeout_ms=2**31 - 1))
    auditor._publish(b"key", b"event").result(PATIENCE_S)
    client.delete_topics([StuckAudit.topic])
    auditor._publish(b"key", b"event")
    stored_at = producer.send(topic, b"value", partition=0)
    producer.flush(PATIENCE_S)
    assert stored_at.result(0).offset == 0
    closing = threading.Thread(target=producer.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    assert "the audit's counts could not be published" in caplog.text


def test_a_record_that_finds_no_room_is_not_attempted(
    broker: RunningBroker, client: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topics({CountingAudit.topic: NewTopic(1, 1)}, exists_ok=True)
    auditor = CountingAudit(topic, raises=True)
    monkeypatch.setattr(Settings, "make_audit", lambda _: auditor)
    with Producer(producer_settings(broker, buffer_memory=1000, max_block_ms=1_000)) as producer:
        producer.send(topic, b"x", timestamp_ms=7).result(60)
        broker.pause()
        try:
            producer.send(topic, b"x" * 900, timestamp_ms=7)
            with pytest.raises(BufferFullError):
                producer.send(topic, b"x" * 900, timestamp_ms=7)
        finally:
            broker.resume()
    assert [what for what, *_ in auditor.counted].count("attempted") == 2
    assert [what for what, *_ in auditor.counted].count("acknowledged") == 2
    assert ("failed", topic, 0, 0, 1) not in auditor.counted


def test_records_that_are_given_up_unsent_are_attempted_and_failed(
    broker: RunningBroker, client: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topics({CountingAudit.topic: NewTopic(1, 1)}, exists_ok=True)
    auditor = CountingAudit(topic, raises=True)
    monkeypatch.setattr(auditor, "begin", lambda _: False)
    monkeypatch.setattr(Settings, "make_audit", lambda _: auditor)
    with Producer(producer_settings(broker, delivery_timeout_ms=500, request_timeout_ms=400)) as producer:
        refused = producer.send(topic, b"value", timestamp_ms=7)
        with pytest.raises(DeliveryError):
            refused.result(60)
    assert auditor.counted == [("attempted", topic, 0, 5, 1), ("failed", topic, 0, 0, 1)]


def test_an_unknown_codec_is_one_clear_line(broker: RunningBroker) -> None:
    with pytest.raises(ConfigError, match=r"compression\.type"):
        Producer(producer_settings(broker, compression_type="zst"))


def test_a_forgotten_producer_sends_at_the_end_of_the_interpreter(
    broker: RunningBroker, client: ClusterClient, topic: str
) -> None:
    code = (
        "import klamm\n"
        f"p = klamm.Producer({{'producer': {{'bootstrap.servers': {broker.bootstrap!r}, 'linger.ms': 20000}}}})\n"
        f"p.send({topic!r}, b'late', partition=0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    assert "a producer was not closed" in done.stderr
    assert [record.value for record in stored(client, topic)[0]] == [b"late"]


def test_kill_9_in_flight_neither_loses_nor_doubles_nor_reorders(
    tmp_path: Path, codecs: CodecTable, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    with running_broker(tmp_path, topics={"t": {"partitions": 2}}) as broker:
        options = producer_settings(broker, batch_size=400, linger_ms=0, retry_backoff_ms=20, compression_type="zstd")
        with Producer(options) as producer:
            futures: list[Future[RecordMetadata]] = []
            for kill in range(3):
                futures += [producer.send("t", b"%06d" % n, partition=n % 2) for n in _batch(kill)]
                while not futures[kill * 5000 + 500].done():
                    futures[kill * 5000 + 500].exception(60)
                broker.kill()
                broker.start()
            producer.flush(60)
            assert [future.exception(0) for future in futures if future.exception(0)] == []
            assert producer.metrics()["retried_batches"] > 0
        with ClusterClient(broker.bootstrap, codecs=codecs) as client:
            found = stored(client, "t")
        for partition in range(2):
            values = [int(record.value or b"") for record in found[partition]]
            assert values == list(range(partition, 15_000, 2))
            for n in values:
                assert futures[n].result(0).offset in (-1, n // 2)


def _batch(number: int) -> range:
    return range(number * 5000, (number + 1) * 5000)
