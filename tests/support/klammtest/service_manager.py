"""A service manager, as far as a service notifies it: the socket of sd_notify(3)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from .waiting import eventually


class ServiceManager:
    """`environment` is for the service's process; `received` are the notifications that came, in order."""

    def __init__(self, listening: socket.socket, address: str) -> None:
        self._listening = listening
        self.environment = {"NOTIFY_SOCKET": address}
        self.received: list[dict[str, str]] = []

    def poll(self) -> list[dict[str, str]]:
        """Returns all notifications so far."""
        while True:
            try:
                data = self._listening.recv(4096)
            except BlockingIOError:
                return self.received
            self.received.append(dict(line.split("=", 1) for line in data.decode().splitlines()))

    def wait_for(self, name: str, times: int = 1) -> None:
        """Returns once `name`=… has come so often."""
        eventually(lambda: sum(name in one for one in self.poll()) >= times, f"{name} was notified")


@contextmanager
def service_manager() -> Iterator[ServiceManager]:
    """Listens on an address without a file, whose path might be too long."""
    name = f"klamm-{uuid4()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.setblocking(False)
        yield ServiceManager(listening, f"@{name}")
