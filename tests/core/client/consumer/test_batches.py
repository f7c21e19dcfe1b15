"""Whole record batches: read without being decoded, and a sink that takes them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from klamm import Producer, TopicPartition
from klamm.core.client.consumer.batches import BatchColumns, BatchReader, convert_batch
from klamm.core.client.consumer.delivery import Decoding
from klamm.core.client.consumer.sink_runner import SinkRunner
from klamm.core.client.errors import UnreadableBatchError
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError
from klamm.core.interfaces.sink import RecordBatch
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import RecordColumns, decode_batch
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import iter_headers
from klammtest.broker import running_broker

TRIPS = TopicPartition("trips", 0)
DECODING = Decoding(CodecTable(), 1 << 20)
BATCH = bytes(encode_batch([(1, b"a", b"one", ()), (2, b"b", b"three", ())]))


def read(data: bytes, position: int) -> BatchColumns:
    columns = BatchReader(DECODING).read(TRIPS, data, 0, position).ready.columns
    assert isinstance(columns, BatchColumns)
    return columns


def test_a_batch_is_handed_out_whole_and_as_it_is_stored() -> None:
    columns = read(BATCH, 0)
    assert columns.batch == RecordBatch(TRIPS, 0, 2, 2, BATCH)
    assert convert_batch(TRIPS, columns).result is columns.batch
    assert len(columns.offsets) == 1


def test_an_audit_sees_the_records_from_the_position_on() -> None:
    columns = read(BATCH, 1)
    assert (columns.batch.from_offset, columns.batch.to_offset) == (1, 2)
    assert (list(columns.records.offsets), list(columns.sizes)) == ([1], [6])


def test_a_batch_before_the_position_has_nothing() -> None:
    reading = BatchReader(DECODING).read(TRIPS, BATCH, 0, 2)
    assert (len(reading.ready.columns.offsets), reading.at) == (0, len(BATCH))


def test_a_damaged_batch_is_named() -> None:
    damaged = BATCH[:-1] + bytes([BATCH[-1] ^ 1])
    with pytest.raises(UnreadableBatchError, match="trips-0 offset 0: the CRC of the batch does not match"):
        BatchReader(DECODING).read(TRIPS, damaged, 0, 0)


def test_records_that_were_polled_are_no_batches() -> None:
    with pytest.raises(ConfigError, match="use another consumer for batches"):
        convert_batch(TRIPS, RecordColumns([0], [1], [None], [b"x"], [()]))


def test_a_sink_takes_the_batches_of_a_topic(tmp_path: Path) -> None:
    with running_broker(tmp_path, topics={"trips": {"partitions": 1}}) as broker:
        text = broker.config_path.read_text()
        text += f"\nsinks: {{raw: {{plugin: raw, topics: [trips], path: ./raw}}}}\nplugins: {{modules: [{PLUGIN}]}}"
        for section in ("producer", "consumer"):
            text += f"\n{section}: {{bootstrap.servers: '{broker.bootstrap}'}}"
        broker.config_path.write_text(text)
        settings = load_settings(broker.config_path)
        with Producer(settings) as producer:
            for i in range(100):
                producer.send("trips", f"v{i}".encode())
        assert SinkRunner(settings, "raw").run(threading.Event(), once=True).records == 100
        assert SinkRunner(settings, "raw").run(threading.Event(), once=True).records == 0
        data = (broker.folder / "raw" / "trips-0").read_bytes()
    records = [r for at, header in iter_headers(data) for r in decode_batch(data, at, header, settings.codec_table())]
    assert [record.value for record in records] == [f"v{i}".encode() for i in range(100)]


PLUGIN = "klammtest.plugins.raw_batches"
