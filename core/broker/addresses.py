"""Which address clients are told, once the ports are bound."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from klamm.core.config.address import Listener as Address


def advertised(addresses: Sequence[Address], bound_ports: Mapping[str, int]) -> list[Address]:
    """Each with its real port and a host that clients can connect to; a listener on all interfaces (host "") is told as
    this machine's IPv4 address."""
    return [
        Address(a.name, a.host or own_ipv4(), a.port or bound_ports[a.name]) for a in addresses if a.name in bound_ports
    ]


def own_ipv4() -> str:
    """The address of this machine's own name; loopback where it has none."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
