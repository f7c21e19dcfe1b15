"""The configuration that producers and consumers have in common."""

from __future__ import annotations

from ...transport.address import Address
from ..address import Servers
from ..section import Int, Long, Section, key


class ClientConfig(Section):
    """The connection to a cluster. Times in ms."""

    bootstrap_servers: Servers = key(
        "127.0.0.1:9092",
        "Brokers from which the client learns of the others: host:port, separated by commas, or a list.",
    )
    client_id: str = key("klamm", "The name that brokers log.")
    request_timeout_ms: Int = key(30_000, "Time that a broker may take to respond.", ge=1)
    metadata_max_age_ms: Long = key(
        300_000,
        "Age at which topics are requested again, so that new partitions are found (classic: by the leader).",
        ge=1,
    )
    reconnect_backoff_ms: Long = key(50, "Wait before the first attempt to reconnect to a broker.", ge=0)
    reconnect_backoff_max_ms: Long = key(1_000, "Longest wait between two attempts to connect.", ge=0)
    retry_backoff_ms: Long = key(100, "Wait before the first retry.", ge=0)
    retry_backoff_max_ms: Long = key(1_000, "Longest wait between two retries.", ge=0)

    def bootstrap(self) -> list[Address]:
        """Returns the address of each bootstrap server."""
        return [Address.parse(part) for part in self.bootstrap_servers.split(",")]
