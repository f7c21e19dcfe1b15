"""Klamm's own client beside confluent-kafka, kafka-python and aiokafka: 100 B, no key, acks=1, uncompressed.

12 partitions, batches of 64 KB. Each client is a separate process; consumers read records of the raw driver. A
producer's rate counts until the last record is acknowledged; the last table has the time per record that its calls take
of the program's thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from klammbench.clients.job import Job, Took, run_client
from klammbench.drivers.arrival import Arrival
from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.topics import topic_on
from klammbench.metric import Metric
from klammbench.systems.base import System
from klammbench.table import Table
from klammbench.targets import Target, figure

NAME = "clients"
TITLE = "Klamm's own client beside the other Python clients"
SYSTEMS: Sequence[str] = ("klamm", "kafka-tuned")
METRICS: Mapping[str, Metric] = {
    "rate": Metric("records/s"),
    "per_cpu": Metric("records per client CPU second"),
    "call": Metric("µs a record in the producer's call", None, 2),
}
MANAGED = True

_PARTITIONS = 12
_VALUE_BYTES = 100
_BATCH = Batch.of_size(65_536, _VALUE_BYTES)
_PRODUCED = {"confluent-kafka": 500, "kafka-python": 40, "aiokafka": 40, "klamm": 200, "klamm-arrow": 2000}
_CONSUMED = {"confluent-kafka": 1000, "kafka-python": 80, "aiokafka": 250, "klamm": 500, "klamm-arrow": 1500}
"""Thousands of records, about a second of work."""


@dataclass(frozen=True, slots=True)
class ClientCell:
    client: str
    what: Literal["produce", "consume"]
    share: float = 1.0
    """Share of the full run's records."""

    @property
    def name(self) -> str:
        return f"{self.what}: {self.client}"

    @property
    def records(self) -> int:
        thousands = (_PRODUCED if self.what == "produce" else _CONSUMED)[self.client]
        return round(1000 * thousands * self.share)


def cells(quick: bool) -> Sequence[ClientCell]:
    """Returns the cells; two that a target compares are neighbours, so that they are measured moments apart."""
    order = ("confluent-kafka", "klamm-arrow", "aiokafka", "klamm", "kafka-python")
    share = 0.4 if quick else 1.0
    found = [ClientCell(client, what, share) for what in ("produce", "consume") for client in order]
    return [cell for cell in found if cell.client != "kafka-python"] if quick else found


def warm(system: System) -> None:
    """Sends requests of one partition each (confluent-kafka) and of many (Klamm), as many as are measured, so that no
    just-in-time compiler is at work while clients are compared.
    """
    one, many = ClientCell("confluent-kafka", "produce"), ClientCell("klamm-arrow", "produce")
    for turn, cell in enumerate((one, many, ClientCell("confluent-kafka", "consume"), many, one)):
        run(cell, system, -turn - 1)


def run(cell: ClientCell, system: System, number: int) -> Mapping[str, float]:
    name = f"clients-{number}" if number > 0 else f"clients-warm-{-number}"
    with topic_on(system, name, _PARTITIONS) as topic:
        took = _produce(cell, system, topic) if cell.what == "produce" else _consume(cell, system, topic)
    found = {"rate": took.rate, "per_cpu": took.per_cpu_second}
    return {**found, "call": took.calls_s / took.records * 1e6} if cell.what == "produce" else found


def _job(cell: ClientCell, system: System, topic: str) -> Job:
    return Job(
        system.bootstrap, topic, _PARTITIONS, cell.records, _VALUE_BYTES, poll_records=10_000, queued_records=1_000_000
    )


def _produce(cell: ClientCell, system: System, topic: str) -> Took:
    job = _job(cell, system, topic)
    took = run_client(cell.client, "produce", job)
    with Arrival(system, topic, _PARTITIONS) as arrival:
        arrival.wait(job.records)  # acknowledged records must be stored: any other number is an error
    return took


def _consume(cell: ClientCell, system: System, topic: str) -> Took:
    size = 1.1 * cell.records * (_VALUE_BYTES + 9)
    drive(system.bootstrap, topic, _PARTITIONS, _BATCH, Load(4, 5, warm_s=0, measure_s=20, max_bytes=size))
    return run_client(cell.client, "consume", _job(cell, system, topic))


_TARGETS = (
    ("arrow-producer", "produce", "klamm-arrow", "confluent-kafka", 3.0),
    ("arrow-consumer", "consume", "klamm-arrow", "confluent-kafka", 4.0),
    ("producer", "produce", "klamm", "aiokafka", 1.0),
    ("consumer", "consume", "klamm", "aiokafka", 1.0),
)


def targets(table: Table) -> Sequence[Target]:
    """Returns one target per broker: the median over the rounds of the ratio of rates within a round."""
    return [
        _target(table, system, *wanted)
        for system in SYSTEMS
        if any(table.values(cell, system, "rate") for cell in table.cells())
        for wanted in _TARGETS
    ]


def _target(table: Table, system: str, name: str, what: str, ours: str, theirs: str, wanted: float) -> Target:
    full = f"clients-{name}-on-{system.partition('-')[0]}"
    ratio = table.against(f"{what}: {theirs}", f"{what}: {ours}", system, "rate")
    if ratio is None:
        return Target(full, None, wanted, remarks=["not measured on both"])
    per_cpu = table.against(f"{what}: {theirs}", f"{what}: {ours}", system, "per_cpu")
    beside = "" if per_cpu is None else f"; per client CPU second {figure(per_cpu)}"
    return Target(full, ratio, wanted, remarks=[f"{ours} to {theirs}{beside}"])
