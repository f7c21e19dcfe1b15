"""A session of ZooKeeper on a connection that is not as it should be."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import pytest

from klamm.core.interfaces.coordination import SessionEvent
from klamm.plugin import CoordinationUnavailableError
from klamm.plugins.coordination.zookeeper.config import ZooKeeperConfig
from klamm.plugins.coordination.zookeeper.coordination import ZooKeeperCoordination
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammtest.ports import free_port
from klammtest.proxies.tcp import Link, TcpProxy
from klammtest.zookeeper import Events

_LENGTH = struct.Struct(">i")


class SkippedAnswer(Link):
    """Swallows one response after `skip` is set."""

    def __init__(self, skip: threading.Event) -> None:
        self._skip = skip

    def answers(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        kept = b""
        for piece in pieces:
            kept += piece
            while len(kept) >= _LENGTH.size and len(kept) >= (size := _LENGTH.size + _LENGTH.unpack_from(kept)[0]):
                answer, kept = kept[:size], kept[size:]
                if self._skip.is_set():
                    self._skip.clear()
                else:
                    yield answer


@pytest.mark.parametrize("write", [True, False], ids=["a write", "a read"])
def test_a_session_outlives_a_response_that_is_missing(zookeeper_server: ZooKeeperServer, write: bool) -> None:
    """The next response ends the connection: a write may have been carried out, a read is sent again."""
    skip = threading.Event()
    with TcpProxy(free_port(), zookeeper_server.port, lambda: SkippedAnswer(skip)) as proxy:
        coordination = ZooKeeperCoordination(
            ZooKeeperConfig.model_validate({"zookeeper.connect": f"{proxy.bootstrap}/klamm-test/skipped-{write}"})
        )
        events = Events(coordination)
        coordination.start()
        try:
            session = coordination.session_id
            coordination.create("/a", b"1")
            other = threading.Thread(target=lambda: coordination.exists("/a"))
            skip.set()
            other_sent = threading.Timer(0.3, other.start)
            other_sent.start()
            if write:
                with pytest.raises(CoordinationUnavailableError, match="may or may not have been carried out"):
                    coordination.set("/a", b"2")
            else:
                assert coordination.get("/a")[0] == b"1"
            other_sent.join()
            other.join()
            assert coordination.get("/a")[0] == (b"2" if write else b"1")
            assert coordination.session_id == session
            assert SessionEvent.EXPIRED not in events.seen
        finally:
            coordination.close()
