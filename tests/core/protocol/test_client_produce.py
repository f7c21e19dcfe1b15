"""A client's Produce is written by hand; kio says what the bytes have to be."""

from __future__ import annotations

from datetime import timedelta

import pytest

from klamm.core.protocol import messages
from klamm.core.protocol.apis import SPOKEN, ApiKey
from klamm.core.protocol.headers import request_frame, request_pieces
from klamm.core.protocol.produce.client import write_produce_request

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
