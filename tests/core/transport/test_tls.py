"""The broker and the clients over TLS: the interfaces of `klamm.core.transport` are enough for it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.errors import ConnectionFailedError
from klamm.core.client.network.blocking_connection import BlockingConnection
from klamm.core.client.network.connection import ClientConnection
from klamm.core.client.network.metadata import parse_bootstrap
from klamm.core.client.network.request_router import Network
from klamm.core.client.producer.producer import Producer
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import decode_batch
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klamm.core.transport.interface import Transport, TransportHandler
from klammtest.brokers.inprocess import broker_thread
from klammtest.tls import Contexts, TlsTransport, accept_tls, dial_tls, self_signed
from klammtest.waiting import PATIENCE_S, until

TP = TopicPartition("t", 0)


@dataclass(frozen=True)
class Served:
    bootstrap: str
    contexts: Contexts

    @property
    def network(self) -> Network:
        return Network(dial=dial_tls(self.contexts.client))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker whose listener speaks TLS alone."""
    folder = tmp_path_factory.mktemp("tls")
    contexts = self_signed(folder)
    coordination = {"plugin": "embedded", "path": str(folder / "coordination.db")}
    keys = {"listeners": "SSL://127.0.0.1:0", "listener.security.protocol.map": "SSL:SSL"}
    with broker_thread(folder, coordination, keys, accepts={"SSL": accept_tls(contexts.server)}) as broker:
        yield Served(f"127.0.0.1:{broker.advertised[0].port}", contexts)


def test_produce_and_fetch(served: Served) -> None:
    """The producer writes without blocking, the client with blocking calls. Requests and responses are larger than a
    TLS record and than the kernel's buffers."""
    values = [b"value " + bytes([number % 256]) * 10_000 for number in range(500)]
    with ClusterClient(served.bootstrap, codecs=CodecTable(), network=served.network) as client:
        client.create_topics({TP.topic: NewTopic(1)})
        config = {"bootstrap.servers": served.bootstrap, "batch.size": 900_000, "linger.ms": 5}
        with Producer({"producer": config}, network=served.network) as producer:
            futures = [producer.send(TP.topic, value) for value in values]
        assert [future.result(PATIENCE_S).offset for future in futures] == list(range(len(values)))
        found: list[bytes | None] = []
        (node,) = client.by_leader([TP])
        while len(found) < len(values):
            fetched = client.fetch(node, {TP: len(found)})[TP]
            for position, header in iter_headers(fetched.records):
                found += [record.value for record in decode_batch(fetched.records, position, header, client.codecs)]
        assert found == values


def test_a_client_without_tls_is_refused_in_one_line(served: Served) -> None:
    with (
        ClusterClient(served.bootstrap, codecs=CodecTable(), request_timeout_s=2) as client,
        pytest.raises(ConnectionFailedError, match=f"no broker answers at {served.bootstrap}"),
    ):
        client.metadata()


def test_a_client_that_does_not_know_the_certificate_is_told(served: Served) -> None:
    (address,) = parse_bootstrap(served.bootstrap)
    stranger = dial_tls(ssl.create_default_context())
    with pytest.raises(ConnectionFailedError, match=f"cannot connect to {address}: .*certificate verify failed"):
        BlockingConnection(address, ClientConnection("me", "0.1.0"), timeout_s=PATIENCE_S, dial=stranger)


class Quiet(TransportHandler):
    """Counts what is delivered."""

    def __init__(self) -> None:
        self.updates: list[int] = []
        self.transport: Transport | None = None

    def connected(self, transport: Transport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(100))

    def buffer_updated(self, nbytes: int) -> None:
        self.updates.append(nbytes)

    def eof_received(self) -> bool:
        return False


def test_half_a_record_is_expected_input_that_holds_no_bytes(tmp_path: Path) -> None:
    """A broker that stops would wait for it, up to its grace period, if `buffer_updated(0)` did not say so."""
    contexts = self_signed(tmp_path)
    handler = Quiet()

    async def main() -> None:
        server = TlsTransport(contexts.server, handler)
        received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = contexts.client.wrap_bio(received, to_send, server_hostname="127.0.0.1")
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        await loop.connect_accepted_socket(lambda: server, theirs)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                await loop.sock_sendall(ours, to_send.read())
                received.write(await loop.sock_recv(ours, 65_536))
        await loop.sock_sendall(ours, to_send.read())
        await until(lambda: server._negotiated)
        assert not server.expects_input()
        client.write(b"hello")
        record = to_send.read()
        ours.send(record[:-5])
        assert server.expects_input(), "the event loop has not read it yet"
        await until(lambda: handler.updates == [0])
        await loop.sock_sendall(ours, record[-5:])
        await until(lambda: handler.updates == [0, 5])
        assert not server.expects_input()
        ours.close()
        server.abort()
        await asyncio.sleep(0)

    asyncio.run(main())
