"""One connection to a broker as a state machine without I/O: bytes in, responses out (in the manner of h11).

Rules:
- The first request is ApiVersions; no other goes out before its answer. It is sent in our highest version; a broker
  that does not know that version answers error 35 in a version-0 body, and is asked again in version 0 (KIP-511).
- Every later request uses the highest version that both sides have; where the ranges do not meet, sending it is refused
  with one line and nothing goes out.
- Responses come in the order of the requests, each with its request's correlation id. Anything else is a
  `ProtocolError`, after which the connection is CLOSED.
- At most `max_in_flight` requests wait for an answer. A Produce with acks=0 gets none and waits for none.

`open` and "version refused" (error 35, accepted once) put an ApiVersions request into the output. Requests are sent and
answered in READY. A `ProtocolError` closes; `close` returns what was in flight as lost.

Not thread-safe: its owner locks, or is one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from ...errors import BrokerError, ErrorCode, ProtocolError
from ...protocol import messages
from ...protocol.apis import SPOKEN, ApiKey
from ...protocol.frames import FrameSplitter
from ...protocol.headers import read_response_header, request_pieces
from ...protocol.messages import Buffer, Schema
from ...state_table import StateTable
from .buffers import unwritten

MAX_RESPONSE_BYTES = 256 * 1024 * 1024
"""A response may exceed the requested size by one batch; memory is allocated only as bytes arrive."""

Build = Callable[[Schema], Any]
"""Builds the request's message with the schema of the negotiated version; a list is the encoded message in pieces."""


def of_fields(**fields: object) -> Build:
    """Returns what builds a request from its fields: lists are arrays, dicts the structs in them. Fields that the
    negotiated version lacks are left out."""
    return lambda schema: schema.message(**fields)


Decode = Callable[[memoryview, int], Any]
"""Reads a response from its frame, from a position on; may raise `ProtocolError`."""


class ClientConnectionState(Enum):
    FRESH = "fresh"
    NEGOTIATING = "negotiating"
    READY = "ready"
    CLOSED = "closed"


class ClientConnectionEvent(Enum):
    OPEN = "open"
    VERSION_REFUSED = "version refused"
    VERSIONS_LEARNED = "versions learned"
    CLOSE = "close"


CONNECTION_STATES = StateTable(
    "client connection", ClientConnectionState, ClientConnectionEvent,
    """
    state        event             next state
    fresh        open              negotiating
    negotiating  version refused   negotiating
    negotiating  versions learned  ready
    fresh        close             closed
    negotiating  close             closed
    ready        close             closed
    closed       close             closed
    """,
)  # fmt: skip


class Response(NamedTuple):
    """An answer; `message` is kio's, of the negotiated version, or what the request's `Decode` has made."""

    correlation_id: int
    api: ApiKey
    version: int
    message: Any


