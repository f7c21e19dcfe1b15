"""(e) A reader that catches up, from disk or from the page cache, beside a live producer.

The backlog is one partition of 64 KB batches; one connection reads it with fetches of 1 MB. The producer sends a batch
of 16 KB 400 times a second to another topic (open loop, acks=1). Cold: the system's files are dropped from the page
cache before, which the kernel's count of the broker's disk reads must confirm; warm: they were just read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from klammbench.drivers import reader
from klammbench.drivers.raw import Batch, Load, drive
from klammbench.drivers.topics import make_topic
from klammbench.metric import Metric
from klammbench.process import bytes_from_disk
from klammbench.systems.base import System
from klammbench.table import Table
from klammbench.targets import Target

NAME = "e"
TITLE = "Catch-up reads beside a live producer"
SYSTEMS: Sequence[str] = ("klamm", "kafka", "kafka-tuned")
METRICS: Mapping[str, Metric] = {
    "read": Metric("MB/s read"),
    "p99": Metric("µs p99 of the producer", "lower"),
}
MANAGED = False
"""The backlogs stay from cell to cell; the systems are wiped at the end of the shape."""

_BACKLOG, _LIVE = "backlog", "live"
_FILL = Batch.of_size(65_536)
_LIVE_BATCH = Batch.of_size(16_384)
_LIVE_RATE = 400.0
_STEP_BYTES = 500_000_000
_MARGIN_S = 0.5


@dataclass(frozen=True, slots=True)
class CatchUpCell:
    name: str
    reads: bool
    cold: bool
    backlog_bytes: int
    seconds: float
    systems: Sequence[str] = SYSTEMS


def cells(quick: bool) -> Sequence[CatchUpCell]:
    backlog, seconds = (600_000_000, 1.5) if quick else (1_500_000_000, 2.5)
    systems = ("klamm", "kafka-tuned") if quick else SYSTEMS
    return [
        CatchUpCell("no reader", False, False, backlog, seconds, systems),
        CatchUpCell("cold reader", True, True, backlog, seconds, systems),
        CatchUpCell("warm reader", True, False, backlog, seconds, systems),
    ]


def warm(system: System) -> None:
    """Not called by the harness: `run` starts and fills the systems."""
    _read(system, CatchUpCell("", True, False, 10**10, 2.0))


def run(cell: CatchUpCell, system: System, number: int) -> Mapping[str, float]:  # noqa: ARG001 - topics stay
    if system.name not in cell.systems:
        return {}
    if not system.pids():
        system.start()
        _fill(system, cell.backlog_bytes)
        warm(system)
    if not cell.reads:
        return {"p99": _produce(system, cell.seconds)}
    return _cold(cell, system) if cell.cold else _warm(cell, system)


def _warm(cell: CatchUpCell, system: System) -> Mapping[str, float]:
    whole = reader.Reading(system.bootstrap, _BACKLOG, 60.0, 10**12)
    process = reader.start(whole)
    reader.go(process)
    reader.outcome(process, 90.0)
    return _read(system, cell)


def _cold(cell: CatchUpCell, system: System) -> Mapping[str, float]:
    os.sync()
    _forget(system.data_dir)
    before = bytes_from_disk(system.pids())
    found = _read(system, cell)
    from_disk = bytes_from_disk(system.pids()) - before
    read = found["read"] * 1e6 * cell.seconds  # an upper bound: the backlog may have ended before
    if from_disk < min(read, cell.backlog_bytes) * 0.5:
        raise RuntimeError(f"the reader was not cold: {from_disk} bytes came from disk")
    return found


def _read(system: System, cell: CatchUpCell) -> Mapping[str, float]:
    again = not cell.cold
    process = reader.start(reader.Reading(system.bootstrap, _BACKLOG, cell.seconds + _MARGIN_S, 10**12, again))
    try:
        reader.go(process)
        p99 = _produce(system, cell.seconds)
    finally:
        got = reader.outcome(process, 60.0)
    return {"read": got.bytes / got.seconds / 1e6, "p99": p99}


def _produce(system: System, seconds: float) -> float:
    load = Load(2, warm_s=0.3, measure_s=seconds, rate=_LIVE_RATE)
    return drive(system.bootstrap, _LIVE, 1, _LIVE_BATCH, load).p99_us


def _fill(system: System, size: int) -> None:
    make_topic(system, _LIVE, 1)
    make_topic(system, _BACKLOG, 1)
    done = 0
    while done < size:
        step = min(_STEP_BYTES, size - done)
        load = Load(2, depth=2, warm_s=0, measure_s=35, max_bytes=step)
        done += drive(system.bootstrap, _BACKLOG, 1, _FILL, load).all_bytes


def _forget(folder: Path) -> None:
    """Drops clean pages of all files below `folder` from the page cache; needs no privilege."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def targets(table: Table) -> Sequence[Target]:  # noqa: ARG001 - the issue sets none here
    return []
