"""Opens all logs of a directory in several threads and logs the progress.

Reads and checksums release the interpreter's lock, so threads make recovery faster.
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

from ...records.partition import TopicPartition, counted
from ..partition_log import PartitionLog
from ..segment.file_operations import storage
from ..segment.naming import LOG, parse_segment_file
from .loader import OpenFrom

PROGRESS_S: Final = 3.0
_MIB: Final = 1 << 20
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Opening:
    """A partition directory to open. `bytes` is an upper bound of the bytes that recovery reads of it."""

    tp: TopicPartition
    topic_id: UUID
    known: OpenFrom
    bytes: int = field(default=0)

    @classmethod
    def of(cls, directory: Path, tp: TopicPartition, topic_id: UUID, known: OpenFrom) -> Opening:
        return cls(tp, topic_id, known, 0 if known.clean else _unflushed_bytes(directory, known.recovery_point))

    @property
    def left(self) -> int:
        """The bytes that recovery still has to read, at most."""
        return max(0, self.bytes - self.known.checked.bytes)


def _unflushed_bytes(directory: Path, recovery_point: int) -> int:
    """Returns the size of the segments from the one that contains the recovery point on."""
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
    """Opens every log in `threads` threads and returns them. Logs the progress every `progress_s`
    seconds. Raises the first error, once no thread opens a log any more."""
    began = time.monotonic()
    total = sum(opening.bytes for opening in openings)
    if total:
        _log.info("recovery: %s, at most %d MiB to check", counted(len(openings), "partition"), total // _MIB)
    with ThreadPoolExecutor(max(1, threads), "klamm-recovery") as pool:
        running = {pool.submit(open_one, opening): opening for opening in openings}
        try:
            _watch(running, progress_s)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if total:
        _log.info("recovery: %s open after %.1f s", counted(len(openings), "partition"), time.monotonic() - began)
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
