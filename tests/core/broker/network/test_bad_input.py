"""Every kind of bad input: the protocol's error, or one closed connection and one line; the others are served."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import decode_batch
from klamm.core.records.header import CRC_AT, BatchHeader, crc_of
from klammtest.apis import ADVERTISED
from klammtest.broker import RunningBroker
from klammtest.clients.grouping import coordinated
from klammtest.requests import (
    batch,
    create_topic,
    fetch,
    fetch_fields,
    metadata,
    new_topic,
    produce,
    produce_fields,
)
from klammtest.wire import WireClient, framed

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def others_are_served(broker: RunningBroker) -> Iterator[None]:
    """A connection that was open before works after, and so does a new one."""
    with WireClient(broker.bootstrap) as other:
        assert metadata(other, ["events"]).topics[0].error_code is ErrorCode.none
        yield
        assert metadata(other, ["events"]).topics[0].error_code is ErrorCode.none
    with WireClient(broker.bootstrap) as late:
        assert produce(late, "events", batch(b"after")).error_code is ErrorCode.none


def header(api: int, version: int) -> bytes:
    return struct.pack(">hhih", api, version, 1, -1)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (framed(header(999, 0)), "unknown API key 999"),
        (framed(header(-1, 0)), "unknown API key -1"),
        (framed(header(ApiKey.METADATA, 99)), "METADATA version 99 is not served (0 to 13 are)"),
        (framed(header(ApiKey.METADATA, -1)), "METADATA version -1 is not served"),
        (framed(header(ApiKey.PRODUCE, 2)), "PRODUCE version 2 is not served"),
        (struct.pack(">i", -1), "a frame length of -1"),
        (struct.pack(">i", 0), "a frame length of 0"),
        (struct.pack(">ih", 2**31 - 1, ApiKey.PRODUCE), "over the limit of 104857600"),
        (struct.pack(">ih", 2 * MIB, ApiKey.METADATA), "over the limit of 1048576"),
        (b"GET / HTTP/1.1\r\n\r\n", "over the limit"),
        (framed(b"\0\x03"), "too short for a request header"),
        (framed(struct.pack(">hhih", 3, 1, 1, 500)), "client id of 500 bytes"),
        (framed(header(ApiKey.METADATA, 1) + b"\x7f\xff\xff\xff"), "claims 2147483647 elements"),
        (framed(header(ApiKey.METADATA, 1) + struct.pack(">ih", 1, -7)), "cannot read MetadataRequest v1"),
        (framed(header(ApiKey.METADATA, 9)), "ends within the header's tagged fields"),
        (framed(header(ApiKey.METADATA, 1) + struct.pack(">i", 300_000) + b"\0\0" * 300_000), "array elements"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_read_closes_that_connection_with_one_line(
    broker: RunningBroker, wire: WireClient, sent: bytes, reason: str
) -> None:
    before = broker.log().count("\n")
    wire.send_raw(sent)
    assert wire.closed()
    said = [line for line in broker.log().splitlines()[before:] if " INFO " not in line]
    assert len(said) == 1
    assert reason in said[0]
    assert "WARNING klamm.core.broker.network.connection: closed connection" in said[0]


def test_requests_ahead_of_a_bad_length_are_answered(wire: WireClient) -> None:
    topic = new_topic(wire)
    schema = messages.request(ApiKey.PRODUCE, 9)
    body = schema.encode(schema.build(**produce_fields({(topic, 0): batch(b"x")})))
    requests = [request_frame(ApiKey.PRODUCE, 9, number, "wire", body) for number in range(100)]
    wire.send_raw(b"".join(requests) + struct.pack(">i", -1))
    for number in range(100):
        outcome = wire.receive(ApiKey.PRODUCE, 9).responses[0].partition_responses[0]
        assert (outcome.error_code, outcome.base_offset) == (ErrorCode.none, number)
    assert wire.closed()


def test_bytes_behind_a_request_are_passed_over(wire: WireClient) -> None:
    """As Kafka's brokers do, and librdkafka needs."""
    coordinated(wire, "g")
    wire.send_body(ApiKey.HEARTBEAT, 0, b"\0\1g" + b"\0\0\0\1" + b"\0\1m" + b"tail")
    assert wire.receive(ApiKey.HEARTBEAT, 0).error_code is ErrorCode.unknown_member_id
    schema = messages.request(ApiKey.PRODUCE, 9)
    body = schema.encode(schema.build(**produce_fields({("events", 0): batch(b"x")})))
    wire.send_body(ApiKey.PRODUCE, 9, body + b"tail")
    assert wire.receive(ApiKey.PRODUCE, 9).responses[0].partition_responses[0].error_code is ErrorCode.none


