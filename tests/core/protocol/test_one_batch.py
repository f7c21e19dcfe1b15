"""The short way of reading and writing a Produce of one batch is held against the long one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import read_request_header, request_frame, response_frame, skip_tags
from klamm.core.protocol.one_batch import OneBatch, read_one_batch, write_one_produced
from klamm.core.protocol.produce import Produced, read_produce_request, write_produce_response

VERSIONS = range(3, 10)


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
@pytest.mark.parametrize("client_id", [None, "", "me"])
def test_one_batch_is_read(version: int, client_id: str | None) -> None:
    data = frame(version, topics={"töpic": {3: b"abc"}}, acks=-1, client_id=client_id)
    one = read_one_batch(data)
    assert one is not None
    assert one == OneBatch(version, 77, -1, "töpic", 3, memoryview(b"abc"))
    one.records[0] = ord("X")
    assert data.endswith((b"Xbc", b"Xbc\0\0\0")), "a view, not a copy"


@pytest.mark.parametrize(
    "other",
    [
        frame(9, topics={"t": {0: b"abc", 1: b"abc"}}),
        frame(9, topics={"t": {0: b"abc"}, "u": {0: b"abc"}}),
        frame(9, topics={"t": {0: None}}),
        frame(9, topics={"t": {}}),
        frame(9, topics={"t" * 127: {0: b"abc"}}),
        frame(9, topics={"t": {0: b"abc"}}, acks=0),
        frame(9, topics={"t": {0: b"abc"}}, transactional_id="x"),
        bytearray(frame(9, topics={"t": {0: b"abc"}})[:-1] + b"\x01\x07\x02ab"),
        frame(7, topics={"t": {0: b"abc", 1: b"abc"}}),
        frame(7, topics={"t": {0: b"abc"}, "u": {0: b"abc"}}),
        frame(7, topics={"t": {0: None}}),
        frame(7, topics={"t": {}}),
        frame(7, topics={}),
        frame(7, topics={"t": {0: b"abc"}}, acks=0),
        frame(7, topics={"t": {0: b"abc"}}, acks=2),
        frame(7, topics={"t": {0: b"abc"}}, transactional_id="x"),
        bytearray(frame(7, topics={"t": {0: b"abc"}}).replace(b"me", b"\xff\xfe")),
    ],
)
def test_all_else_is_left_to_the_long_way(other: bytearray) -> None:
    assert read_one_batch(other) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frame_that_is_cut_is_left_to_the_long_way(version: int) -> None:
    data = frame(version, topics={"t": {0: b"abc"}})
    assert all(read_one_batch(data[:end]) is None for end in range(len(data)))


@settings(max_examples=300)
@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_what_is_read_of_a_damaged_frame_is_what_the_long_way_reads(data: st.DataObject, version: int) -> None:
    damaged = frame(version, topics={"topic": {3: b"abc"}})
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    one = read_one_batch(damaged)
    if one is None:
        return
    header = read_request_header(damaged)
    start = skip_tags(damaged, header.end) if header.api_version == 9 else header.end
    long = read_produce_request(damaged, start, header.api_version)
    assert (header.api_key, header.api_version, header.correlation_id) == (0, one.version, one.correlation_id)
    assert (long.transactional_id, long.acks) == (None, one.acks)
    assert [(p.topic, p.partition, p.records) for p in long.partitions] == [(one.topic, one.partition, one.records)]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_response_is_the_long_way_s(version: int) -> None:
    one = OneBatch(version, 77, 1, "töpic", 3, memoryview(b""))
    outcome = Produced("töpic", 3, base_offset=7, log_append_time_ms=1234, log_start_offset=2)
    body = write_produce_response([outcome], version, throttle_ms=9)
    expected = b"".join(response_frame(ApiKey.PRODUCE, version, 77, [body]))
    assert write_one_produced(one, 7, 1234, 2, throttle_ms=9) == expected
