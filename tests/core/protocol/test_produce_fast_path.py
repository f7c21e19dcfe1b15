"""The fast path of Produce reads and writes what the general path does, as its judge in Python does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import read_request_header, request_frame, response_frame, skip_tags
from klamm.core.protocol.produce import fast_path
from klamm.core.protocol.produce.request import FastProduceRequest, as_produce_request, read_produce_request
from klamm.core.protocol.produce.response import Produced, write_produce_response
from klamm.core.records.encode import encode_batch
from klamm.core.records.native import IMPLEMENTATION
from klammtest.native import produce_twin

VERSIONS = range(3, 14)
ID = UUID("01234567-89ab-cdef-0123-456789abcdef")
"""The id of every topic, which names it from version 13 on."""
BATCH = encode_batch([(1_700_000_000_000, b"key", b"value", ())])
READS = {"Python": produce_twin.read_fast_produce_request}
WRITES = {"Python": produce_twin.write_fast_produce_response}
if IMPLEMENTATION == "native":
    READS["compiled"] = fast_path.read_fast_produce_request
    WRITES["compiled"] = fast_path.write_fast_produce_response

Read = Callable[[bytearray], FastProduceRequest | None]


@pytest.fixture(params=READS)
def read(request: pytest.FixtureRequest) -> Read:
    return READS[request.param]


def frame(
    version: int,
    *,
    topics: dict[str, dict[int, bytes | None]],
    acks: int = 1,
    transactional_id: str | None = None,
    client_id: str | None = "me",
) -> bytearray:
    schema = messages.request(ApiKey.PRODUCE, version)
    data = tuple(
        schema.part(
            "TopicProduceData",
            name=name,
            topic_id=ID,
            partition_data=tuple(
                schema.part("PartitionProduceData", index=index, records=records) for index, records in parts.items()
            ),
        )
        for name, parts in topics.items()
    )
    body = schema.encode(
        schema.build(transactional_id=transactional_id, acks=acks, timeout=timedelta(seconds=1), topic_data=data)
    )
    return bytearray(request_frame(ApiKey.PRODUCE, version, 77, client_id, body)[4:])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("client_id", [None, "", "me", "größe"])
def test_one_batch_is_read(read: Read, version: int, client_id: str | None) -> None:
    data = frame(version, topics={"töpic": {3: BATCH}}, acks=-1, client_id=client_id)
    found = read(data)
    assert found is not None
    assert found[:7] == (version, 77, client_id or "", -1, 1000, "töpic" if version < 13 else ID.bytes, 3)
    batch = found[7][0]
    assert (bytes(batch), found[7][1:]) == (BATCH, (1, 1_700_000_000_000, 1_700_000_000_000, 0, -1, -1))
    batch[-1] ^= 1
    assert BATCH not in data, "a view, not a copy"


@pytest.mark.parametrize(
    "other",
    [
        frame(9, topics={"t": {0: BATCH, 1: BATCH}}),
        frame(9, topics={"t": {0: BATCH}, "u": {0: BATCH}}),
        frame(9, topics={"t": {0: None}}),
        frame(9, topics={"t": {0: b"abc"}}),
        frame(9, topics={"t": {0: BATCH + BATCH}}),
        frame(9, topics={"t": {0: BATCH[:-1] + b"?"}}),
        frame(9, topics={"t": {}}),
        frame(9, topics={"t" * 127: {0: BATCH}}),
        frame(9, topics={"t": {0: BATCH}}, acks=0),
        frame(9, topics={"t": {0: BATCH}}, transactional_id="x"),
        bytearray(frame(9, topics={"t": {0: BATCH}})[:-1] + b"\x01\x07\x02ab"),
        frame(13, topics={"t": {0: BATCH, 1: BATCH}}),
        frame(13, topics={"t": {0: BATCH}, "u": {0: BATCH}}),
        frame(13, topics={"t": {0: BATCH}}, transactional_id="x"),
        bytearray(frame(13, topics={"t": {0: BATCH}})[:-1] + b"\x01\x07\x02ab"),
        frame(7, topics={"t": {0: BATCH, 1: BATCH}}),
        frame(7, topics={"t": {0: BATCH}, "u": {0: BATCH}}),
        frame(7, topics={"t": {0: None}}),
        frame(7, topics={"t": {}}),
        frame(7, topics={}),
        frame(7, topics={"t": {0: BATCH}}, acks=0),
        frame(7, topics={"t": {0: BATCH}}, acks=2),
        frame(7, topics={"t": {0: BATCH}}, transactional_id="x"),
        bytearray(frame(7, topics={"t": {0: BATCH}}).replace(b"me", b"\xff\xfe")),
    ],
)
def test_all_else_is_left_to_the_general_path(read: Read, other: bytearray) -> None:
    assert read(other) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_that_is_cut_is_left_to_the_general_path(read: Read, version: int) -> None:
    data = frame(version, topics={"t": {0: BATCH}})
    assert all(read(data[:end]) is None for end in range(len(data)))


@settings(max_examples=300)
@given(data=st.data(), version=st.sampled_from(VERSIONS), which=st.sampled_from(sorted(READS)))
def test_what_is_read_of_a_damaged_frame_is_what_the_general_path_reads(
    data: st.DataObject, version: int, which: str
) -> None:
    damaged = frame(version, topics={"topic": {3: BATCH}})
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    found = READS[which](damaged)
    if found is None:
        return
    header = read_request_header(damaged)
    start = skip_tags(damaged, header.end) if header.api_version >= 9 else header.end
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id or "") == (0, *found[:3])
    assert as_produce_request(found) == read_produce_request(damaged, start, header.api_version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("which", WRITES)
def test_the_response_is_the_general_path_s(which: str, version: int) -> None:
    topic = "töpic" if version < 13 else ID.bytes
    outcome = Produced(topic, 3, base_offset=7, log_append_time_ms=1234, log_start_offset=2)
    body = write_produce_response([outcome], version, throttle_ms=9)
    expected = b"".join(response_frame(ApiKey.PRODUCE, version, 77, [body]))
    assert WRITES[which](version, topic, 77, 3, 7, 1234, 2, 9) == expected