def test_a_client_that_means_another_broker_is_sent_to_its_bootstrap(wire: WireClient) -> None:
    """As in Kafka 4.4 (KIP-1242): cluster and broker are both named, or neither."""
    here = wire.call(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False).cluster_id
    for cluster_id, node_id, error in (
        (None, -1, ErrorCode.none),
        (here, 0, ErrorCode.none),
        (here, 7, ErrorCode.rebootstrap_required),
        ("elsewhere", 0, ErrorCode.rebootstrap_required),
        ("", 0, ErrorCode.rebootstrap_required),
        (None, 0, ErrorCode.invalid_request),
        (here, -1, ErrorCode.invalid_request),
    ):
        answer = wire.call(
            ApiKey.API_VERSIONS, 5, client_software_name="x", client_software_version="1", cluster_id=cluster_id,
            node_id=node_id,
        )  # fmt: skip
        assert (answer.error_code, bool(answer.api_keys)) == (error, error is ErrorCode.none)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(wire: WireClient) -> None:
    wire.send_raw(framed(header(ApiKey.API_VERSIONS, 77) + b"whatever"))
    frame = wire.receive_frame()
    assert frame is not None
    answer = messages.response(ApiKey.API_VERSIONS, 0).decode(frame, 4)
    assert answer.error_code is ErrorCode.unsupported_version
    assert {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys} == ADVERTISED
    assert wire.call(ApiKey.API_VERSIONS, 0).error_code is ErrorCode.none


def test_a_client_name_that_kip_511_forbids(wire: WireClient) -> None:
    answer = wire.call(ApiKey.API_VERSIONS, 3, client_software_name="no spaces", client_software_version="1")
    assert answer.error_code is ErrorCode.invalid_request


def test_half_a_frame_and_gone(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as client:
        client.send_raw(struct.pack(">ih", 50_000_000, ApiKey.PRODUCE) + b"x" * 100_000)


def damaged(position: int, value: int) -> bytes:
    data = bytearray(batch(b"one", b"two"))
    data[position] ^= value
    return bytes(data)


def with_count(count: int) -> bytes:
    """A batch that says so many records, with the right CRC."""
    data = bytearray(batch(b"one", b"two"))
    struct.pack_into(">i", data, 57, count)
    struct.pack_into(">I", data, CRC_AT, crc_of(data, 0, len(data)))
    return bytes(data)


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (None, ErrorCode.invalid_record),
        (b"", ErrorCode.invalid_record),
        (b"x" * 61, ErrorCode.invalid_record),
        (damaged(70, 1), ErrorCode.corrupt_message),
        (damaged(8, 1), ErrorCode.corrupt_message),
        (batch(b"one")[:-1], ErrorCode.corrupt_message),
        (batch(b"one") * 2, ErrorCode.invalid_record),
        (damaged(16, 3), ErrorCode.invalid_record),
        (with_count(5), ErrorCode.invalid_record),
        (with_count(-1), ErrorCode.invalid_record),
        (with_count(0), ErrorCode.invalid_record),
        (batch(*[b"x" * 1000] * 1100), ErrorCode.message_too_large),
    ],
    ids=["null", "empty", "no batch", "bad crc", "length", "cut off", "two", "magic", "5", "-1", "0", "large"],
)
def test_a_bad_batch_is_refused_and_the_connection_stays(
    wire: WireClient, records: bytes | None, error: ErrorCode
) -> None:
    topic = new_topic(wire)
    outcome = produce(wire, topic, records)
    assert (outcome.error_code, outcome.base_offset) == (error, -1)
    assert outcome.error_message
    assert fetch(wire, topic, 0).high_watermark == 0
    assert produce(wire, topic, batch(b"good")).base_offset == 0


