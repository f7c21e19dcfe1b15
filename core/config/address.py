"""Parses addresses in the configuration: a broker's listeners, a client's bootstrap servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator

from ..transport.address import Address
from .section import ConfigType, to_string


class ListenerAddress(NamedTuple):
    """The address of a listener. `name` is a key of `listener.security.protocol.map`; `host` "" binds every interface;
    `port` 0 binds a free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{Address(self.host, self.port)}"


def parse_listeners(text: str, protocols: Mapping[str, str]) -> list[ListenerAddress]:
    """Parses a list such as `PLAINTEXT://127.0.0.1:9092,INTERNAL://:9093`. Raises `ValueError` with one line if it is
    invalid."""
    listeners: list[ListenerAddress] = []
    for part in text.split(","):
        name, mark, address = part.strip().partition("://")
        if not mark:
            raise ValueError(f"expected NAME://host:port, got {part.strip()!r}")
        if name.upper() not in protocols:
            known = ", ".join(protocols)
            raise ValueError(
                f"listener {part.strip()!r}: its name {name!r} is not in listener.security.protocol.map, which has "
                f"{known}; only PLAINTEXT is served: write PLAINTEXT://…, or add {name.upper()}:PLAINTEXT to the map"
            )
        if any(name.upper() == other.name for other in listeners):
            raise ValueError(f"listener {name!r} is given twice")
        parsed = Address.parse(address)
        listeners.append(ListenerAddress(name.upper(), parsed.host, parsed.port))
    return listeners


def _checked(text: str) -> str:
    servers = [part.strip() for part in text.split(",") if part.strip()]
    if not servers:
        raise ValueError("expected host:port, or several separated by commas")
    return ",".join(str(Address.parse_server(server)) for server in servers)


def _joined(value: Any) -> Any:
    return to_string(value) if isinstance(value, list) else value


Servers = Annotated[str, BeforeValidator(_joined), AfterValidator(_checked), ConfigType.LIST]
"""`host:port,host:port`; YAML may write a list."""
