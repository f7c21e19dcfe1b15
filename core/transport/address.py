"""Addresses of listeners: `host:port` as text in both directions, and the sockets that listen on them.

An IPv6 address is in brackets wherever a port follows it. A listener without a host, or with `::`, takes connections of
IPv6 and of IPv4, as Kafka's do.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

__all__ = ["Address", "listen", "plain_host", "why_not"]

_ANY: Final = ("", "::")
"""Hosts that mean every interface, of IPv6 and of IPv4."""
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]*):(?P<port>\d{1,5})", re.ASCII)
_NUMBERS = re.compile(r"[0x.]+")
_MAPPED: Final = "::ffff:"
_LAST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker's listener; `host` is an IPv6 address without its brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parses `host:port`; the host may be empty, the port 0. An address of every interface has one form: `[::0]`
        is `::`, `0` is `0.0.0.0`. Raises `ValueError` for any other text."""
        match = _HOST_PORT.fullmatch(text.strip())
        if match is None and text.count(":") > 1 and re.fullmatch(r"[0-9A-Fa-f:.]+", text.strip()):
            raise ValueError(f"expected host:port with an IPv6 address in brackets, as in [::1]:9092, got {text!r}")
        if match is None or int(match["port"]) > _LAST_PORT:
            raise ValueError(f"expected host:port with a port up to {_LAST_PORT}, got {text!r}")
        host = match["host"].strip("[]")
        if match["host"].startswith("["):
            try:
                unspecified = IPv6Address(host).is_unspecified
            except ValueError as error:
                raise ValueError(f"expected host:port, got {text!r}: {host} is no IPv6 address") from error
            host = "::" if unspecified else host
        elif _NUMBERS.fullmatch(host):
            with suppress(OSError):
                host = "0.0.0.0" if not any(socket.inet_aton(host)) else host
        return cls(host, int(match["port"]))

    @classmethod
    def parse_server(cls, text: str) -> Address:
        """Parses `host:port` of a server to connect to: both are given. Raises `ValueError` for any other text."""
        address = cls.parse(text)
        if not address.host or not address.port:
            raise ValueError(f"expected host:port, got {text!r}")
        return address

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def plain_host(host: str) -> str:
    """Returns the address of a client; its IPv4 address if it came by IPv4 to a socket of both protocols."""
    return host.removeprefix(_MAPPED) if host.startswith(_MAPPED) and "." in host else host


def listen(address: Address, backlog: int = 128) -> socket.socket:
    """Returns a listening socket. Without a host, or with `::`, it accepts IPv6 and IPv4 if this host has both.
    Raises `OSError`."""
    if address.host in _ANY and _has_ipv6():
        return socket.create_server(("::", address.port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
    host: str | bytes | None = None if address.host in _ANY else address.host
    if isinstance(host, str) and host.isascii():
        host = host.encode()  # of a text, `getaddrinfo` loads the tables of IDNA: 0.3 MB
    found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, place = min(found, key=lambda row: row[0] != socket.AF_INET)
    return socket.create_server((str(place[0]), address.port), family=family, backlog=backlog)


def why_not(error: OSError) -> str:
    """Returns the reason why `listen` failed, without the address, which asyncio and `socket` add to it."""
    return (error.strerror or str(error)).partition(" (while attempting")[0]


def _has_ipv6() -> bool:
    """Returns whether this host has IPv6: a kernel may be built, or started, without it."""
    if not socket.has_dualstack_ipv6():
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
