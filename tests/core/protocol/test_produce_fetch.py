"""Produce and Fetch are read and written by hand; kio says what the bytes have to be."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import ErrorCode, ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.current_leader import CurrentLeader
from klamm.core.protocol.fetch import Fetched, write_fetch_response
from klamm.core.protocol.produce.request import read_produce_request
from klamm.core.protocol.produce.response import Produced, write_produce_response
from klamm.core.records.isolation import AbortedTransaction
from klammtest.apis import SERVED

PRODUCE = range(SERVED[ApiKey.PRODUCE][0], SERVED[ApiKey.PRODUCE][1] + 1)
FETCH = range(SERVED[ApiKey.FETCH][0], SERVED[ApiKey.FETCH][1] + 1)


IDS = {"first": UUID(int=1), "": UUID(int=2), "a": UUID(int=3), "b": UUID(int=4)}
"""The ids of the topics, which name them from version 13 of both on."""


def produce_request(version: int) -> bytes:
    schema = messages.request(ApiKey.PRODUCE, version)
    parts = (
        schema.part("PartitionProduceData", index=3, records=b"abc"),
        schema.part("PartitionProduceData", index=4, records=None),
    )
    topics = (
        schema.part("TopicProduceData", name="first", topic_id=IDS["first"], partition_data=parts),
        schema.part("TopicProduceData", name="", topic_id=IDS[""], partition_data=()),
    )
    return schema.encode(
        schema.build(transactional_id="tx", acks=-1, timeout=timedelta(milliseconds=1500), topic_data=topics)
    )


@pytest.mark.parametrize("version", PRODUCE)
def test_a_produce_request_is_read_as_kio_writes_it(version: int) -> None:
    frame = bytearray(b"head" + produce_request(version))
    request = read_produce_request(frame, 4, version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == ("tx", -1, 1500)
    first = "first" if version < 13 else IDS["first"].bytes
    assert [(p.topic, p.partition, p.records) for p in request.partitions] == [(first, 3, b"abc"), (first, 4, None)]
    records = request.partitions[0].records
    assert records is not None
    records[0] = ord("X")
    assert b"Xbc" in frame, "a view, not a copy"


@pytest.mark.parametrize("version", PRODUCE)
def test_a_produce_request_that_is_cut_is_refused_and_what_follows_it_passed_over(version: int) -> None:
    data = produce_request(version)
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            read_produce_request(bytearray(data[:end]), 0, version)
    assert read_produce_request(bytearray(data + b"tail"), 0, version).partitions


@settings(max_examples=100)
@given(data=st.binary(max_size=200), version=st.sampled_from(PRODUCE))
def test_random_bytes_are_a_produce_request_or_a_protocol_error(data: bytes, version: int) -> None:
    with suppress(ProtocolError):
        read_produce_request(bytearray(data), 0, version)


def test_unknown_tags_in_a_produce_request_are_skipped() -> None:
    data = produce_request(9)
    request = read_produce_request(bytearray(data[:-1] + b"\x01\x07\x02ab"), 0, 9)
    assert len(request.partitions) == 2


@pytest.mark.parametrize("version", PRODUCE)
def test_a_produce_response_is_written_as_kio_does(version: int) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    a, b = ("a", "b") if version < 13 else (IDS["a"].bytes, IDS["b"].bytes)
    outcomes = [
        Produced(a, 0, base_offset=7, log_append_time_ms=int(now.timestamp() * 1000), log_start_offset=2),
        Produced(a, 1, ErrorCode.corrupt_message, message="bad"),
        Produced(a, 2, ErrorCode.invalid_record, message="bad", record_errors=((3, "no key"), (70_000, "größe"))),
        Produced(b, 0, base_offset=0, log_start_offset=0),
        Produced(b, 1, ErrorCode.not_leader_or_follower, leader=CurrentLeader(7, 3)),
    ]
    schema = messages.response(ApiKey.PRODUCE, version)

    def named(index: int, why: str) -> object:
        return schema.part("BatchIndexAndErrorMessage", batch_index=index, batch_index_error_message=why)

    def part(o: Produced) -> object:
        return schema.part(
            "PartitionProduceResponse", index=o.partition, error_code=o.error, base_offset=o.base_offset,
            log_append_time=now if o.log_append_time_ms >= 0 else None, log_start_offset=o.log_start_offset,
            record_errors=tuple(named(*r) for r in o.record_errors if version >= 8), error_message=o.message,
            **({"current_leader": schema.part("LeaderIdAndEpoch", leader_id=7, leader_epoch=3)}
               if o.leader and version >= 10 else {}),
        )  # fmt: skip

    topics = tuple(
        schema.part(
            "TopicProduceResponse",
            name=name,
            topic_id=IDS[name],
            partition_responses=tuple(part(o) for o in outcomes if o.topic == topic),
        )
        for name, topic in (("a", a), ("b", b))
    )
    nodes = [(7, "größe", 9092, "rack"), (8, "h", 1, None)] if version >= 10 else []
    endpoints = tuple(schema.part("NodeEndpoint", node_id=n, host=h, port=p, rack=r) for n, h, p, r in nodes)
    expected = schema.encode(
        schema.build(responses=topics, throttle_time=timedelta(milliseconds=9), node_endpoints=endpoints)
    )
    assert write_produce_response(outcomes, version, throttle_ms=9, nodes=nodes) == expected


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("version", FETCH)
def test_a_fetch_response_is_written_as_kio_does(version: int, committed: bool) -> None:
    a, b = ("a", "b") if version < 13 else (UUID(int=7).bytes, UUID(int=8).bytes)
    answers = [
        Fetched(
            a,
            0,
            high_watermark=9,
            last_stable_offset=8,
            log_start_offset=1,
            records=b"batch" * 100,
            aborted=(AbortedTransaction(7, 2), AbortedTransaction(1 << 40, 5)),
        ),
        Fetched(a, 1, ErrorCode.offset_out_of_range, high_watermark=3, last_stable_offset=3, log_start_offset=0),
        Fetched(b, 0, ErrorCode.unknown_topic_or_partition, diverging_epoch=(3, 4) if version >= 12 else None),
    ]
    schema = messages.response(ApiKey.FETCH, version)

    def part(a: Fetched) -> object:
        aborted = tuple(schema.part("AbortedTransaction", **transaction._asdict()) for transaction in a.aborted)
        return schema.part(
            "PartitionData", partition_index=a.partition, error_code=a.error, high_watermark=a.high_watermark,
            last_stable_offset=a.last_stable_offset, log_start_offset=a.log_start_offset,
            aborted_transactions=aborted if committed else None, records=bytes(a.records),
            **({"diverging_epoch": schema.part("EpochEndOffset", epoch=3, end_offset=4)} if a.diverging_epoch else {}),
        )  # fmt: skip

    topics = tuple(
        schema.part(
            "FetchableTopicResponse",
            topic=t,
            topic_id=UUID(bytes=t) if isinstance(t, bytes) else None,
            partitions=tuple(part(x) for x in answers if x.topic == t),
        )
        for t in (a, b)
    )
    message = schema.build(throttle_time=timedelta(), error_code=ErrorCode.invalid_request, responses=topics)
    pieces = write_fetch_response(answers, version, isolation=int(committed), error=ErrorCode.invalid_request)
    assert b"".join(pieces) == schema.encode(message)
