from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.errors import ProtocolError
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import (
    read_request_header,
    read_response_header,
    request_frame,
    response_frame,
    skip_tags,
)
from klammtest.apis import SERVED

each_api = pytest.mark.parametrize("api", SERVED, ids=lambda api: api.name)


def versions(api: ApiKey) -> range:
    low, high = SERVED[api]
    return range(low, high + 1)


@pytest.mark.parametrize("client_id", [None, "", "ein Müller"])
@each_api
def test_a_request_header_is_read_as_written(api: ApiKey, client_id: str | None) -> None:
    for version in versions(api):
        frame = request_frame(api, version, 77, client_id, b"body")
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header = read_request_header(frame[4:])
        assert (header.api_key, header.api_version, header.correlation_id) == (api, version, 77)
        assert header.client_id == client_id
        end = skip_tags(frame[4:], header.end) if messages.request(api, version).header_flexible else header.end
        assert frame[4 + end :] == b"body", version


@each_api
def test_a_response_header_is_read_as_written(api: ApiKey) -> None:
    for version in versions(api):
        frame = b"".join(response_frame(api, version, -5, [b"bo", b"dy"]))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        correlation_id, offset = read_response_header(frame[4:], api, version)
        assert (correlation_id, frame[4 + offset :]) == (-5, b"body"), version


def test_api_versions_answers_with_header_version_0_always() -> None:
    assert response_frame(ApiKey.API_VERSIONS, 3, 1, [b""])[0] == b"\0\0\0\x04\0\0\0\x01"


@given(frame=st.binary(max_size=40))
def test_random_bytes_are_a_header_or_a_protocol_error(frame: bytes) -> None:
    with suppress(ProtocolError):
        skip_tags(frame, read_request_header(frame).end)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"\0\x03\0\x01", "too short"),
        (b"\0\x03\0\x01\0\0\0\x01\0\x09ab", "client id of 9 bytes"),
        (b"\0\x03\0\x01\0\0\0\x01\0\x01\xff", "not UTF-8"),
    ],
)
def test_bad_headers_say_what_is_wrong(frame: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        read_request_header(frame)


def test_tags_in_a_request_header_are_skipped_within_bounds() -> None:
    assert skip_tags(b"\x01\x05\x02abrest", 0) == 5
    for bad in (b"\x01\x05\x20ab", b"\x7f" + b"\0" * 300, b"\x01", b"\xff\xff\xff\xff\xff\x01"):
        with pytest.raises(ProtocolError):
            skip_tags(bad, 0)


def test_short_responses_are_refused() -> None:
    with pytest.raises(ProtocolError, match="too short"):
        read_response_header(b"\0\0", ApiKey.METADATA, 9)
