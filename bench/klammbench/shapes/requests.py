"""(c) Produce requests of one message of 100 B each, acks=1, over 1, 8 and 64 connections, one in flight on each.

A fourth cell has five in flight on each of eight connections; it is shown and counts towards no target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.topics import topic_on
from klammbench.metric import Metric
from klammbench.process import cpu_seconds
from klammbench.shapes.base import BROKERS
from klammbench.shapes.warming import PARTITIONS
from klammbench.shapes.warming import warm as warm_up
from klammbench.systems.base import System
from klammbench.table import Table
from klammbench.targets import Target, ratio_target

NAME = "c"
TITLE = "Requests of one message"
SYSTEMS = BROKERS
MANAGED = True
METRICS: Mapping[str, Metric] = {
    "rate": Metric("requests/s", "higher"),
    "p99": Metric("µs p99", "lower"),
    "broker_cpu": Metric("broker CPU µs/request", "lower", 1),
}
STRETCH = 1.0


@dataclass(frozen=True, slots=True)
class RequestsCell:
    name: str
    connections: int
    depth: int = 1


def cells(quick: bool) -> Sequence[RequestsCell]:
    found = [
        RequestsCell("1 connection", 1),
        RequestsCell("8 connections", 8),
        RequestsCell("64 connections", 64),
        RequestsCell("8 connections, 5 in flight", 8, 5),
    ]
    return found[:3] if quick else found


def warm(system: System) -> None:
    warm_up(system)


def run(cell: RequestsCell, system: System, number: int) -> Mapping[str, float]:
    pids = system.pids()
    with topic_on(system, f"requests-{number}", PARTITIONS) as topic:
        before = cpu_seconds(pids)
        got = drive(system.bootstrap, topic, PARTITIONS, Batch(1), Load(cell.connections, cell.depth, measure_s=1.5))
        spent = cpu_seconds(pids) - before
    return {
        "rate": got.requests / got.seconds,
        "p99": got.p99_us,
        "broker_cpu": spent / (got.requests * got.all_bytes / got.bytes) * 1e6,
    }


def targets(table: Table) -> Sequence[Target]:
    counted = [name for name in table.cells() if "in flight" not in name]
    found = table.shape_value("rate", cells=counted)
    remarks = []
    if found is not None:
        remarks.append(f"stretch goal >={STRETCH:g}: {'met' if found.value >= STRETCH else 'short'}")
    return [ratio_target("c-requests", found, 0.5, remarks=remarks)]
