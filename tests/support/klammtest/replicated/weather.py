"""Proxies in front of brokers that make a bad network: late, stalled, reset and cut into single bytes."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from klammtest.proxies.tcp import DIAL_S, Link, TcpProxy

from .network import Network


@dataclass
class Weather:
    """What happens to each piece of data, at once when it is changed. Times in seconds, chances per piece.

    `stall`: the chance that a piece waits for `stall_s`, as for a lost packet that is sent again.
    """

    delay_s: float = 0.0
    stall: float = 0.0
    stall_s: float = 0.3
    reset: float = 0.0
    bytewise: bool = False

    def clear(self) -> None:
        self.delay_s = self.stall = self.reset = 0.0
        self.bytewise = False


_MOST_SINGLE = 600
"""Bytes of a piece that are sent one by one: its start, where all the lengths are."""


class WeatherLink(Link):
    def __init__(self, weather: Weather, seed: int) -> None:
        self._weather = weather
        self._chance = random.Random(seed)

    def requests(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        return self._through(pieces)

    def answers(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        return self._through(pieces)

    def _through(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            now = self._weather
            if now.reset and self._chance.random() < now.reset:
                yield piece[: self._chance.randrange(len(piece))]
                raise ConnectionResetError
            pause = self._chance.uniform(0, 2 * now.delay_s)
            if now.stall and self._chance.random() < now.stall:
                pause += now.stall_s
            if pause:
                time.sleep(pause)
            if now.bytewise:
                for i in range(min(len(piece), _MOST_SINGLE)):
                    yield piece[i : i + 1]
                piece = piece[_MOST_SINGLE:]
            if piece:
                yield piece


class WeatherProxy(TcpProxy):
    """A proxy on `port` in front of the broker on `server_port`; with `network` on host `host` of it, as the broker."""

    def __init__(
        self, port: int, server_port: int, weather: Weather, seed: int, network: Network | None = None, host: int = 0
    ) -> None:
        self._network, self._number = network, host
        self._lock_of_links = threading.Lock()
        self._links = 0

        def link() -> Link:
            with self._lock_of_links:
                self._links += 1
                return WeatherLink(weather, seed + self._links)

        super().__init__(port, server_port, link)

    def listen(self) -> socket.socket:
        if self._network is None:
            return super().listen()
        with self._network.on_host(self._number):
            return socket.create_server((self._network.hosts[self._number], self.port))

    def dial(self) -> socket.socket:
        if self._network is None:
            return super().dial()
        with self._network.on_host(self._number):
            return socket.create_connection((self._network.hosts[self._number], self._server_port), DIAL_S)
