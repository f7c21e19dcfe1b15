"""(b) Throughput, one factor at a time around 100 B messages, batches of 64 KB, no codec, acks=1, 12 partitions.

Each point with the raw driver, which replays ready-made frames over four connections with five in flight on each, and
with confluent-kafka as producer; some with confluent-kafka as consumer, of a topic that the raw driver filled.

Kafka opens every batch that it receives and reads its records; Klamm by default only uncompressed ones, which is part
of its ratios for the compressed cells. So each of these is measured once more as "verified", with `verify.payload=all`
on Klamm's topic: both then do the same work. Those cells are shown, and count towards no target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from klammbench.drivers import confluent
from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.topics import topic_on
from klammbench.metric import Metric
from klammbench.process import cpu_seconds
from klammbench.shapes.base import BROKERS
from klammbench.shapes.warming import warm as warm_up
from klammbench.systems.base import System
from klammbench.table import Table
from klammbench.targets import Target, figure, ratio_target

NAME = "b"
TITLE = "Throughput, one factor at a time"
SYSTEMS = BROKERS
MANAGED = True
METRICS: Mapping[str, Metric] = {
    "rate": Metric("MB/s", "higher", 1),
    "broker_cpu": Metric("broker CPU s/GB", "lower", 2),
    "client_cpu": Metric("client CPU s/GB", None, 2),
}
VERIFIED = ", verified"
_CODECS = ("gzip", "snappy", "lz4", "zstd")
_MEGABYTE = 1_000_000
"""Batch size of "1 MB": with its header a batch must stay below the 1,048,588 bytes of `message.max.bytes`."""


@dataclass(frozen=True, slots=True)
class ThroughputCell:
    driver: Literal["raw", "produce", "consume"]
    label: str
    message_bytes: int = 100
    batch_bytes: int = 65_536
    codec: str = "none"
    acks: int = 1
    partitions: int = 12
    messages: int = 400_000
    """Messages of confluent-kafka's producer: about a second of work."""
    verified: bool = False
    """True if Klamm opens compressed batches too, as Kafka always does."""

    @property
    def name(self) -> str:
        return f"{self.driver}: {self.label}{VERIFIED if self.verified else ''}"


def _factors() -> list[ThroughputCell]:
    base = ThroughputCell("raw", "base")
    return [
        base,
        replace(base, label="1 KB messages", message_bytes=1000, messages=200_000),
        replace(base, label="16 KB batches", batch_bytes=16_384),
        replace(base, label="1 MB batches", batch_bytes=_MEGABYTE),
        *(replace(base, label=codec, codec=codec, verified=on) for codec in _CODECS for on in (False, True)),
        replace(base, label="acks=all", acks=-1),
        replace(base, label="1 partition", partitions=1),
    ]


_CONSUMED = ("base", "1 KB messages", "lz4")
_QUICK = (
    "raw: base", "raw: 1 KB messages", "raw: 1 MB batches", "raw: zstd", "raw: zstd, verified", "produce: base",
    "consume: base",
)  # fmt: skip


def cells(quick: bool) -> Sequence[ThroughputCell]:
    factors = _factors()
    every = [
        *factors,
        *(replace(cell, driver="produce") for cell in factors),
        *(replace(cell, driver="consume") for cell in factors if cell.label in _CONSUMED and not cell.verified),
    ]
    return [cell for cell in every if cell.name in _QUICK] if quick else every


def warm(system: System) -> None:
    warm_up(system)


def run(cell: ThroughputCell, system: System, number: int) -> Mapping[str, float]:
    own = {"verify.payload": "all"} if cell.verified and system.name.startswith("klamm") else {}
    with topic_on(system, f"throughput-{number}", cell.partitions, own) as topic:
        return {"raw": _raw, "produce": _produce, "consume": _consume}[cell.driver](cell, system, topic)


def _raw(cell: ThroughputCell, system: System, topic: str) -> Mapping[str, float]:
    batch = Batch.of_size(cell.batch_bytes, cell.message_bytes, cell.codec)
    load = Load(4, depth=5, measure_s=1.0)
    pids = system.pids()
    before = cpu_seconds(pids)
    got = drive(system.bootstrap, topic, cell.partitions, batch, load, cell.acks)
    spent = cpu_seconds(pids) - before
    payload = got.requests * batch.messages * batch.message_bytes
    return {
        "rate": payload / got.seconds / 1e6,
        "broker_cpu": spent / (payload * got.all_bytes / got.bytes) * 1e9,
        "client_cpu": got.cpu_s / payload * 1e9,
    }


def _task(cell: ThroughputCell, system: System, topic: str, kind: Literal["produce", "consume"]) -> confluent.Task:
    return confluent.Task(
        kind, system.bootstrap, topic, cell.partitions, cell.messages, cell.message_bytes, cell.batch_bytes,
        cell.codec, cell.acks,
    )  # fmt: skip


def _produce(cell: ThroughputCell, system: System, topic: str) -> Mapping[str, float]:
    return _client(cell, system, _task(cell, system, topic, "produce"))


def _consume(cell: ThroughputCell, system: System, topic: str) -> Mapping[str, float]:
    batch = Batch.of_size(cell.batch_bytes, cell.message_bytes, cell.codec)
    wanted = 2 * cell.messages * cell.message_bytes
    size = wanted if cell.codec == "none" else wanted * 3 // 4
    drive(system.bootstrap, topic, cell.partitions, batch, Load(4, depth=5, warm_s=0, measure_s=20, max_bytes=size))
    return _client(cell, system, _task(cell, system, topic, "consume"))


def _client(cell: ThroughputCell, system: System, task: confluent.Task) -> Mapping[str, float]:
    pids = system.pids()
    before = cpu_seconds(pids)
    got = confluent.run(task)
    spent = cpu_seconds(pids) - before
    return {
        "rate": got.messages * cell.message_bytes / got.seconds / 1e6,
        "broker_cpu": spent / (got.all_messages * cell.message_bytes) * 1e9,
        "client_cpu": got.cpu_s / (got.messages * cell.message_bytes) * 1e9,
    }


def targets(table: Table) -> Sequence[Target]:
    names = [name for name in table.cells() if not name.endswith(VERIFIED)]
    raw = [name for name in names if name.startswith("raw:")]
    large = [name for name in names if "16 KB batches" not in name]
    return [
        ratio_target("b-throughput", table.shape_value("rate", cells=names), 1.0, remarks=_verified(table)),
        ratio_target("b-throughput-raw", table.shape_value("rate", cells=raw), 1.0),
        ratio_target("b-broker-cpu-per-gb", table.shape_value("broker_cpu", cells=large), 1.0, at_least=False),
    ]


def _verified(table: Table) -> list[str]:
    """Returns remarks about the compressed cells in which both brokers do the same work."""
    found = table.shape_value("rate", cells=[name for name in table.cells() if name.endswith(VERIFIED)])
    if found is None:
        return []
    without = table.shape_value("rate", cells=[name.removesuffix(VERIFIED) for name in found.ratios])
    beside = "" if without is None else f", {figure(without.value)} without"
    return [f"compressed batches opened as Kafka opens them (verify.payload=all): {figure(found.value)}{beside}"]
