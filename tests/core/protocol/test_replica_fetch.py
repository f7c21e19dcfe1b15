"""Fetch between brokers is written and read as kio does it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import ErrorCode, ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.fetch import Fetched, write_fetch_response
from klamm.core.protocol.replica_fetch import (
    CONSUMER,
    FIRST_BY_ID,
    VERSION,
    PartitionFetch,
    ReplicaFetchRequest,
    as_replica_fetch,
    read_replica_fetch_request,
    read_replica_fetch_response,
)
from klamm.core.records.epoch_end import EpochRange

A, B = UUID(int=2**127 + 5).bytes, UUID(int=9).bytes
WANTED = {
    (A, 0): PartitionFetch(3, 2**40, 2, 7, 1 << 20),
    (B, 4): PartitionFetch(1, 0, -1, 0, 1 << 20),
    (A, 300): PartitionFetch(3, 5, 3, 0, 1 << 20),
}
REQUEST = ReplicaFetchRequest(2, 2**33, 500, 1, 10 << 20, 77, 8, WANTED, ((B, 1), (B, 2)))


def test_a_request_is_written_as_kio_does() -> None:
    request = REQUEST
    schema = messages.request(ApiKey.FETCH, VERSION)
    found = schema.decode(request.encode())
    assert (found.replica_state.replica_id, found.replica_state.replica_epoch) == (2, 2**33)
    assert (found.max_wait, found.min_bytes, found.max_bytes) == (timedelta(milliseconds=500), 1, 10 << 20)
    assert (found.session_id, found.session_epoch) == (77, 8)
    assert as_replica_fetch(found) == request
    assert schema.encode(found) == request.encode()


@pytest.mark.parametrize("version", range(FIRST_BY_ID, VERSION + 1))
def test_a_consumers_request_is_written_as_kio_does(version: int) -> None:
    schema = messages.request(ApiKey.FETCH, version)
    found = schema.decode(REQUEST._replace(replica_id=CONSUMER).encode(version))
    assert version >= 15 or found.replica_id == CONSUMER
    assert version < 15 or found.replica_state.replica_id == CONSUMER
    assert (found.isolation_level, found.rack_id, found.session_id, found.session_epoch) == (0, "", 77, 8)
    assert {
        (topic.topic_id.bytes, p.partition): PartitionFetch(
            p.current_leader_epoch, p.fetch_offset, p.last_fetched_epoch, p.log_start_offset, p.partition_max_bytes
        )
        for topic in found.topics
        for p in topic.partitions
    } == WANTED
    assert [(topic.topic_id.bytes, *topic.partitions) for topic in found.forgotten_topics_data] == [(B, 1, 2)]


@pytest.mark.parametrize(
    "request_", [REQUEST, ReplicaFetchRequest(0, 1, 0, 0, 0, 0, -1, {}), REQUEST._replace(forgotten=())]
)
def test_a_request_is_read_as_kio_reads_it(request_: ReplicaFetchRequest) -> None:
    body = b"head!" + request_.encode()
    assert read_replica_fetch_request(bytearray(body), 5) == request_


def test_the_epochs_of_a_follower_are_read_again_and_others_skip_them() -> None:
    ranges = (EpochRange(3, 0, 2**40), EpochRange(2**31 - 1, 2**40, 2**41))
    wanted = {key: value._replace(epoch_ranges=ranges) if key == (A, 0) else value for key, value in WANTED.items()}
    body = REQUEST._replace(partitions=wanted).encode()
    assert read_replica_fetch_request(body, 0) == REQUEST._replace(partitions=wanted)
    assert as_replica_fetch(messages.request(ApiKey.FETCH, VERSION).decode(body)) == REQUEST
    for size in range(len(body)):
        assert read_replica_fetch_request(body[:size], 0) is None, "cut off"


def test_every_other_request_is_left_to_kio() -> None:
    schema = messages.request(ApiKey.FETCH, VERSION)
    body = REQUEST.encode()
    for size in range(len(body)):
        assert read_replica_fetch_request(body[:size], 0) is None, "cut off"
    assert read_replica_fetch_request(body + b"\0", 0) is None
    found = schema.decode(body)
    consumer = replace(found, replica_state=replace(found.replica_state, replica_id=-1))
    assert read_replica_fetch_request(schema.encode(consumer), 0) is None
    assert read_replica_fetch_request(schema.encode(replace(found, rack_id="a")), 0) is None
    assert read_replica_fetch_request(schema.encode(replace(found, isolation_level=1)), 0) is None


@settings(max_examples=500)
@given(st.data())
def test_a_damaged_request_is_read_as_kio_reads_it_or_not_at_all(data: st.DataObject) -> None:
    body = bytearray(REQUEST.encode())
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    found = read_replica_fetch_request(body, 0)
    if found is not None:
        assert found == as_replica_fetch(messages.request(ApiKey.FETCH, VERSION).decode(body))


def test_a_response_is_read_as_it_is_written() -> None:
    answers = [
        Fetched(A, 0, high_watermark=9, last_stable_offset=9, log_start_offset=1, records=b"batch" * 100),
        Fetched(A, 1, ErrorCode.not_leader_or_follower),
        Fetched(B, 0, high_watermark=4, log_start_offset=2, diverging_epoch=(3, 4)),
    ]
    body = b"".join(write_fetch_response(answers, VERSION, session_id=12))
    found = read_replica_fetch_response(memoryview(b"head!" + body), 5)
    assert (found.error, found.session_id) == (ErrorCode.none, 12)
    assert list(found.partitions) == [(A, 0), (A, 1), (B, 0)]
    assert bytes(found.partitions[A, 0].records) == b"batch" * 100
    assert found.partitions[A, 1].error is ErrorCode.not_leader_or_follower
    assert found.partitions[B, 0][1:4] == (4, 2, (3, 4))


@pytest.mark.parametrize("size", range(0, 120, 7))
def test_a_response_that_ends_early_is_refused(size: int) -> None:
    answers = [Fetched(A, 0, high_watermark=9, log_start_offset=1, records=b"batch" * 20)]
    body = b"".join(write_fetch_response(answers, VERSION, session_id=12))
    with pytest.raises(ProtocolError):
        read_replica_fetch_response(memoryview(body[:size]), 0)
