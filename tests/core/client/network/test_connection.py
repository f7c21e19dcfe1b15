from __future__ import annotations

import datetime
from typing import Any

import pytest

from klamm.core.client.network.connection import ClientConnection, ClientConnectionState
from klamm.core.errors import BrokerError, ErrorCode, ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import SPOKEN, ApiKey
from klamm.core.protocol.headers import read_request_header, response_frame, skip_tags
from klamm.core.state_table import IllegalTransitionError
from klammtest.apis import ADVERTISED

NO_TIME = datetime.timedelta()


def answer(api: ApiKey, version: int, correlation_id: int, **fields: Any) -> bytes:
    schema = messages.response(api, version)
    return b"".join(response_frame(api, version, correlation_id, [schema.encode(schema.build(**fields))]))


def versions(correlation_id: int = 0, version: int = 3, **changes: tuple[int, int] | None) -> bytes:
    table: dict[ApiKey, tuple[int, int] | None] = {**ADVERTISED}
    table.update({ApiKey[name]: served for name, served in changes.items()})
    part = messages.response(ApiKey.API_VERSIONS, version).part
    keys = tuple(
        part("ApiVersion", api_key=api, min_version=served[0], max_version=served[1])
        for api, served in table.items()
        if served is not None
    )
    return answer(
        ApiKey.API_VERSIONS,
        version,
        correlation_id,
        error_code=ErrorCode.none,
        api_keys=keys,
        throttle_time=NO_TIME,
    )


def metadata_request(schema: messages.Schema) -> Any:
    return schema.build(
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def metadata_answer(correlation_id: int, version: int = SPOKEN[ApiKey.METADATA][1]) -> bytes:
    return answer(
        ApiKey.METADATA,
        version,
        correlation_id,
        throttle_time=NO_TIME,
        brokers=(),
        cluster_id="c",
        controller_id=1,
        topics=(),
    )


def ready(**changes: tuple[int, int] | None) -> ClientConnection:
    connection = ClientConnection("me", "0.1.0")
    connection.open()
    connection.take_output()
    assert connection.receive(versions(**changes)) == []
    assert connection.state is ClientConnectionState.READY
    return connection


def test_the_first_request_is_api_versions_in_our_highest_version() -> None:
    connection = ClientConnection("me", "0.1.0-codecs.5")
    connection.open()
    output = connection.take_output()
    header = read_request_header(output[4:])
    assert (header.api_key, header.api_version, header.client_id) == (ApiKey.API_VERSIONS, 3, "me")
    body = messages.request(ApiKey.API_VERSIONS, 3).decode(output, 4 + skip_tags(output[4:], header.end))
    assert body.client_software_version == "0.1.0-codecs.5"
    assert not connection.can_send


def test_an_old_broker_is_asked_again_in_version_0() -> None:
    connection = ClientConnection("me", "0.1.0")
    connection.open()
    connection.take_output()
    refusal = answer(ApiKey.API_VERSIONS, 0, 0, error_code=ErrorCode.unsupported_version, api_keys=())
    assert connection.receive(refusal) == []
    header = read_request_header(connection.take_output()[4:])
    assert (header.api_version, header.correlation_id) == (0, 1)
    assert connection.receive(versions(1, 0, METADATA=(0, 1))) == []
    assert connection.version(ApiKey.METADATA) == 1


def test_a_broker_that_refuses_version_0_too_is_given_up() -> None:
    connection = ClientConnection("me", "0.1.0")
    connection.open()
    for correlation_id in range(2):
        refusal = answer(ApiKey.API_VERSIONS, 0, correlation_id, error_code=ErrorCode.unsupported_version, api_keys=())
        if correlation_id == 0:
            connection.receive(refusal)
            continue
        with pytest.raises(ProtocolError, match="refused ApiVersions: UNSUPPORTED_VERSION"):
            connection.receive(refusal)
    assert connection.state is ClientConnectionState.CLOSED


def test_the_highest_common_version_is_used() -> None:
    connection = ready(METADATA=(0, 5), FETCH=(4, 99))
    assert connection.version(ApiKey.METADATA) == 5
    assert connection.version(ApiKey.FETCH) == SPOKEN[ApiKey.FETCH][1]
    assert connection.version(ApiKey.FETCH, 12) == 12


def test_ranges_that_do_not_meet_are_one_clear_line() -> None:
    connection = ready(PRODUCE=(13, 14), FETCH=None)
    with pytest.raises(BrokerError, match="no common version of PRODUCE: the broker serves 13 to 14, this client"):
        connection.send(ApiKey.PRODUCE, lambda schema: schema.build())
    with pytest.raises(BrokerError, match="the broker does not serve FETCH"):
        connection.send(ApiKey.FETCH, lambda schema: schema.build())
    assert connection.take_output() == b""


def test_responses_in_pieces_come_out_whole_and_in_order() -> None:
    connection = ready()
    ids = [connection.send(ApiKey.METADATA, metadata_request) for _ in range(3)]
    stream = b"".join(metadata_answer(correlation_id) for correlation_id in ids)
    got = [response for i in range(0, len(stream), 7) for response in connection.receive(stream[i : i + 7])]
    assert [response.correlation_id for response in got] == ids
    assert got[0].message.cluster_id == "c"
    assert connection.in_flight == 0


def test_no_more_than_the_bound_are_in_flight() -> None:
    connection = ready()
    ids = [connection.send(ApiKey.METADATA, metadata_request) for _ in range(5)]
    with pytest.raises(ProtocolError, match="5 in flight"):
        connection.send(ApiKey.METADATA, metadata_request)
    connection.receive(metadata_answer(ids[0]))
    assert connection.can_send


def test_a_request_that_is_not_answered_waits_for_nothing() -> None:
    connection = ready()
    connection.send(ApiKey.METADATA, metadata_request, answered=False)
    assert connection.in_flight == 0
    assert connection.take_output()


def test_a_wrong_correlation_id_closes() -> None:
    connection = ready()
    connection.send(ApiKey.METADATA, metadata_request)
    with pytest.raises(ProtocolError, match="answered request 99, expected 1"):
        connection.receive(metadata_answer(99))
    assert connection.state is ClientConnectionState.CLOSED


def test_bytes_that_nobody_asked_for_close() -> None:
    connection = ready()
    with pytest.raises(ProtocolError, match="no request asked for"):
        connection.receive(metadata_answer(1))


def test_a_response_over_the_limit_closes() -> None:
    connection = ClientConnection("me", "0.1.0", max_response_bytes=100)
    connection.open()
    with pytest.raises(ProtocolError, match="over the limit"):
        connection.receive(b"\x7f\xff\xff\xff\x00\x00")


def test_closing_names_what_is_lost() -> None:
    connection = ready()
    ids = [connection.send(ApiKey.METADATA, metadata_request) for _ in range(2)]
    assert connection.close() == ids
    with pytest.raises(ProtocolError, match="closed"):
        connection.send(ApiKey.METADATA, metadata_request)


def test_it_is_opened_once() -> None:
    connection = ready()
    with pytest.raises(IllegalTransitionError, match="a client connection in state 'ready' cannot take event 'open'"):
        connection.open()
