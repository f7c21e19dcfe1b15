"""A client's Produce is written and read by hand; kio says what the bytes have to be."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import ErrorCode, ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import SERVED, ApiKey
from klamm.core.protocol.client_produce import read_produce_response, write_produce_request
from klamm.core.protocol.headers import request_frame, request_pieces
from klamm.core.protocol.produce import Produced, write_produce_response

VERSIONS = range(SERVED[ApiKey.PRODUCE][0], SERVED[ApiKey.PRODUCE][1] + 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_is_written_as_kio_writes_it(version: int) -> None:
    sizes = {"first": [5000, 10, 70_000, 4095], "größe" * 40: [4096], "none": []}
    batches = {topic: {n * 7: bytearray([n]) * size for n, size in enumerate(of)} for topic, of in sizes.items()}
    pieces = write_produce_request(batches, -1, 1500, version)
    schema = messages.request(ApiKey.PRODUCE, version)
    topics = tuple(
        schema.part(
            "TopicProduceData",
            name=topic,
            partition_data=tuple(
                schema.part("PartitionProduceData", index=number, records=batch) for number, batch in of.items()
            ),
        )
        for topic, of in batches.items()
    )
    timeout = timedelta(milliseconds=1500)
    message = schema.build(transactional_id=None, acks=-1, timeout=timeout, topic_data=topics)
    assert b"".join(pieces) == schema.encode(message)
    frame = b"".join(request_pieces(ApiKey.PRODUCE, version, 7, "me", pieces))
    assert frame == request_frame(ApiKey.PRODUCE, version, 7, "me", schema.encode(message))
    assert len(frame) == 4 + int.from_bytes(frame[:4], "big")
    large = [batch for of in batches.values() for batch in of.values() if len(batch) >= 4096]
    assert [piece for piece in pieces if any(piece is batch for batch in large)] == large, "pieces, not copies"


def response(version: int) -> bytes:
    schema = messages.response(ApiKey.PRODUCE, version)
    when = datetime.fromtimestamp(12.345, UTC)
    refused = (
        (schema.part("BatchIndexAndErrorMessage", batch_index=3, batch_index_error_message="no"),)
        if version >= 8
        else ()
    )
    common = {"log_append_time": None, "log_start_offset": 7, "record_errors": (), "error_message": None}
    kinds = (
        {**common, "index": 0, "error_code": ErrorCode.none, "base_offset": 2**40},
        {**common, "index": 5, "error_code": ErrorCode.none, "base_offset": 9, "log_append_time": when},
        {
            **common,
            "index": 2**31 - 1,
            "error_code": ErrorCode.invalid_record,
            "base_offset": -1,
            "record_errors": refused,
            "error_message": "größe",
        },
    )
    parts = tuple(schema.part("PartitionProduceResponse", **kind) for kind in kinds)
    topics = (
        schema.part("TopicProduceResponse", name="t", partition_responses=parts),
        schema.part("TopicProduceResponse", name="u", partition_responses=parts[:1]),
    )
    return schema.encode(schema.build(responses=topics, throttle_time=timedelta(milliseconds=5)))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_is_read_as_kio_writes_it(version: int) -> None:
    start, words = (7 if version >= 5 else -1), ("größe" if version >= 8 else None)
    assert read_produce_response(memoryview(b"head" + response(version)), 4, version) == [
        Produced("t", 0, ErrorCode.none, 2**40, -1, start),
        Produced("t", 5, ErrorCode.none, 9, 12_345, start),
        Produced("t", 2**31 - 1, ErrorCode.invalid_record, -1, -1, start, words),
        Produced("u", 0, ErrorCode.none, 2**40, -1, start),
    ]
    ours = [Produced("t", 1, base_offset=4), Produced("u", 0, ErrorCode.corrupt_message, log_append_time_ms=8)]
    if version < 5:
        assert read_produce_response(memoryview(write_produce_response(ours, version)), 0, version) == ours


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_that_is_cut_or_longer_or_unknown_is_refused(version: int) -> None:
    data = response(version)
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            read_produce_response(memoryview(data[:end]), 0, version)
    with pytest.raises(ProtocolError, match="1 bytes left over after ProduceResponse"):
        read_produce_response(memoryview(data + b"\0"), 0, version)
    number = b"\x7f\xff\xff\xff"
    unknown = data.replace(number + (87).to_bytes(2, "big"), number + b"\x7f\xff")
    with pytest.raises(ProtocolError, match="cannot read ProduceResponse"):
        read_produce_response(memoryview(unknown), 0, version)


@settings(max_examples=100)
@given(data=st.binary(max_size=200), version=st.sampled_from(VERSIONS))
def test_random_bytes_are_a_response_or_a_protocol_error(data: bytes, version: int) -> None:
    with suppress(ProtocolError):
        read_produce_response(memoryview(data), 0, version)
