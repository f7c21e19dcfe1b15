"""The address of the cluster in a file, for commands that need nothing else of it.

Validating all sections takes most of a short command's time; `klamm config check`, brokers and clients do that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..transport.address import Address
from .document import read

if TYPE_CHECKING:
    from .settings import Settings


def servers_in(file: Path) -> str:
    """Returns what `servers_of` returns for the file's settings.

    Validates the whole file unless `producer` has valid `bootstrap.servers`. Raises `ConfigError` with one line for
    each problem that was found.
    """
    document = read(file)
    given = None if document.problems else _given(document.tree)
    if given is not None:
        return given
    from .settings import load_settings

    return servers_of(load_settings(file))


def servers_of(settings: Settings) -> str:
    """Returns the `bootstrap.servers` of producers, else of consumers, else the address of the file's own broker."""
    for section in (settings.producer, settings.consumer):
        if "bootstrap_servers" in section.model_fields_set:
            return section.bootstrap_servers
    listener = settings.broker.advertised()[0]
    return str(Address(listener.host, listener.port))


def _given(tree: Any) -> str | None:
    producer = tree.get("producer") if isinstance(tree, Mapping) else None
    servers = producer.get("bootstrap.servers") if isinstance(producer, Mapping) else None
    if not isinstance(servers, str):
        return None
    try:
        return ",".join(str(Address.parse_server(server)) for server in servers.split(","))
    except ValueError:
        return None  # the whole file is validated, which names the line
