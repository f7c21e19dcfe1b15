"""Makes every `ClusterClient`, from the settings or from the context of a service beside a broker.

Everything that the connections of a process have in common comes from there, so that a caller passes only a purpose:
tools, audit threads, offset stores, Spark workers and services connect alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..records.codecs import CodecTable
from .cluster_client import ClusterClient
from .network.request_router import Network

if TYPE_CHECKING:
    from ..config.settings import Settings

__all__ = ["ClusterAccess", "open_client"]


class Access(Protocol):
    """How a cluster is reached; a `BrokerContext` is one. `bootstrap_servers`: `host:port,…`."""

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def codecs(self) -> CodecTable: ...


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """An `Access` for callers that have neither settings nor a context."""

    bootstrap_servers: str
    codecs: CodecTable


def open_client(
    access: Settings | Access,
    purpose: str,
    *,
    bootstrap_servers: str | None = None,
    client_id: str | None = None,
    request_timeout_s: float = 30.0,
    deadline_s: float = math.inf,
    network: Network | None = None,
) -> ClusterClient:
    """Returns a client, which connects when it is used. Its client id is `klamm-PURPOSE` unless given; brokers log
    it. `bootstrap_servers` replaces that of `access`, or of the producer section of settings."""
    if not isinstance(access, ClusterAccess):
        from ..config.settings import Settings  # a short command may have none: it takes a third of its time

        if isinstance(access, Settings):
            access = ClusterAccess(access.producer.bootstrap_servers, access.codec_table())
    return ClusterClient(
        bootstrap_servers or access.bootstrap_servers,
        codecs=access.codecs,
        client_id=client_id or f"klamm-{purpose}",
        request_timeout_s=request_timeout_s,
        deadline_s=deadline_s,
        network=network,
    )
