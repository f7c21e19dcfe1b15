"""The minimum that a broker must answer, as a function: for connections over byte streams in memory."""

from __future__ import annotations

from datetime import timedelta

from klamm.core.errors import ErrorCode
from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import read_request_header, response_frame
from klamm.core.protocol.messages import Buffer
from klammtest.apis import ADVERTISED


def answer(request: bytes | bytearray) -> list[Buffer]:
    """Returns the response frame to one request, without its length; nothing unless it is ApiVersions or Metadata."""
    header = read_request_header(request)
    api, version = ApiKey(header.api_key), header.api_version
    schema = messages.response(api, version)
    if api is ApiKey.API_VERSIONS:
        keys = tuple(
            schema.part("ApiVersion", api_key=served, min_version=low, max_version=high)
            for served, (low, high) in ADVERTISED.items()
        )
        message = schema.build(error_code=ErrorCode.none, api_keys=keys, throttle_time=timedelta())
    elif api is ApiKey.METADATA:
        message = schema.build(throttle_time=timedelta(), brokers=(), cluster_id="c", controller_id=1, topics=())
    else:
        return []
    return response_frame(api, version, header.correlation_id, [schema.encode(message)])


def answer_frame(data: bytes) -> bytes:
    """Does the same for one request that begins with its length, as `FakeByteStream` passes it."""
    return b"".join(answer(data[4:]))
