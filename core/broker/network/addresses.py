"""Which addresses clients are told, once the ports are bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...config.address import Listener as Address


def advertised(addresses: Sequence[Address], bound_ports: Mapping[str, int]) -> list[Address]:
    """Each with its real port: port 0 stands for the one that its listener was given."""
    return [Address(a.name, a.host, a.port or bound_ports[a.name]) for a in addresses if a.name in bound_ports]
