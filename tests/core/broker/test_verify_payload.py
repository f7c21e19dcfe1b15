"""`verify.payload` from the socket: by topic and by broker, while it runs, and off the event loop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.log.validation import Validator
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.header import HEADER_SIZE, crc_of, set_crc
from klammtest.brokers.inprocess import broker_thread
from klammtest.guarantees import guarantee
from klammtest.logs import codec_table
from klammtest.requests import batch, create_topic, new_topic, produce, produce_fields
from klammtest.wire import WireClient

CODECS = codec_table()
SMALL, LARGE = 3, 200


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[WireClient]:
    coordination = {"plugin": "embedded", "path": str(tmp_path / "coordination.db")}
    keys = {"log.verify.payload": "all"}
    with (
        broker_thread(tmp_path, coordination, keys) as broker,
        WireClient(f"127.0.0.1:{broker.advertised[0].port}") as client,
    ):
        yield client


def good(count: int, name: str = "zstd") -> bytes:
    values = [random.Random(n).randbytes(1000) for n in range(count)]
    return batch(*values, codec=CODECS.by_name(name))


def poison(count: int) -> bytes:
    """A batch with the right CRC whose payload does not decompress."""
    data = bytearray(good(count))
    data[HEADER_SIZE + 20 :] = bytes(len(data) - HEADER_SIZE - 20)
    set_crc(data, 0, crc_of(data, 0, len(data)))
    return bytes(data)


def take_unopened(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Validator, "verifies", lambda *_: False)


@guarantee("D13", "a payload that does not decompress is refused at the socket", plant=take_unopened)
@pytest.mark.parametrize("count", [SMALL, LARGE], ids=["on the loop", "on a worker thread"])
def test_poison_is_refused(wire: WireClient, count: int) -> None:
    topic = new_topic(wire)
    outcome = produce(wire, topic, poison(count))
    assert outcome.error_code is ErrorCode.invalid_record
    assert "cannot be read" in outcome.error_message
    assert produce(wire, topic, good(count)).base_offset == 0


def test_each_partition_of_a_request_has_its_own_answer(wire: WireClient) -> None:
    topic = new_topic(wire, partitions=5)
    batches = [good(SMALL), poison(SMALL), good(LARGE), poison(LARGE), good(SMALL, "none")]
    fields = produce_fields({(topic, number): data for number, data in enumerate(batches)})
    answers = wire.call(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [
        ErrorCode.none, ErrorCode.invalid_record, ErrorCode.none, ErrorCode.invalid_record, ErrorCode.none
    ]  # fmt: skip


def test_a_small_batch_that_grows_is_opened_on_a_worker_thread(wire: WireClient) -> None:
    topic = new_topic(wire)
    assert produce(wire, topic, batch(bytes(2_000_000), codec=CODECS.by_name("gzip"))).error_code is ErrorCode.none


def test_a_topic_may_say_otherwise(wire: WireClient) -> None:
    create_topic(wire, "unopened", config={"verify.payload": "none"})
    assert produce(wire, "unopened", poison(SMALL)).error_code is ErrorCode.none
