"""(f) The memory, time to the first record and bytes on disk of a system. All its processes are counted. A system that
has a topic already is started (Klamm's broker and its ZooKeeper together); then it is polled until one record was
produced and consumed. Then confluent-kafka produces and consumes records of 100 B (batches of 64 KB, no codec), and the
memory (PSS, so that shared pages count once), the growth of the data on disk and the broker's CPU time for that are
taken: a GB is 10^9 bytes of values, produced once and consumed once. (b) has the CPU time of producing or consuming
alone, cell by cell.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.core.errors import KlammError
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klammbench.clients.job import Job, run_client
from klammbench.drivers.topics import make_topic
from klammbench.metric import Metric
from klammbench.process import cpu_seconds, disk_bytes, pss_bytes
from klammbench.systems.base import System
from klammbench.table import AGAIN, Table
from klammbench.targets import Target, figure, ratio_target

NAME = "f"
TITLE = "Memory, start and disk"
SYSTEMS: Sequence[str] = ("klamm", "klamm-embedded", "kafka", "kafka-tuned", AGAIN)
METRICS: Mapping[str, Metric] = {
    "pss": Metric("MB PSS after the load", "lower"),
    "pss_idle": Metric("MB PSS after one record", "lower"),
    "start": Metric("s to the first record", "lower", 2),
    "disk": Metric("bytes on disk per record", "lower", 1),
    "broker_cpu": Metric("broker CPU s/GB, produced and consumed", "lower", 2),
}
MANAGED = False

_FIRST = TopicPartition("first", 0)
_FIRST_TIMEOUT_S = 60.0
_PARTITIONS = 12
_VALUE_BYTES = 100


@dataclass(frozen=True, slots=True)
class FootprintCell:
    name: str
    records: int
    systems: Sequence[str]


def cells(quick: bool) -> Sequence[FootprintCell]:
    if quick:
        return [FootprintCell("200,000 records", 200_000, ("klamm", "klamm-embedded", "kafka-tuned"))]
    return [FootprintCell("500,000 records", 500_000, SYSTEMS)]


def warm(system: System) -> None:
    """Not called by the harness. Creates the topic of the first record, so that the measured start is a second
    start.
    """
    system.start()
    try:
        make_topic(system, _FIRST.topic, 1)
    finally:
        system.stop()


def run(cell: FootprintCell, system: System, number: int) -> Mapping[str, float]:
    if system.name not in cell.systems:
        return {}
    if not system.data_dir.exists():
        warm(system)
    try:
        begin = time.monotonic()
        system.start()
        _one_record(system)
        start = time.monotonic() - begin
        pss_idle = pss_bytes(system.pids())
        before = cpu_seconds(system.pids())
        disk = _load(system, f"footprint-{number}", cell.records)
        spent = cpu_seconds(system.pids()) - before
        pss = pss_bytes(system.pids())
    finally:
        system.stop()
    return {
        "pss": pss / 1e6,
        "pss_idle": pss_idle / 1e6,
        "start": start,
        "disk": disk,
        "broker_cpu": spent / (cell.records * _VALUE_BYTES) * 1e9,
    }


def _one_record(system: System) -> None:
    """Produces and consumes one record; tries again at once while the broker answers that it is not ready."""
    batch = encode_batch([(int(time.time() * 1000), None, b"first", ())])
    deadline = time.monotonic() + _FIRST_TIMEOUT_S
    with ClusterClient(system.bootstrap, codecs=load_settings({}).codec_table()) as client:
        while True:
            try:
                offset = client.produce({_FIRST: batch}, acks=1, timeout_s=1.0)[_FIRST].base_offset
                node = next(iter(client.by_leader([_FIRST])))
                if client.fetch(node, {_FIRST: offset}, max_wait_ms=100)[_FIRST].records:
                    return
            except KlammError:
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise RuntimeError(f"{system.name} served no record within {_FIRST_TIMEOUT_S:g} s")
            time.sleep(0.005)


def _load(system: System, topic: str, records: int) -> float:
    """Produces and consumes `records`; returns the bytes on disk per record."""
    make_topic(system, topic, _PARTITIONS)
    before = disk_bytes(system.data_dir)
    job = Job(system.bootstrap, topic, _PARTITIONS, records, _VALUE_BYTES, poll_records=10_000)
    run_client("confluent-kafka", "produce", job)
    run_client("confluent-kafka", "consume", job)
    return (disk_bytes(system.data_dir) - before) / records


def targets(table: Table) -> Sequence[Target]:
    return [
        _target(table, "f-memory", "pss", 0.25, "MB"),
        _target(table, "f-start", "start", 0.3, "s"),
    ]


def _target(table: Table, name: str, metric: str, wanted: float, unit: str) -> Target:
    remarks = []
    for cell in table.cells():
        for system in table.systems():
            if spread := table.spread(cell, system, metric):
                remarks.append(f"{system} {figure(spread.median)} {unit}")
    embedded = table.shape_value(metric, "klamm-embedded")
    beside = "" if embedded is None else f"; with embedded coordination the ratio is {figure(embedded.value)}"
    found = table.shape_value(metric)
    return ratio_target(name, found, wanted, at_least=False, remarks=[", ".join(remarks) + beside])
