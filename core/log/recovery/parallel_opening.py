"""Opening all logs of a directory in several threads, and saying how far it is.

Reading and checking sums let the interpreter's lock go, so threads help where recovery waits for the disk or counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from ...records.partition import TopicPartition
from ..partition_log import PartitionLog
from ..segment.file_operations import storage
from ..segment.naming import LOG, parse_segment_file
from .loader import OpenFrom

PROGRESS_S: Final = 3.0
_MIB: Final = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Opening:
    """A partition's directory that is to be opened. `bytes` is what recovery may have to read of it."""

    tp: TopicPartition
    topic_id: UUID
    known: OpenFrom
    bytes: int = field(default=0)

    @classmethod
    def of(cls, directory: Path, tp: TopicPartition, topic_id: UUID, known: OpenFrom) -> Opening:
        return cls(tp, topic_id, known, 0 if known.clean else _unsafe_bytes(directory, known.recovery_point))

    @property
    def left(self) -> int:
        return max(0, self.bytes - self.known.checked.bytes)


def _unsafe_bytes(directory: Path, recovery_point: int) -> int:
    """Of the segments from the one with the recovery point on."""
    with storage(f"cannot read {directory}"):
        sizes = {
            parsed[0]: path.stat().st_size
            for path in directory.iterdir()
            if (parsed := parse_segment_file(path.name)) and parsed[1] == LOG
        }
    first = max((base for base in sizes if base <= recovery_point), default=0)
    return sum(size for base, size in sizes.items() if base >= first)


def open_all(
    openings: Sequence[Opening],
    open_one: Callable[[Opening], PartitionLog],
    threads: int,
    *,
    progress_s: float = PROGRESS_S,
) -> dict[TopicPartition, PartitionLog]:
    """Every log, opened by so many threads; a line every few seconds while it takes longer. The first error is raised
    once no more are being opened."""
    began = time.monotonic()
    total = sum(opening.bytes for opening in openings)
    if total:
        _log.info("recovery: %d partitions, at most %d MiB to check", len(openings), total // _MIB)
    with ThreadPoolExecutor(max(1, threads), "klamm-recovery") as pool:
        running = {pool.submit(open_one, opening): opening for opening in openings}
        try:
            _watch(running, progress_s)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if total:
        _log.info("recovery: %d partitions are open after %.1f s", len(openings), time.monotonic() - began)
    return {opening.tp: future.result() for future, opening in running.items()}


def _watch(running: dict[Future[PartitionLog], Opening], progress_s: float) -> None:
    waiting: set[Future[PartitionLog]] = set(running)
    while waiting:
        done, waiting = wait(waiting, progress_s, FIRST_EXCEPTION)
        for future in done:
            future.result()
        if waiting:
            left = sum(running[future].left for future in waiting)
            _log.info(
                "recovery: %d of %d partitions are open, at most %d MiB left to check",
                len(running) - len(waiting), len(running), left // _MIB,
            )  # fmt: skip