class ClientConnection:
    def __init__(
        self,
        client_id: str,
        software_version: str,
        *,
        max_in_flight: int = 5,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self.state = CONNECTION_STATES.initial
        self._client_id = client_id
        self._software_version = software_version
        self._max_in_flight = max_in_flight
        self._splitter = FrameSplitter(max_response_bytes, reserve=unwritten)
        self.get_buffer = self._splitter.get_buffer
        """Returns the buffer into which the network may write the next bytes, followed by `received`. This saves the
        copy of `receive`."""
        self._next_id = 0
        self._waiting: deque[tuple[int, ApiKey, int, Decode | None]] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._chosen: dict[tuple[ApiKey, int | None], int] = {}
        """The results of `version`."""
        self._features: set[str] = set()
        self._output: list[Buffer] = []

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    @property
    def can_send(self) -> bool:
        return self.state is ClientConnectionState.READY and len(self._waiting) < self._max_in_flight

    def open(self) -> None:
        """Puts ApiVersions into the output. Can be called once; later calls raise `IllegalTransitionError`."""
        self._take(ClientConnectionEvent.OPEN)
        self._ask_versions(SPOKEN[ApiKey.API_VERSIONS][1])

    def version(self, api: ApiKey, max_version: int | None = None) -> int:
        """Returns the version to be used with this broker, at most `max_version`. Raises `BrokerError`
        (UNSUPPORTED_VERSION) if no version is common.
        """
        ours, theirs = SPOKEN[api], self._versions.get(api)
        if max_version is not None:
            ours = (ours[0], min(ours[1], max_version))
        if theirs is None:
            raise BrokerError(ErrorCode.unsupported_version, f"the broker does not serve {api.name}")
        chosen = min(ours[1], theirs[1])
        if chosen < max(ours[0], theirs[0]):
            ranges = f"the broker serves {theirs[0]} to {theirs[1]}, this client speaks {ours[0]} to {ours[1]}"
            raise BrokerError(ErrorCode.unsupported_version, f"no common version of {api.name}: {ranges}")
        return chosen

    def send(
        self,
        api: ApiKey,
        build: Build,
        *,
        answered: bool = True,
        max_version: int | None = None,
        feature: str | None = None,
        decode: Decode | None = None,
    ) -> int:
        """Puts a request into the output; returns its correlation id. Refused unless `can_send`; also raises
        `BrokerError` (UNSUPPORTED_VERSION) if the broker does not support `feature` (KIP-584)."""
        if not self.can_send:
            raise ProtocolError(f"cannot send {api.name}: {self.state.value}, {len(self._waiting)} in flight")
        if feature is not None and feature not in self._features:
            raise BrokerError(ErrorCode.unsupported_version, f"the broker does not support the feature {feature}")
        version = self._chosen.get((api, max_version))
        if version is None:
            version = self._chosen[api, max_version] = self.version(api, max_version)
        return self._send(api, version, build, answered, decode)

    def take_output(self) -> bytes:
        """Returns the bytes to write to the broker, once."""
        return b"".join(self.take_pieces())

    def take_pieces(self) -> list[Buffer]:
        """Returns the bytes of `take_output` in pieces, to be written in order: record batches are not copied, and must
        stay unchanged until they are written.
        """
        output, self._output = self._output, []
        return output

    def receive(self, data: bytes | bytearray | memoryview) -> list[Response]:
        """Returns the responses that are now complete; may also fill the output. A `ProtocolError` closes the
        connection.
        """
        try:
            return self._accept(self._splitter.feed(data))
        except ProtocolError:
            self.close()
            raise

    def received(self, count: int) -> list[Response]:
        """Does what `receive` does, for `count` bytes written into `get_buffer()`."""
        try:
            frames = self._splitter.received(count)
            return self._accept(frames) if frames else []
        except ProtocolError:
            self.close()
            raise

    def close(self) -> list[int]:
        """Closes; returns the correlation ids whose answers will not arrive, oldest first."""
        lost = [correlation_id for correlation_id, _, _, _ in self._waiting]
        self._waiting.clear()
        self._output.clear()
        self._take(ClientConnectionEvent.CLOSE)
        return lost

    def _take(self, event: ClientConnectionEvent) -> None:
        self.state = CONNECTION_STATES.next(self.state, event)

    def _send(
        self, api: ApiKey, version: int, build: Build, answered: bool = True, decode: Decode | None = None
    ) -> int:
        schema = messages.request(api, version)
        made = build(schema)
        body = made if isinstance(made, list) else [schema.encode(made)]
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) & 0x7FFFFFFF
        self._output += request_pieces(api, version, correlation_id, self._client_id, body)
        if answered:
            self._waiting.append((correlation_id, api, version, decode))
        return correlation_id

    def _ask_versions(self, version: int) -> None:
        build = of_fields(client_software_name="klamm-python", client_software_version=self._software_version)
        self._send(ApiKey.API_VERSIONS, version, build)

    def _accept(self, frames: list[bytearray]) -> list[Response]:
        responses = []
        for frame in frames:
            response = self._decode(frame)
            if self.state is ClientConnectionState.NEGOTIATING:
                self._negotiated(response)
            else:
                responses.append(response)
        return responses

    def _decode(self, frame: bytearray) -> Response:
        if not self._waiting:
            raise ProtocolError(f"the broker sent {len(frame)} bytes that no request asked for")
        expected, api, version, decode = self._waiting.popleft()
        if api is ApiKey.API_VERSIONS and _is_version_refusal(frame):
            version = 0
        correlation_id, position = read_response_header(frame, api, version)
        if correlation_id != expected:
            raise ProtocolError(f"the broker answered request {correlation_id}, expected {expected} ({api.name})")
        body = memoryview(frame)
        if decode is not None:
            return Response(correlation_id, api, version, decode(body, position))
        message = messages.response(api, version).decode(body.toreadonly(), position)  # kio reads no writable buffer
        return Response(correlation_id, api, version, message)

    def _negotiated(self, response: Response) -> None:
        code = response.message.error_code
        if code == ErrorCode.unsupported_version and response.version == 0 and self._next_id == 1:
            self._take(ClientConnectionEvent.VERSION_REFUSED)
            self._ask_versions(0)
            return
        if code != ErrorCode.none:
            raise ProtocolError(f"the broker refused ApiVersions: {code.name.upper()}")
        self._versions = {item.api_key: (item.min_version, item.max_version) for item in response.message.api_keys}
        self._features = {each.name for each in getattr(response.message, "supported_features", ())}
        self._take(ClientConnectionEvent.VERSIONS_LEARNED)


def _is_version_refusal(frame: bytearray) -> bool:
    """Returns True if error 35 follows the correlation id: the body is then version 0, whatever was requested."""
    return len(frame) >= 6 and int.from_bytes(frame[4:6], "big", signed=True) == ErrorCode.unsupported_version
