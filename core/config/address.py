"""Parses addresses in the configuration: a broker's listeners, a client's bootstrap servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator

from .section import ConfigType, to_string

_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]*):(?P<port>\d{1,5})")


class ListenerAddress(NamedTuple):
    """The address of a listener. `name` is a key of `listener.security.protocol.map`; `host` "" binds every interface;
    `port` 0 binds a free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{self.host}:{self.port}"


def host_port(text: str) -> tuple[str, int]:
    """Returns host and port, an IPv6 address without its brackets. Raises `ValueError` if the text is not
    `host:port`."""
    match = _HOST_PORT.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"expected host:port with a port up to 65535, got {text!r}")
    return match["host"].strip("[]"), int(match["port"])


def parse_listeners(text: str, protocols: Mapping[str, str]) -> list[ListenerAddress]:
    """Parses a list such as `PLAINTEXT://127.0.0.1:9092,INTERNAL://:9093`. Raises `ValueError` with one line if it is
    invalid."""
    listeners: list[ListenerAddress] = []
    for part in text.split(","):
        name, mark, address = part.strip().partition("://")
        if not mark:
            raise ValueError(f"expected NAME://host:port, got {part.strip()!r}")
        if name.upper() not in protocols:
            raise ValueError(f"listener {name!r} is not in listener.security.protocol.map")
        if any(name.upper() == other.name for other in listeners):
            raise ValueError(f"listener {name!r} is given twice")
        listeners.append(ListenerAddress(name.upper(), *host_port(address)))
    return listeners


def _checked(text: str) -> str:
    servers = [part.strip() for part in text.split(",") if part.strip()]
    if not servers:
        raise ValueError("expected host:port, or several separated by commas")
    for server in servers:
        host, port = host_port(server)
        if not host or not port:
            raise ValueError(f"expected host:port, got {server!r}")
    return ",".join(servers)


def _joined(value: Any) -> Any:
    return to_string(value) if isinstance(value, list) else value


Servers = Annotated[str, BeforeValidator(_joined), AfterValidator(_checked), ConfigType.LIST]
"""`host:port,host:port`; YAML may write a list."""


def addresses(servers: str) -> list[tuple[str, int]]:
    """Returns the addresses of a validated `bootstrap.servers`."""
    return [host_port(part) for part in servers.split(",")]
