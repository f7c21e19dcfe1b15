"""The answers that refuse a request, read back by kio's schemas, in every version that is served."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from klamm.core.broker.handlers import table
from klamm.core.broker.handlers.dispatch import read_request
from klamm.core.broker.request import ConnectionContext
from klamm.core.errors import ErrorCode, ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import read_response_header, request_frame
from klamm.testing.faults import Fault, Faults, FaultyDispatch, api_named
from klammtest.apis import SERVED
from klammtest.requests import batch, produce_fields

ID = UUID(int=7)
SECOND = timedelta(seconds=1)
PLACE: dict[str, Any] = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1,
                         "committed_metadata": "", "commit_timestamp": -1, "current_leader_epoch": -1,
                         "timestamp": -1, "max_num_offsets": 1}  # fmt: skip
MEMBER: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}


def fields(api: ApiKey, version: int) -> dict[str, Any]:
    """Returns the fields of a request about one thing; a version leaves out those that it lacks."""
    part = messages.request(api, version).part
    named = {"name": "t", "topic": "t", "topic_id": ID}
    if api is ApiKey.PRODUCE:
        return produce_fields({("t", 0): batch(b"x")}, version=version, topic_ids={"t": ID})
    if api is ApiKey.FETCH:
        place = part("FetchPartition", partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1,
                     log_start_offset=-1, partition_max_bytes=100)  # fmt: skip
        return {"replica_id": -1, "max_wait": SECOND, "min_bytes": 1, "max_bytes": 100, "isolation_level": 0,
                "topics": (part("FetchTopic", **named, partitions=(place,)),), "forgotten_topics_data": (),
                "rack_id": "", "session_id": 0, "session_epoch": -1}  # fmt: skip
    if api is ApiKey.LIST_OFFSETS:
        topics = (part("ListOffsetsTopic", **named, partitions=(part("ListOffsetsPartition", **PLACE),)),)
        return {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": SECOND}
    if api is ApiKey.OFFSET_COMMIT:
        topic = part("OffsetCommitRequestTopic", **named, partitions=(part("OffsetCommitRequestPartition", **PLACE),))
        return {**MEMBER, "generation_id_or_member_epoch": 1, "topics": (topic,), "retention_time": SECOND}
    if api is ApiKey.CREATE_TOPICS:
        topic = part("CreatableTopic", name="t", num_partitions=1, replication_factor=1, assignments=(), configs=())
        return {"topics": (topic,), "timeout": SECOND, "validate_only": False}
    if api is ApiKey.FIND_COORDINATOR:
        return {"key": "g", "key_type": 0, "coordinator_keys": ("g", "h")}
    if api is ApiKey.INIT_PRODUCER_ID:
        return {"transactional_id": None, "transaction_timeout": SECOND, "producer_id": -1, "producer_epoch": -1}
    if api is ApiKey.JOIN_GROUP:
        return {**MEMBER, "session_timeout": SECOND, "rebalance_timeout": SECOND, "protocol_type": "consumer",
                "protocols": (), "reason": None}  # fmt: skip
    return {**MEMBER, "protocol_type": "consumer", "protocol_name": "range", "assignments": ()}


def frame(api: ApiKey, version: int, **changed: Any) -> bytearray:
    schema = messages.request(api, version)
    body = schema.encode(schema.build(**{**fields(api, version), **changed}))
    return bytearray(request_frame(api, version, 9, "client", body)[4:])


def codes(message: Any) -> Iterator[ErrorCode]:
    """Yields each error code in a message."""
    if isinstance(message, tuple):
        for each in message:
            yield from codes(each)
    elif dataclasses.is_dataclass(message):
        for field in dataclasses.fields(message):
            value = getattr(message, field.name)
            if field.name == "error_code":
                yield value
            else:
                yield from codes(value)


def refused(api: ApiKey, request: bytearray) -> Any:
    """Returns the answer of a broker that is to fail the next request of this kind."""
    faults = Faults()
    faults.add(Fault(api, 1, ErrorCode.not_coordinator))

    def reached(*_: Any) -> None:
        raise AssertionError("the request was carried out")

    pieces: Any = FaultyDispatch(faults, reached)(ConnectionContext(1, "PLAINTEXT", "peer"), request)
    assert faults.lines() == []
    return b"".join(pieces)


APIS = ("Produce", "Fetch", "ListOffsets", "OffsetCommit", "CreateTopics", "FindCoordinator", "InitProducerId",
        "JoinGroup", "SyncGroup", "Heartbeat")  # fmt: skip


@pytest.mark.parametrize("name", APIS)
def test_the_answer_has_the_error_in_every_version(name: str) -> None:
    api = api_named(name)
    for version in range(SERVED[api][0], SERVED[api][1] + 1):
        answer = refused(api, frame(api, version))[4:]
        correlation_id, offset = read_response_header(answer, api, version)
        found = list(codes(messages.response(api, version).decode(answer, offset)))
        assert correlation_id == 9
        assert {code for code in found if code is not ErrorCode.none} == {ErrorCode.not_coordinator}, f"v{version}"


def test_a_fetch_of_a_session_without_changes_fails_as_a_whole() -> None:
    answer = refused(ApiKey.FETCH, frame(ApiKey.FETCH, 12, topics=()))[4:]
    _, offset = read_response_header(answer, ApiKey.FETCH, 12)
    assert messages.response(ApiKey.FETCH, 12).decode(answer, offset).error_code is ErrorCode.not_coordinator


def test_a_produce_without_acks_is_not_answered() -> None:
    with pytest.raises(ProtocolError, match="acks=0"):
        refused(ApiKey.PRODUCE, frame(ApiKey.PRODUCE, 9, acks=0))


def test_other_requests_pass_and_faults_come_in_order() -> None:
    faults = Faults()
    faults.add(Fault(ApiKey.FETCH, 2, ErrorCode.not_coordinator))
    faults.add(Fault(ApiKey.FETCH, None, ErrorCode.unknown_topic_id))
    dispatch = FaultyDispatch(faults, lambda *_: [b"carried out"])
    context = ConnectionContext(1, "PLAINTEXT", "peer")
    assert dispatch(context, frame(ApiKey.HEARTBEAT, 4)) == [b"carried out"]
    seen = [read_request(context, frame(ApiKey.FETCH, 12), table.APIS) and faults.take(ApiKey.FETCH) for _ in range(4)]
    wanted = [ErrorCode.not_coordinator] * 2 + [ErrorCode.unknown_topic_id] * 2
    assert [fault and fault.error for fault in seen] == wanted
    faults.clear()
    assert faults.take(ApiKey.FETCH) is None
