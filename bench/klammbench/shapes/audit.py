"""The cost of the audit: the same records produced and consumed on a broker without it and on one with it, in turns.

With it the clients audit too: a producer marks its batches and counts, the broker opens each batch and counts, a group
publishes its counts before each commit. 100 B values, no key, batches of 64 KB, 12 partitions, acks=1; a foreign
producer (confluent-kafka) costs only the broker tier. Broker CPU counts until the broker tier has counted everything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.core.records.partition import TopicPartition
from klammbench.clients.job import Job, Took, run_client
from klammbench.drivers.topics import topic_on
from klammbench.metric import Metric
from klammbench.process import cpu_seconds
from klammbench.shapes.clients import ClientCell
from klammbench.systems.base import System
from klammbench.table import Table, geometric_mean
from klammbench.targets import Target, figure

NAME = "audit"
TITLE = "What the audit costs"
WITHOUT, WITH = "klamm-embedded", "klamm-audited"
SYSTEMS: Sequence[str] = (WITHOUT, WITH)
METRICS: Mapping[str, Metric] = {
    "rate": Metric("records/s"),
    "client_cpu": Metric("client CPU µs a record", "lower", 3),
    "broker_cpu": Metric("broker CPU µs a record", "lower", 3),
}
MANAGED = True
WANTED = 0.97

_PARTITIONS = 12
_VALUE_BYTES = 100
_GROUP = "__klamm_audit"
_COUNTED_S = 60.0
_SETTLED_S = 1.5
"""Longer than the broker tier's interval between two commits (`broker.interval.ms`, 1 s)."""
_ASKED_EVERY_S = 0.25
_PRODUCED = {"confluent-kafka": 3000, "klamm": 900, "klamm-arrow": 7000}
_CONSUMED = {"klamm": 2000, "klamm-arrow": 10_000}
"""Thousands of records, about two seconds of work: a process's one-time costs (its first event, its first commit, about
20 ms) must not be most of the difference."""


@dataclass(frozen=True, slots=True)
class AuditCell(ClientCell):
    """A client of `clients`, with other record counts."""

    @property
    def records(self) -> int:
        thousands = (_PRODUCED if self.what == "produce" else _CONSUMED)[self.client]
        return round(1000 * thousands * self.share)


def cells(quick: bool) -> Sequence[AuditCell]:
    share = 0.5 if quick else 1.0
    clients = ("klamm", "klamm-arrow")
    produced = [AuditCell(client, "produce", share) for client in (*clients, "confluent-kafka")]
    return [*produced, *(AuditCell(client, "consume", share) for client in clients)]


def warm(system: System) -> None:
    """Runs the clients once, so that nothing is compiled or imported during the measurement."""
    run(AuditCell("klamm-arrow", "produce", 0.1), system, 0)


def run(cell: AuditCell, system: System, number: int) -> Mapping[str, float]:
    with topic_on(system, f"audit-{number}", _PARTITIONS) as topic:
        job = Job(
            system.bootstrap, topic, _PARTITIONS, cell.records, _VALUE_BYTES,
            poll_records=10_000, group=f"group-{number}", audit=system.name == WITH,
        )  # fmt: skip
        if cell.what == "consume":
            run_client("klamm-arrow", "produce", job)
            _wait_until_counted(system, topic, job.records)
        before = cpu_seconds(system.pids())
        took = run_client(cell.client, cell.what, job)
        _wait_until_counted(system, topic, job.records)
        spent = cpu_seconds(system.pids()) - before
    return _figures(took, spent, job.records)


def _figures(took: Took, broker_cpu_s: float, records: int) -> Mapping[str, float]:
    return {
        "rate": took.rate,
        "client_cpu": took.cpu_s / took.records * 1e6,
        "broker_cpu": broker_cpu_s / records * 1e6,
    }


def _wait_until_counted(system: System, topic: str, records: int) -> None:
    """Waits until the broker tier has counted the records.

    Without an audit it waits and asks once all the same, so that the cost of the queries and of the idle second falls
    on both sides.
    """
    partitions = [TopicPartition(topic, number) for number in range(_PARTITIONS)]
    deadline = time.monotonic() + _COUNTED_S
    time.sleep(_SETTLED_S)
    with ClusterClient(system.bootstrap, codecs=load_settings({}).codec_table()) as client:
        while True:
            counted = sum(found.offset for found in client.fetch_offsets(_GROUP, partitions).values())
            if counted == records or system.name != WITH:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker tier has counted {counted} of {records} records")
            time.sleep(_ASKED_EVERY_S)


def targets(table: Table) -> Sequence[Target]:
    """Returns for each role the share of its rate, and of its work per CPU second, that remains with the audit."""
    return [
        _target(table, "producer-rate", "rate", ("produce: klamm", "produce: klamm-arrow")),
        _target(table, "producer-cpu", "client_cpu", ("produce: klamm", "produce: klamm-arrow")),
        _target(table, "consumer-rate", "rate", ("consume: klamm", "consume: klamm-arrow")),
        _target(table, "consumer-cpu", "client_cpu", ("consume: klamm", "consume: klamm-arrow")),
        _target(table, "broker-rate", "rate", ("produce: confluent-kafka",)),
        _target(table, "broker-cpu", "broker_cpu", tuple(table.cells())),
    ]


def _target(table: Table, name: str, metric: str, cells: Sequence[str]) -> Target:
    found: dict[str, float] = {}
    for cell in cells:
        ratio = table.ratio(cell, metric, WITH, WITHOUT)
        if ratio:
            found[cell] = ratio if METRICS[metric].better == "higher" else 1 / ratio
    remarks = [", ".join(f"{cell} {figure(ratio)}" for cell, ratio in found.items())]
    value = geometric_mean(found.values()) if found else None
    return Target(f"audit-{name}", value, WANTED, remarks=remarks, complete=len(found) == len(cells))
