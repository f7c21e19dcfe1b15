"""One broker that many runs share, with a listener behind a proxy that spoils Produce requests, and its clients'
settings.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from klamm.core.broker.service_context import LocalBrokerContext
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import Settings, load_settings
from klamm.core.interfaces.service import ServiceRead
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.inprocess import broker_thread
from klammtest.ports import free_port
from klammtest.proxies.produce import ProduceProxy

WINDOW_MS = 60_000
LATENESS_MS = 300_000
INTERVAL_MS = 400
"""Milliseconds between two audit events of a producer."""
AUDIT: Mapping[str, Any] = {
    "plugin": "klamm",
    "window.minutes": WINDOW_MS // 60_000,
    "publish.interval.ms": INTERVAL_MS,
    "broker.interval.ms": 20,
    "allowed.lateness.ms": LATENESS_MS,
}


@dataclass
class Gate:
    """Hides new records of chosen topics from the broker tier, so that the tier is as slow as a test wants."""

    shut: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def passes(self, topic: str) -> bool:
        with self.lock:
            return topic not in self.shut

    def set(self, topic: str, *, shut: bool) -> None:
        with self.lock:
            (self.shut.add if shut else self.shut.discard)(topic)


@dataclass(frozen=True)
class TruthCluster:
    """`bootstrap` is the broker's address, `spoiled` that of the proxy in front of it."""

    folder: Path
    bootstrap: str
    spoiled: str
    proxy: ProduceProxy
    gate: Gate

    def settings(self, producer: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]) -> Settings:
        """Returns the settings of a client; `producer` overrides the common keys."""
        consumer = {
            "bootstrap.servers": self.bootstrap,
            "group.protocol": "classic",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 45_000,
            "heartbeat.interval.ms": 100,
            "fetch.max.wait.ms": 100,
        }
        return load_settings(
            {
                "producer": {"bootstrap.servers": self.bootstrap, **(producer or {})},
                "consumer": consumer,
                "audit": dict(AUDIT),
                **sections,
            }
        )

    @contextmanager
    def client(self) -> Iterator[ClusterClient]:
        with ClusterClient(self.bootstrap, codecs=self.settings().codec_table(), request_timeout_s=300) as client:
            yield client


@contextmanager
def truth_cluster(folder: Path) -> Iterator[TruthCluster]:
    folder.mkdir(parents=True, exist_ok=True)
    port, behind, before = free_port(), free_port(), free_port()
    keys = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},SPOILED://127.0.0.1:{behind}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},SPOILED://127.0.0.1:{before}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SPOILED:PLAINTEXT",
        "group.initial.rebalance.delay.ms": 0,
        "log.retention.check.interval.ms": 100,
    }
    coordination = {"plugin": "embedded", "path": str(folder / "coordination.db")}
    gate = Gate()
    with ExitStack() as stack:
        stack.enter_context(_gated(gate))
        stack.enter_context(broker_thread(folder, coordination, keys, audit=AUDIT))
        proxy = stack.enter_context(ProduceProxy(before, behind))
        yield TruthCluster(folder, f"127.0.0.1:{port}", f"127.0.0.1:{before}", proxy, gate)


@contextmanager
def _gated(gate: Gate) -> Iterator[None]:
    """While the gate is closed for a topic, a read of its log returns no records and the tier's own position as the
    end.
    """
    read = LocalBrokerContext.read

    def gated(
        self: LocalBrokerContext, partition: TopicPartition, offset: int, max_bytes: int, *isolation: IsolationLevel
    ) -> ServiceRead:
        found = read(self, partition, offset, max_bytes, *isolation)
        if gate.passes(partition.topic):
            return found
        return found._replace(data=b"", high_watermark=offset, log_start_offset=offset, end=offset)

    with mock.patch.object(LocalBrokerContext, "read", gated):
        yield
