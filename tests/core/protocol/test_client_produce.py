"""A client's Produce is written by hand; kio says what the bytes have to be."""

from __future__ import annotations

from datetime import timedelta

import pytest

from klamm.core.errors import ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import SPOKEN, ApiKey
from klamm.core.protocol.headers import request_frame, request_pieces
from klamm.core.protocol.primitives import tagged
from klamm.core.protocol.produce.client import write_produce_request
from klamm.core.protocol.produce.conditional import FIELD, expected_end
from klamm.core.protocol.produce.fast_path import read_fast_produce_request
from klamm.core.protocol.produce.request import ProducePartition, read_produce_request
from klamm.core.records.encode import encode_batch
from klamm.core.records.offset_and_epoch import OffsetAndEpoch

VERSIONS = range(SPOKEN[ApiKey.PRODUCE][0], SPOKEN[ApiKey.PRODUCE][1] + 1)


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


@pytest.mark.parametrize("version", [v for v in VERSIONS if v >= 9])
def test_an_expected_end_is_a_tagged_field_of_the_partition(version: int) -> None:
    batch = encode_batch([(1, None, b"v", ())])
    after = {"t": {0: OffsetAndEpoch(2**40, 7), 3: OffsetAndEpoch(5)}}
    body = b"".join(write_produce_request({"t": {0: batch, 3: batch}}, -1, 1500, version, after))
    read = read_produce_request(bytearray(body), 0, version)
    assert read.partitions == [
        ProducePartition("t", 0, memoryview(batch), OffsetAndEpoch(2**40, 7)),
        ProducePartition("t", 3, memoryview(batch), OffsetAndEpoch(5, -1)),
    ]
    one = write_produce_request({"t": {0: batch}}, -1, 1500, version, after)
    frame = b"".join(request_pieces(ApiKey.PRODUCE, version, 7, "me", one))[4:]
    assert read_fast_produce_request(frame) is None, "the fast path knows no condition"


def test_an_expected_end_of_another_size_is_refused() -> None:
    good = expected_end(OffsetAndEpoch(1, 2))
    body = b"".join(write_produce_request({"t": {0: b"x"}}, -1, 1500, 9, {"t": {0: OffsetAndEpoch(1, 2)}}))
    short = body.replace(good, b"\1" + tagged(FIELD, b"123"))
    with pytest.raises(ProtocolError, match="the expected end of a Produce has 3 bytes, not 12"):
        read_produce_request(bytearray(short), 0, 9)
