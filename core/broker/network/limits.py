"""Limits on the clients' connections, memory and time, made from the configuration, and again when that is reloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...config.sections.broker import BrokerConfig
from . import file_descriptors as descriptors

INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Limits:
    """Frames and memory in bytes, times in seconds.

    Produce frames may be as large as `socket.request.max.bytes`, all others 1 MiB unless configured. `frame_s`: an
    unfinished request must bring 64 KiB or its end in each such period. `send_s`: a client that reads nothing of its
    responses for that time is disconnected. The kernel chooses the size of a socket buffer of -1.
    """

    produce_frame: int = 100 * 1024 * 1024
    other_frame: int = 1024 * 1024
    idle_s: float = 600.0
    frame_s: float = 30.0
    send_s: float = 300.0
    queued_requests: int = 500
    request_bytes: int = 256 * 1024 * 1024
    response_bytes: int = 256 * 1024 * 1024
    max_connections: int = 10_000
    creation_rate: float = INT_MAX
    per_ip: int = INT_MAX
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    send_buffer: int = -1
    receive_buffer: int = -1
    backlog: int = 1024

    @classmethod
    def of_config(cls, config: BrokerConfig) -> Limits:
        """Makes the limits; admits no more connections than the process may have file descriptors for."""
        return cls(
            produce_frame=config.socket_request_max_bytes,
            other_frame=config.control_request_max_bytes,
            idle_s=config.connections_max_idle_ms / 1000,
            frame_s=config.socket_receive_timeout_ms / 1000,
            send_s=config.socket_send_timeout_ms / 1000,
            queued_requests=config.queued_max_requests,
            request_bytes=config.queued_max_request_bytes,
            response_bytes=config.queued_max_response_bytes,
            max_connections=min(config.max_connections, descriptors.for_connections()),
            creation_rate=config.max_connection_creation_rate,
            per_ip=config.max_connections_per_ip,
            per_ip_overrides=config.connection_overrides(),
            send_buffer=config.socket_send_buffer_bytes,
            receive_buffer=config.socket_receive_buffer_bytes,
            backlog=config.socket_listen_backlog_size,
        )

    def of_address(self, address: str) -> int:
        return self.per_ip_overrides.get(address, self.per_ip)
