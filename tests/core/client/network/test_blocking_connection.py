"""The client's blocking connection over byte streams in memory, and joined with the broker's connection."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.core.broker.network.connection import Connection
from klamm.core.broker.network.connections import Connections
from klamm.core.broker.network.limits import Limits
from klamm.core.broker.request import ConnectionContext
from klamm.core.client.errors import ConnectionFailedError, RequestTimeoutError
from klamm.core.client.network.blocking_connection import BlockingConnection
from klamm.core.client.network.connection import ClientConnection
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.frames import FrameSplitter
from klamm.core.protocol.messages import Schema
from klamm.core.transport.address import Address
from klammtest.brokers.negotiating import answer, answer_frame
from klammtest.fake_transport import FakeByteStream, connect


def opened(stream: FakeByteStream) -> BlockingConnection:
    protocol = ClientConnection("me", "0.1.0")
    return BlockingConnection(
        Address("b", 9092), protocol, timeout_s=1.0, dial=lambda address, timeout_s: stream, clock=lambda: 5.0
    )


def metadata(schema: Schema) -> Any:
    return schema.build(
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def test_it_is_negotiated_and_answers_calls() -> None:
    connection = opened(FakeByteStream(answer_frame))
    assert connection.usable
    assert connection.call(ApiKey.METADATA, metadata, 1.0).cluster_id == "c"
    assert connection.usable


def test_the_client_and_the_broker_s_connection_are_joined_without_a_socket() -> None:
    connections = Connections(Limits())
    context = ConnectionContext(1, "PLAINTEXT", "?")
    splitter = FrameSplitter(1_000_000, None, connections.chunk)
    stream = connect(Connection(context, splitter, lambda _context, frame: answer(frame), connections))
    assert opened(stream).call(ApiKey.METADATA, metadata, 1.0).controller_id == 1
    assert len(connections) == 1
    assert context.peer == "127.0.0.1:4711"


def test_no_answer_in_time_closes() -> None:
    stream = FakeByteStream(answer_frame)
    connection = opened(stream)
    stream.room = 0
    with pytest.raises(RequestTimeoutError, match="no answer to METADATA from b:9092 in time"):
        connection.call(ApiKey.METADATA, metadata, 1.0)
    assert stream.closed
    assert not connection.usable


def test_a_stream_that_breaks_closes() -> None:
    stream = FakeByteStream(answer_frame)
    connection = opened(stream)
    stream.failure = ConnectionResetError(104, "Connection reset by peer")
    with pytest.raises(ConnectionFailedError, match="the connection to b:9092 broke: connection reset by peer"):
        connection.call(ApiKey.METADATA, metadata, 1.0)
    assert stream.closed


def test_a_broker_that_hangs_up_between_calls_leaves_it_unusable() -> None:
    stream = FakeByteStream(answer_frame)
    connection = opened(stream)
    stream.ended = True
    assert not connection.usable