def test_a_bad_batch_does_not_hurt_the_others_of_its_request(wire: WireClient) -> None:
    topic = new_topic(wire, partitions=3)
    batches = {(topic, 0): batch(b"a"), (topic, 1): damaged(70, 1), (topic, 2): batch(b"c"), (topic, 9): batch(b"d")}
    answer = wire.call(ApiKey.PRODUCE, 9, **produce_fields(batches))
    codes = {p.index: p.error_code for t in answer.responses for p in t.partition_responses}
    assert codes == {
        0: ErrorCode.none,
        1: ErrorCode.corrupt_message,
        2: ErrorCode.none,
        9: ErrorCode.unknown_topic_or_partition,
    }


@pytest.mark.parametrize("acks", [2, -2, 99])
def test_acks_that_do_not_exist(wire: WireClient, acks: int) -> None:
    assert produce(wire, "events", batch(b"x"), acks=acks).error_code is ErrorCode.invalid_required_acks


def test_a_transactional_produce_is_refused(wire: WireClient) -> None:
    fields = produce_fields({("events", 0): batch(b"x")}, transactional_id="tx")
    outcome = wire.call(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses[0]
    assert outcome.error_code is ErrorCode.transactional_id_authorization_failed


def test_an_error_with_acks_0_closes_the_connection(broker: RunningBroker, wire: WireClient) -> None:
    wire.send(ApiKey.PRODUCE, 9, **produce_fields({("nowhere", 0): batch(b"x")}, acks=0))
    assert wire.closed()
    assert "acks=0 failed for nowhere-0: UNKNOWN_TOPIC_OR_PARTITION" in broker.log()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../etc", "ü", "x" * 250, "a b"])
def test_topic_names_that_are_not(wire: WireClient, name: str) -> None:
    assert create_topic(wire, name).error_code is ErrorCode.invalid_topic_exception
    assert metadata(wire, [name]).topics[0].error_code is ErrorCode.invalid_topic_exception
    assert produce(wire, name, batch(b"x")).error_code is ErrorCode.unknown_topic_or_partition
    assert fetch(wire, name, 0).error_code is ErrorCode.unknown_topic_or_partition


def test_a_client_that_does_not_read_its_answers_holds_up_nobody(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as client:
        topic = new_topic(client)
        for _ in range(4):
            assert produce(client, topic, batch(*[b"x" * 1000] * 900)).error_code is ErrorCode.none
    with WireClient(broker.bootstrap) as silent:
        for _ in range(100):
            silent.send(ApiKey.FETCH, 12, **fetch_fields({(topic, 0): 0}, partition_max_bytes=4 * MIB))
        with WireClient(broker.bootstrap) as other:
            assert fetch(other, topic, 0).high_watermark == 3600
        for number in range(1, 101):
            frame = silent.receive_frame()
            assert frame is not None
            assert struct.unpack_from(">i", frame)[0] == number


def test_garbage_from_many_connections(broker: RunningBroker) -> None:
    """The broker has dealt with each before the next comes, and then stores and gives what a good client sends."""
    chance = random.Random(7)
    frame = request_frame(ApiKey.METADATA, 9, 1, "x", b"\x01\x00\x00\x00\x00")
    answered = 0
    for _ in range(150):
        with WireClient(broker.bootstrap) as client:
            data = bytearray(frame)
            for _ in range(chance.randrange(1, 5)):
                data[chance.randrange(4, len(data))] = chance.randrange(256)
            client.send_raw(bytes(data) if chance.random() < 0.7 else chance.randbytes(chance.randrange(1, 300)))
            client.end_sending()
            while client.receive_frame() is not None:
                answered += 1
    assert 0 < answered < 150, "some are requests still, and some are not"
    assert not broker.died()
    with WireClient(broker.bootstrap) as good:
        topic = new_topic(good)
        assert produce(good, topic, batch(b"one", b"two")).base_offset == 0
        found = fetch(good, topic, 0)
        assert (found.error_code, found.high_watermark) == (ErrorCode.none, 2)
        header = BatchHeader.parse(found.records)
        assert [record.value for record in decode_batch(found.records, 0, header, CodecTable())] == [b"one", b"two"]
